"""What LoRAs add to a transformer while it computes. Its own parameters never change.

``Adapters`` are values that are handed down from call to call, as the modules are nested, so passes
with other LoRAs, or none, can follow each other on the same transformer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from torch import Tensor

from wantrn.kernels import ops

T = TypeVar("T")


@dataclass(frozen=True)
class SidePath:
    """``scale * (x down.T) up.T``, added to some columns of a layer's result.

    Attributes:
        down: ``[R, K]``; None where ``up`` is a change of full rank.
        up: ``[columns, R]`` or ``[columns, K]``.
        scale: a factor of the side path.
        begin: the first of the columns.
    """

    down: Tensor | None
    up: Tensor
    scale: float = 1.0
    begin: int = 0

    def times(self, factor: float) -> SidePath:
        """The same, ``factor`` times as strong."""
        return replace(self, scale=self.scale * factor)

    def add_to(self, y: Tensor, x: Tensor) -> None:
        """Add it in place to the layer's result ``y`` ``[..., I]`` of ``x`` ``[..., K]``, which has
        the dtype of ``down`` and ``up``."""
        inner = x if self.down is None else ops.linear(x, self.down, None)
        if self.scale != 1:
            inner = inner * self.scale
        columns = y.narrow(-1, self.begin, self.up.shape[0])
        columns.add_(ops.linear(inner, self.up, None))


@dataclass(frozen=True)
class Delta:
    """What is added to one linear layer.

    Attributes:
        paths: one for each LoRA and, in a fused layer, each part; they read the layer's input.
        bias: fp32 ``[I]``, added to the layer's bias.
    """

    paths: tuple[SidePath, ...] = ()
    bias: Tensor | None = None

    def add_to(self, y: Tensor, x: Tensor) -> Tensor:
        """The layer's result ``y`` ``[..., I]``, changed in place, of ``x`` ``[..., K]``."""
        for path in self.paths:
            path.add_to(y, x)
        return y

    def bias_of(self, bias: Tensor) -> Tensor:
        """The bias to compute with instead of the layer's."""
        return bias if self.bias is None else (bias.float() + self.bias).to(bias.dtype)


@dataclass(frozen=True)
class Adapters:
    """What is added to a module and to those within it; nothing at all by default.

    Attributes:
        deltas: for its linear layers, by name in the module.
        offsets: fp32, for its other parameters, by name in the module.
        parts: for the modules within it, by name.
    """

    deltas: Mapping[str, Delta] = field(default_factory=dict)
    offsets: Mapping[str, Tensor] = field(default_factory=dict)
    parts: Mapping[str, Adapters] = field(default_factory=dict)

    @classmethod
    def nested(cls, deltas: Mapping[str, Delta], offsets: Mapping[str, Tensor]) -> Adapters:
        """From names that begin with those of the modules, ``blocks.0.self_attention.qkv``."""
        inner_deltas = _by_module(deltas)
        inner_offsets = _by_module(offsets)
        return cls(
            {name: delta for name, delta in deltas.items() if "." not in name},
            {name: offset for name, offset in offsets.items() if "." not in name},
            {
                name: cls.nested(inner_deltas.get(name, {}), inner_offsets.get(name, {}))
                for name in {**inner_deltas, **inner_offsets}
            },
        )

    def of(self, part: str) -> Adapters:
        """For a module within this one."""
        return self.parts.get(part, NONE)

    def delta(self, layer: str) -> Delta | None:
        """For a linear layer of the module; None where nothing is added."""
        return self.deltas.get(layer)

    def shifted(self, name: str, parameter: Tensor) -> Tensor:
        """The values of a parameter to compute with: itself where nothing is added."""
        offset = self.offsets.get(name)
        return parameter if offset is None else parameter + offset


NONE = Adapters()
"""Nothing is added to anything."""


def _by_module(values: Mapping[str, T]) -> dict[str, dict[str, T]]:
    found: dict[str, dict[str, T]] = {}
    for name, value in values.items():
        module, dot, rest = name.partition(".")
        if dot:
            found.setdefault(module, {})[rest] = value
    return found
