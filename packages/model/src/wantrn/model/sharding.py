"""How tensor parallelism cuts every parameter of the transformer: one table, and what follows."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wantrn.model.config import WanConfig
from wantrn.model.slices import Slice

Shape = tuple[int, ...]


class Sharding(enum.Enum):
    """Which part of a parameter each of ``tp`` ranks has; ranks come in the order of the parts."""

    REPLICATED = "all of it"
    COLUMN = "output features: rows of a weight [I, H], entries of its bias [I]"
    ROW = "input features: columns of a weight [I, H]"
    QKV = "output features of Q, of K and of V, joined"
    HEADS = "channels of a norm that has one weight for each channel of all heads"


# The axis that is cut, and how many equal groups along it are cut each by itself; 0 for none.
_CUTS: Mapping[Sharding, tuple[int, int]] = {
    Sharding.REPLICATED: (0, 0),
    Sharding.COLUMN: (0, 1),
    Sharding.ROW: (1, 1),
    Sharding.QKV: (0, 3),
    Sharding.HEADS: (0, 1),
}

_TOP: Mapping[str, Sharding] = {
    f"{layer}.{leaf}": Sharding.REPLICATED
    for layer in (
        "patch_embedding",
        "time_embedding.linear_1",
        "time_embedding.linear_2",
        "time_embedding.proj",
        "text_embedding.linear_1",
        "text_embedding.linear_2",
        "proj_out",
    )
    for leaf in ("weight", "bias")
} | {"modulation": Sharding.REPLICATED}

# The bias of a row-parallel layer belongs to the sum over ranks. Every rank has it, and the first
# one adds it.
_BLOCK: Mapping[str, Sharding] = {
    "modulation": Sharding.REPLICATED,
    "self_attention.qkv.weight": Sharding.QKV,
    "self_attention.qkv.bias": Sharding.QKV,
    "self_attention.q_norm.weight": Sharding.HEADS,
    "self_attention.k_norm.weight": Sharding.HEADS,
    "self_attention.out.weight": Sharding.ROW,
    "self_attention.out.bias": Sharding.REPLICATED,
    "cross_norm.weight": Sharding.REPLICATED,
    "cross_norm.bias": Sharding.REPLICATED,
    "cross_attention.q.weight": Sharding.COLUMN,
    "cross_attention.q.bias": Sharding.COLUMN,
    "cross_attention.k.weight": Sharding.COLUMN,
    "cross_attention.k.bias": Sharding.COLUMN,
    "cross_attention.v.weight": Sharding.COLUMN,
    "cross_attention.v.bias": Sharding.COLUMN,
    "cross_attention.q_norm.weight": Sharding.HEADS,
    "cross_attention.k_norm.weight": Sharding.HEADS,
    "cross_attention.out.weight": Sharding.ROW,
    "cross_attention.out.bias": Sharding.REPLICATED,
    "feed_forward.up.weight": Sharding.COLUMN,
    "feed_forward.up.bias": Sharding.COLUMN,
    "feed_forward.down.weight": Sharding.ROW,
    "feed_forward.down.bias": Sharding.REPLICATED,
}


def sharding_of(name: str, replicate_cross_attention: bool = False) -> Sharding:
    """How the parameter with the native ``name`` is cut.

    Args:
        replicate_cross_attention: every rank has all heads of the cross-attention to the text.

    Raises:
        ValueError: the transformer has no such parameter.
    """
    block = re.fullmatch(r"blocks\.\d+\.(.+)", name)
    try:
        sharding = _TOP[name] if block is None else _BLOCK[block[1]]
    except KeyError:
        raise ValueError(f"{name} is no parameter of the transformer") from None
    if replicate_cross_attention and block and block[1].startswith("cross_attention."):
        return Sharding.REPLICATED
    return sharding


@dataclass(frozen=True)
class Shard:
    """What one rank of tensor parallelism has of the transformer.

    Attributes:
        tp: the number of ranks
        rank: which of them, 0 to ``tp - 1``
        replicate_cross_attention: see ``sharding_of``

    Raises:
        ValueError: ``tp`` or ``rank`` is out of its range.
    """

    tp: int
    rank: int
    replicate_cross_attention: bool = False

    def __post_init__(self) -> None:
        if self.tp < 1:
            raise ValueError(f"tp must be 1 or more, got {self.tp}")
        if not 0 <= self.rank < self.tp:
            raise ValueError(f"rank must be 0 to {self.tp - 1}, got {self.rank}")

    @classmethod
    def whole(cls) -> Shard:
        """All of it, on one rank."""
        return cls(1, 0)

    def check(self, config: WanConfig) -> None:
        """Raise ``ValueError`` naming the field of ``config`` that ``tp`` does not divide."""
        for field in ("num_attention_heads", "ffn_dim"):
            value = getattr(config, field)
            if value % self.tp:
                raise ValueError(f"{field} is {value}, which tp = {self.tp} does not divide")

    def sharding(self, name: str) -> Sharding:
        """How the parameter with the native ``name`` is cut; ``ValueError`` if there is none."""
        return sharding_of(name, self.replicate_cross_attention)

    def heads(self, config: WanConfig) -> range:
        """This rank's heads of self-attention. Raises as ``check``."""
        self.check(config)
        width = config.num_attention_heads // self.tp
        return range(self.rank * width, (self.rank + 1) * width)


WHOLE = Shard.whole()


def slices_of(shape: Shape, sharding: Sharding, shard: Shard) -> tuple[Slice, ...]:
    """The parts, all of one axis, that joined make what a rank has of a tensor of ``shape``.

    None at all where it has the whole tensor.

    Raises:
        ValueError: naming ``shape``, if it has no such axis or cannot be cut evenly.
    """
    axis, groups = _CUTS[sharding]
    if groups == 0:
        return ()
    if axis >= len(shape) or shape[axis] % (groups * shard.tp):
        raise ValueError(
            f"shape {list(shape)} cannot be cut for {shard.tp} ranks along axis {axis}"
            + (f" in each of {groups} parts" if groups > 1 else "")
        )
    size = shape[axis]
    width = size // groups // shard.tp
    starts = (group * size // groups + shard.rank * width for group in range(groups))
    return tuple(Slice(axis, start, start + width, size) for start in starts)


def local_shape(shape: Shape, sharding: Sharding, shard: Shard) -> Shape:
    """What ``cut`` makes of ``shape``. Raises as ``slices_of``."""
    slices = slices_of(shape, sharding, shard)
    if not slices:
        return shape
    axis = slices[0].axis
    return (*shape[:axis], sum(part.width for part in slices), *shape[axis + 1 :])


def cut(tensor: Tensor, sharding: Sharding, shard: Shard) -> Tensor:
    """What a rank has of ``tensor``: a view of it, a copy for ``QKV``. Raises as ``slices_of``."""
    slices = slices_of(tuple(tensor.shape), sharding, shard)
    parts = [tensor.narrow(part.axis, part.begin, part.width) for part in slices]
    match parts:
        case []:
            return tensor
        case [part]:
            return part
        case _:
            return torch.cat(parts, slices[0].axis)


def join(tensors: Sequence[Tensor], sharding: Sharding) -> Tensor:
    """The inverse of ``cut``: the tensor of which all ranks, in order, have ``tensors``.

    Raises:
        ValueError: there is none, replicas differ, or ``QKV`` cannot be taken apart.
    """
    if not tensors:
        raise ValueError("tensors is empty")
    axis, groups = _CUTS[sharding]
    if groups == 0:
        for rank, tensor in enumerate(tensors):
            if not torch.equal(tensor, tensors[0]):
                raise ValueError(f"tensors: the replicas of ranks 0 and {rank} differ")
        return tensors[0]
    for tensor in tensors:
        if axis >= tensor.ndim or tensor.shape[axis] % groups:
            raise ValueError(
                f"tensors: axis {axis} of {list(tensor.shape)} is no {groups} equal parts"
            )
    pieces = [tensor.chunk(groups, axis) for tensor in tensors]
    return torch.cat([piece[group] for group in range(groups) for piece in pieces], axis)
