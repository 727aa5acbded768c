"""Which buffers `qkv_cte` has, how large they are, where they lie and how long they live.

The weight is cut along its columns into groups. While one group of columns is multiplied by all
tokens, the next one is loaded into the other of two buffers: each part of the weight is loaded
once, whatever the sizes. What remains to be chosen is how wide groups are, whether the tokens stay
in SBUF or are loaded again for each group, and whether Q and K wait in SBUF or in HBM for their
norm.
"""

from __future__ import annotations

from dataclasses import dataclass

from wantrn.kernels.nki import nl
from wantrn.kernels.qkv.options import Sizes
from wantrn.kernels.qkv.slabs import Slab, slabs_of
from wantrn.kernels.sbuf import Buffer, end_of

# PSUM: slabs of two banks, one in the making and the others on their way out; the last two banks
# are for the tables of the rotation, where there is one
SLAB_BANKS = (0, 2, 4, 6)
TABLE_BANKS = (6, 7)
# tiles of tokens that are loaded ahead at most: more would only delay the weight
AHEAD = 3


@dataclass(frozen=True)
class Choice(nl.NKIObject):
    """What distinguishes one plan from another.

    Attributes:
        group_slabs: slabs of a group, at most
        token_slots: tiles of tokens in SBUF at once; as many as there are: each is loaded once
        held: rows of Q and K wait in SBUF for their norm, not in HBM
        finish_slots: tiles that are normalised and rotated at once
        stride: tiles of a block, among which neighbouring tokens are dealt out; see `Block`
    """

    group_slabs: int
    token_slots: int
    held: bool
    finish_slots: int
    stride: int = 1


@dataclass(frozen=True)
class Plan(nl.NKIObject):
    """The buffers of a core. One that does not fit cannot be made.

    Attributes:
        sizes: of the calls that it is for
        tiles: tiles of tokens that the busier core has
        choice: what was chosen
        groups: the slabs of each group, first and behind the last; those of Q and K that are
            finished later come first and share no group with others
        later_groups: how many groups those are
        buffers: all of SBUF that the kernel uses; the stages of their lives are groups of columns
        sbuf_limit: bytes of a partition that there are

    Raises:
        ValueError: the buffers do not fit.
    """

    sizes: Sizes
    tiles: int
    choice: Choice
    groups: tuple[tuple[int, int], ...]
    later_groups: int
    buffers: tuple[Buffer, ...]
    sbuf_limit: int

    def __post_init__(self) -> None:
        if self.sbuf_bytes() > self.sbuf_limit:
            raise ValueError(
                f"the buffers take {self.sbuf_bytes()} bytes of each partition; SBUF has "
                f"{self.sbuf_limit}"
            )

    def sbuf_bytes(self) -> int:
        """Bytes of each partition up to the last one in use."""
        return end_of(self.buffers)

    def slab_banks(self) -> tuple[int, ...]:
        """The banks of PSUM that slabs begin with."""
        if not self.sizes.rope:
            return SLAB_BANKS
        return tuple([bank for bank in SLAB_BANKS if bank < TABLE_BANKS[0]])

    def tokens_stay(self) -> bool:
        """Whether tokens are loaded once, not for every group."""
        return self.choice.token_slots >= self.tiles


def groups_of(sizes: Sizes, group_slabs: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """Groups of columns, and how many of them hold what is finished later."""
    slabs = slabs_of(sizes)
    later = len([slab for slab in slabs if slab.segment.finished_later])
    found = []
    for start, stop in ((0, later), (later, len(slabs))):
        # the narrow one comes first, for the least to wait for at the start
        first = start + (stop - start) % group_slabs
        if first > start:
            found.append((start, first))
        for at in range(first, stop, group_slabs):
            found.append((at, at + group_slabs))
    return tuple(found), -(-later // group_slabs)


def columns_of(slabs: list[Slab], group: tuple[int, int]) -> int:
    """Columns of a group."""
    return sum([slab.width for slab in slabs[group[0] : group[1]]])
