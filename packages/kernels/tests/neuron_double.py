"""A double of torch-neuronx's wrapper of NKI kernels, which records what it is handed.

It stands for what is documented of `torch_neuronx.nki_hop.wrap_nki`: `wrap_nki(kernel)[lnc](*args)`
runs a kernel on tensors; what is no tensor is a constant of the kernel, which has to be hashable;
where a graph is traced, the call becomes a node of it. Values come from the simulator.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

import nkisim
from wantrn.kernels import neuron
from wantrn.kernels.process_carrier import ProcessCarrier

TARGET = "trn3"


@dataclass(frozen=True)
class Recorded:
    """One call."""

    kernel: str
    lnc: int
    args: tuple[Any, ...]


@dataclass
class Double:
    """What was recorded.

    Attributes:
        group: the process group whose ranks run a kernel with replica groups
    """

    group: str = ""
    calls: list[Recorded] = field(default_factory=list)

    def wrap_nki(self, kernel: Any) -> _Wrapped:
        assert isinstance(kernel, nkisim.Kernel), kernel
        return _Wrapped(kernel, self)

    def last(self) -> Recorded:
        return self.calls[-1]


@dataclass(frozen=True)
class _Wrapped:
    kernel: nkisim.Kernel
    double: Double
    lnc: int = 1

    def __getitem__(self, lnc: int) -> _Wrapped:
        return _Wrapped(self.kernel, self.double, lnc)

    def __call__(self, *args: Any) -> Any:
        constants = [arg for arg in args if not isinstance(arg, Tensor)]
        hash(tuple(constants))
        name = self.kernel.function.__name__
        self.double.calls.append(Recorded(name, self.lnc, args))
        key = len(_LAUNCHES)
        _LAUNCHES.append((self, args))
        results = _node([arg for arg in args if isinstance(arg, Tensor)], key)
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, tensors: Sequence[Tensor], args: tuple[Any, ...]) -> list[Tensor]:
        left = iter(tensors)
        given = [next(left) if isinstance(arg, Tensor) else arg for arg in args]
        kernel = self.kernel[self.lnc]
        if self.double.group and _exchanges(args):
            rank = nkisim.Rank(ProcessCarrier(self.double.group), self.lnc, TARGET)
            found = rank.run(kernel, *given)
        else:
            found = nkisim.simulate(kernel, target=TARGET)(*given)
        return list(found) if isinstance(found, (list, tuple)) else [found]


def _exchanges(args: tuple[Any, ...]) -> bool:
    return any(getattr(arg, "groups", getattr(arg, "replica_groups", ())) for arg in args)


# as torch-neuronx keeps what cannot stand in a graph
_LAUNCHES: list[tuple[_Wrapped, tuple[Any, ...]]] = []


@torch.library.custom_op("neuron_double::kernel", mutates_args=())
def _node(tensors: list[Tensor], key: int) -> list[Tensor]:
    wrapped, args = _LAUNCHES[key]
    return wrapped.run(tensors, args)


@_node.register_fake
def _(tensors: list[Tensor], key: int) -> list[Tensor]:
    """Shapes from a run on ones, as the wrapper's."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    wrapped, args = _LAUNCHES[key]
    with unset_fake_temporarily():
        ones = [torch.ones(tuple(x.shape)).to(x.dtype) for x in tensors]
        found = wrapped.run(ones, args)
    return [tensors[0].new_empty(x.shape, dtype=x.dtype) for x in found]


@contextmanager
def installed(double: Double, platform: Callable[[], str] = lambda: TARGET) -> Iterator[Double]:
    """torch-neuronx is there, and is the double."""
    modules = {name: ModuleType(name) for name in ("torch_neuronx", *_PARTS)}
    modules["torch_neuronx.nki_hop"].__dict__["wrap_nki"] = double.wrap_nki
    modules["torch_neuronx.utils"].__dict__["get_platform_target"] = platform
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    neuron.device.cache_clear()
    try:
        yield double
    finally:
        neuron.device.cache_clear()
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


_PARTS = ("torch_neuronx.nki_hop", "torch_neuronx.utils")
