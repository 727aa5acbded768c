"""A Trainium device as a machine, by torch-neuronx: the only place that knows that package.

Kernels go through its operator wrapper, as `wrap_nki(kernel)[lnc](*args)`: run at once on tensors
of a device, and captured as a node of the graph where one is compiled.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nkisim.enums import NcVersion
from nkisim.settings import target_of

# physical cores of a rank, for which the kernels are planned
LNC = 2
# module, and the wheel that has it
_WHEELS = {
    "torch_neuronx": "torch-neuronx",
    "nki": "nki",
    "neuronxcc": "neuronx-cc",
}


@dataclass(frozen=True)
class Device:
    """Runs kernels on the device that their tensors are on.

    Attributes:
        target: the generation of the chip
        lnc: physical cores of a rank
    """

    target: NcVersion
    lnc: int = LNC

    def run(self, kernel: Any, *args: Any, group: str = "") -> Any:
        """As of `machine.Machine`. Which ranks exchange what is among the arguments, as replica
        groups of a kernel's options: the device needs no process group."""
        return _wrapper()(kernel)[self.lnc](*args)


@functools.lru_cache(maxsize=1)
def device() -> Device:
    """The device of this process.

    Raises:
        ImportError: a package of AWS's is missing; it says which, and how to install it.
        ValueError: the chip is none that is known.
    """
    platform: Callable[[], str] = _module("torch_neuronx.utils").get_platform_target
    return Device(target_of(platform()))


def _wrapper() -> Callable[[Any], Any]:
    wrap: Callable[[Any], Any] = _module("torch_neuronx.nki_hop").wrap_nki
    return wrap


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or name).partition(".")[0]
        raise ImportError(
            f"the backend 'neuron' needs {_WHEELS.get(missing, missing)}, which is not installed: "
            "pip install 'wantrn-kernels[neuron]' "
            "--extra-index-url https://pip.repos.neuron.amazonaws.com",
            name=missing,
        ) from error
