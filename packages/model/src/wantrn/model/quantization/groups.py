"""Which linear layers of the transformer are FP8, and up to which number."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from wantrn.kernels.row_mx import OCP_LIMIT, TRN2_LIMIT
from wantrn.model.config import WanConfig

LIMITS = (OCP_LIMIT, TRN2_LIMIT)
"""The largest code: 448 for Trainium3, 240 for codes that Trainium2 reads alike."""


class Group(enum.Enum):
    """The linear layers of every block that are quantized together; values are native names."""

    SELF_ATTENTION = "self_attention"
    CROSS_ATTENTION = "cross_attention"
    FEED_FORWARD = "feed_forward"


_LINEARS: Mapping[Group, tuple[str, ...]] = {
    Group.SELF_ATTENTION: ("qkv", "out"),
    Group.CROSS_ATTENTION: ("q", "k", "v", "out"),
    Group.FEED_FORWARD: ("up", "down"),
}


@dataclass(frozen=True)
class QuantizationOptions:
    """What to quantize, and how.

    Attributes:
        groups: what becomes FP8; all other parameters stay as they are
        limit: one of ``LIMITS``; the largest magnitude of a code

    Raises:
        ValueError: no group, or another limit.
    """

    groups: frozenset[Group] = frozenset(Group)
    limit: float = OCP_LIMIT

    def __post_init__(self) -> None:
        if not self.groups:
            raise ValueError(f"groups is empty; allowed are {_names()}")
        if self.limit not in LIMITS:
            raise ValueError(f"limit must be one of {LIMITS}, got {self.limit}")

    def describe(self) -> str:
        """In words: ``self_attention, feed_forward, up to 448``."""
        return f"{_names(self.groups)}, up to {self.limit:g}"


def parse_group(name: str) -> Group:
    """The group called ``name``; ``ValueError`` naming it and the groups that there are."""
    try:
        return Group(name)
    except ValueError:
        raise ValueError(f"unknown group {name!r}; allowed are {_names()}") from None


def quantized_layers(config: WanConfig, groups: frozenset[Group]) -> tuple[str, ...]:
    """Native names of the layers in ``groups``, such as ``blocks.0.self_attention.qkv``.

    Block by block; within one, in the order of ``Group``.
    """
    return tuple(
        f"blocks.{index}.{group.value}.{linear}"
        for index in range(config.num_layers)
        for group in Group
        if group in groups
        for linear in _LINEARS[group]
    )


def _names(groups: Collection[Group] = tuple(Group)) -> str:
    return ", ".join(group.value for group in Group if group in groups)
