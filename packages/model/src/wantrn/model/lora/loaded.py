"""The tensors of a LoRA as the transformer's own layers have them, on one rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from wantrn.model.checkpoints.native import (
    Layout,
    native_parameters,
    native_shapes,
    to_rotate_half,
)
from wantrn.model.checkpoints.values import convert
from wantrn.model.config import WanConfig
from wantrn.model.errors import CheckpointError
from wantrn.model.lora.adapters import Adapters, Delta, SidePath
from wantrn.model.lora.plan import Difference, LoraPlan, LowRankChange
from wantrn.model.sharding import WHOLE, Shard, Sharding, cut, local_shape


@dataclass(frozen=True)
class Lora:
    """One LoRA at the strength that its file gives it.

    Attributes:
        paths: by native name of a linear layer.
        offsets: fp32, by native name of a bias, table or norm's parameter.
    """

    paths: Mapping[str, tuple[SidePath, ...]]
    offsets: Mapping[str, Tensor]

    @property
    def nbytes(self) -> int:
        """The memory of its tensors."""
        sides = [path for paths in self.paths.values() for path in paths]
        tensors = [*self.offsets.values(), *(path.up for path in sides)]
        tensors += [path.down for path in sides if path.down is not None]
        return sum(tensor.nbytes for tensor in tensors)


@dataclass(frozen=True)
class LoraReader:
    """Reads what one rank needs of LoRAs.

    Attributes:
        config: of the transformer.
        dtype: in which a layer computes, by the native name of its weight.
        shard: this rank's part of the transformer.
        device: where the transformer is.
    """

    config: WanConfig
    dtype: Callable[[str], torch.dtype]
    shard: Shard = WHOLE
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def read(self, plan: LoraPlan) -> Lora:
        """All tensors of a LoRA, cut as the transformer's own are: of a layer that is cut by output
        features, B is; by input features, A is.

        Raises:
            CheckpointError: naming file and key, of values that are not finite (be they another
                rank's), or a file that is no longer what it was.
        """
        places = self._places()
        paths: dict[str, list[SidePath]] = {}
        offsets: dict[str, Tensor] = {}
        for change in plan.low_rank:
            place = places[change.parameter]
            paths.setdefault(place.layer, []).append(self._side_path(plan, change, place))
        for difference in plan.differences:
            place = places[difference.parameter]
            if place.is_weight:
                values = self._load(plan, difference.key, place.cut, self.dtype(place.name))
                up = place.rows(values).flatten(1).to(self.device)
                paths.setdefault(place.layer, []).append(
                    SidePath(None, up, begin=place.part * up.shape[0])
                )
            else:
                self._add_offset(plan, difference, place, offsets)
        return Lora(
            {layer: tuple(found) for layer, found in paths.items()},
            {name: offset.to(self.device) for name, offset in offsets.items()},
        )

    def _places(self) -> dict[str, _Place]:
        """Where the canonical tensors are in the transformer."""
        heads = len(self.shard.heads(self.config))
        shapes = native_shapes(self.config)
        found = {}
        for name, parameter in native_parameters(self.config).items():
            sharding = self.shard.sharding(name)
            shape = local_shape(shapes[name], sharding, self.shard)
            for part, source in enumerate(parameter.sources):
                found[source] = _Place(name, part, parameter.layout, sharding, shape, heads)
        return found

    def _side_path(self, plan: LoraPlan, change: LowRankChange, place: _Place) -> SidePath:
        dtype = self.dtype(place.name)
        row = place.cut is Sharding.ROW
        whole = Sharding.REPLICATED
        down = self._load(plan, change.down, place.cut if row else whole, dtype)
        up = self._load(plan, change.up, whole if row else place.cut, dtype)
        up = place.rows(up.flatten(1))
        return SidePath(
            down.flatten(1).to(self.device),
            up.to(self.device),
            self._factor(plan, change),
            place.part * up.shape[0],
        )

    def _add_offset(
        self, plan: LoraPlan, change: Difference, place: _Place, offsets: dict[str, Tensor]
    ) -> None:
        values = place.rows(self._load(plan, change.key, place.cut, torch.float32))
        factor = 1.0 if change.pair is None else self._factor(plan, change.pair)
        whole = offsets.setdefault(place.name, torch.zeros(place.shape))
        whole.narrow(0, place.part * values.shape[0], values.shape[0]).add_(values, alpha=factor)

    def _load(self, plan: LoraPlan, key: str, sharding: Sharding, dtype: torch.dtype) -> Tensor:
        # whole, so that all ranks find the same fault
        where = f"{plan.store.info(key).file}: {key}"
        whole = convert(plan.store.load(key), dtype, where)
        part = cut(whole, sharding, self.shard)
        return part if part is whole else part.clone()

    def _factor(self, plan: LoraPlan, change: LowRankChange) -> float:
        alpha = None
        if change.alpha is not None:
            alpha = float(plan.store.load(change.alpha).reshape(()))
            if not math.isfinite(alpha):
                raise CheckpointError(f"{plan.store.source}: {change.alpha} is {alpha}")
        return plan.strength.factor(change.layer, change.rank, alpha)


@dataclass(frozen=True)
class _Place:
    """Where a canonical tensor is: a part of a native parameter.

    Attributes:
        name: of the native parameter.
        part: which of its equal parts along the first axis.
        shape: of the native parameter, on this rank.
        heads: of self-attention, on this rank.
    """

    name: str
    part: int
    layout: Layout
    sharding: Sharding
    shape: tuple[int, ...]
    heads: int

    @property
    def layer(self) -> str:
        """The layer that the parameter is the weight of."""
        return self.name.removesuffix(".weight")

    @property
    def is_weight(self) -> bool:
        """Whether it is the matrix of a linear layer."""
        return self.name.endswith(".weight") and len(self.shape) == 2

    @property
    def cut(self) -> Sharding:
        """How the canonical tensor is cut, which joined with others makes the parameter."""
        return Sharding.COLUMN if self.sharding is Sharding.QKV else self.sharding

    def rows(self, values: Tensor) -> Tensor:
        """Rows in the order that the parameter has them."""
        rotated = self.layout is Layout.ROTARY or (self.layout is Layout.QKV and self.part < 2)
        return to_rotate_half(values, self.heads) if rotated else values


def combined(loras: Sequence[tuple[Lora, float]], layers: Callable[[str], bool]) -> Adapters:
    """Several LoRAs, each with a factor, added up.

    Args:
        layers: whether a native name is that of a linear layer.
    """
    paths: dict[str, tuple[SidePath, ...]] = {}
    offsets: dict[str, Tensor] = {}
    for lora, factor in loras:
        for layer, found in lora.paths.items():
            paths[layer] = (*paths.get(layer, ()), *(path.times(factor) for path in found))
        for name, offset in lora.offsets.items():
            scaled = offset * factor
            offsets[name] = offsets[name] + scaled if name in offsets else scaled
    biases = {
        stem: offsets.pop(name)
        for name in tuple(offsets)
        if name.endswith(".bias") and layers(stem := name.removesuffix(".bias"))
    }
    return Adapters.nested(
        {name: Delta(paths.get(name, ()), biases.get(name)) for name in {**paths, **biases}},
        offsets,
    )
