"""Machines that run kernels for the operators: the simulator, or a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from wantrn.kernels.backend import Backend, setting

if TYPE_CHECKING:
    from nkisim.enums import NcVersion

# what torch-neuronx calls its devices
DEVICE_TYPE = "neuron"


class Machine(Protocol):
    """Runs kernels on one rank.

    Attributes:
        target: the generation of the chip
        lnc: physical cores of the rank
    """

    @property
    def target(self) -> NcVersion: ...

    @property
    def lnc(self) -> int: ...

    def run(self, kernel: Any, *args: Any, group: str = "") -> Any:
        """What `kernel[lnc](*args)` returns, as tensors.

        Args:
            args: tensors, and what else the kernel takes.
            group: the name of the process group whose ranks run it together, each with arguments
                of its own; "" where it exchanges nothing.
        """
        ...


def machine_for(x: Tensor) -> Machine | None:
    """What runs the kernels of an operator that is called with `x`; None where torch is to
    compute it.

    Raises:
        ValueError: the environment variable names no backend.
        ImportError: the backend is `neuron`, and a package that it needs is missing.
    """
    if runs_on_device(x):
        from wantrn.kernels.neuron import device

        return device()
    chosen = setting()
    if chosen.backend is not Backend.SIM:
        return None
    # the simulator takes 0.3 s to import
    from wantrn.kernels.simulator import Simulator

    return Simulator(chosen.simulation)


def runs_on_device(x: Tensor) -> bool:
    """Whether a device computes the operators that are called with `x`.

    Raises:
        ValueError: the environment variable names no backend.
    """
    backend = setting().backend
    if backend is Backend.AUTO:
        return x.device.type == DEVICE_TYPE
    return backend is Backend.NEURON
