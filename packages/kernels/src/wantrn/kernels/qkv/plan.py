"""Which buffers `qkv_cte` has, how large they are, where they lie and how long they live.

The weight is cut along its columns into groups. While one group of columns is multiplied by all
tokens, the next one is loaded into the other of two buffers: each part of the weight is loaded
once, whatever the sizes. What remains to be chosen is how wide groups are, whether the tokens stay
in SBUF or are loaded again for each group, and whether Q and K wait in SBUF or in HBM for their
norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wantrn.kernels.nki import nl
from wantrn.kernels.qkv.options import Sizes
from wantrn.kernels.qkv.slabs import TILE, Segment, Slab, segments_of, slabs_of

# PSUM: three slabs of two banks, one in the making and two on their way out, then the tables of the
# rotation, two in a bank
SLAB_SLOTS = 3
SLAB_BANKS = 2
TABLE_BANKS = (6, 7)
BANK_BYTES = 2048
# an all-reduce of SBUF fails with fewer columns (observed in vllm-omni-neuron)
MIN_REDUCED = 512
# neutral block scales: as many as a matmul has columns
NEUTRAL_COLUMNS = 512


@dataclass(frozen=True)
class Choice(nl.NKIObject):
    """What distinguishes one plan from another.

    Attributes:
        group_slabs: slabs of a group, at most
        token_slots: tiles of tokens in SBUF at once; as many as there are: each is loaded once
        held: rows of Q and K wait in SBUF for their norm, not in HBM
        finish_slots: tiles that are normalised and rotated at once
    """

    group_slabs: int
    token_slots: int
    held: bool
    finish_slots: int


@dataclass(frozen=True)
class Buffer(nl.NKIObject):
    """One kind of buffer; lifetimes count groups of columns.

    Attributes:
        name: what it holds
        size: bytes of each partition of one slot
        slots: how many are taken in turns
        first, last: the groups between which it lives, both included
        address: first byte in each partition
    """

    name: str
    size: int
    slots: int
    first: int
    last: int
    address: int = 0

    def end(self) -> int:
        """The byte behind it."""
        return self.address + self.size * self.slots


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
        buffers: all of SBUF that the kernel uses
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
        return max([buffer.end() for buffer in self.buffers])

    def buffer(self, name: str) -> Any:
        """The buffer of that name, or None."""
        for buffer in self.buffers:
            if buffer.name == name:
                return buffer
        return None

    def tokens_stay(self) -> bool:
        """Whether tokens are loaded once, not for every group."""
        return self.choice.token_slots >= self.tiles


def groups_of(sizes: Sizes, group_slabs: int) -> tuple[tuple[tuple[int, int], ...], int]:
    """Groups of columns, and how many of them hold what is finished later."""
    slabs = slabs_of(sizes)
    later = len([slab for slab in slabs if slab.segment.finished_later])
    found = []
    for start, stop in ((0, later), (later, len(slabs))):
        for at in range(start, stop, group_slabs):
            found.append((at, min(at + group_slabs, stop)))
    return tuple(found), -(-later // group_slabs)


def columns_of(slabs: list[Slab], group: tuple[int, int]) -> int:
    """Columns of a group."""
    return sum([slab.width for slab in slabs[group[0] : group[1]]])


def plan_of(sizes: Sizes, choice: Choice, tiles: int, sbuf_limit: int) -> Plan:
    """The plan that follows from a choice.

    Raises:
        ValueError: the buffers do not fit.
    """
    groups, later = groups_of(sizes, choice.group_slabs)
    widest = max([columns_of(slabs_of(sizes), group) for group in groups])
    last = len(groups) - 1
    wanted = _streamed(sizes, choice, widest, last, later)
    if later:
        wanted = wanted + _finished(sizes, choice, tiles, last, later)
    buffers = _placed([buffer for buffer in wanted if buffer.size * buffer.slots])
    return Plan(sizes, tiles, choice, groups, later, buffers, sbuf_limit)


def _streamed(sizes: Sizes, choice: Choice, widest: int, last: int, later: int) -> list[Buffer]:
    """Operands of the matmul, vectors along the columns, and rows on their way out."""
    depth = -(-sizes.words() // TILE) * sizes.word_bytes()
    doubled = min(last + 1, 2)
    # what waits in SBUF is not staged, and there may be nothing else
    staged = last - later + 1 > 0 or not choice.held
    return [
        Buffer("weights", depth * widest, doubled, 0, last),
        Buffer("tokens", depth * TILE, choice.token_slots, 0, last),
        Buffer("row_scales", 4 if sizes.packed else 0, choice.token_slots, 0, last),
        Buffer("neutral", NEUTRAL_COLUMNS if sizes.packed else 0, 1, 0, last),
        Buffer("channel_scales", 4 * widest if sizes.packed else 0, doubled, 0, last),
        Buffer("bias", sizes.bias_bytes * widest, doubled, 0, last),
        Buffer("out", 2 * widest if staged else 0, 3, 0, last),
    ]


def _finished(sizes: Sizes, choice: Choice, tiles: int, last: int, later: int) -> list[Buffer]:
    """What norm and rotation need."""
    slabs = [slab for slab in slabs_of(sizes) if slab.segment.finished_later]
    segments = later_segments(sizes)
    widest = max([segment.width for segment in segments])
    row = sum([segment.width for segment in segments])
    group = max([columns_of(slabs_of(sizes), g) for g in groups_of(sizes, choice.group_slabs)[0]])
    turn = later - 1
    columns = len(segments) * tiles
    reduced = max(columns, MIN_REDUCED) if sizes.ranks > 1 else columns
    slots = choice.finish_slots
    normed, roped = (1 if sizes.norm else 0), (1 if sizes.rope else 0)
    held = [Buffer("rows", 2 * row, tiles, 0, last)]
    loaded = [Buffer("rows", 2 * row, slots + 1, turn, last)]
    return (held if choice.held else loaded) + [
        Buffer("gamma", 4 * group * normed, min(later, 2), 0, turn),
        Buffer("squares", 2 * max([slab.width for slab in slabs]) * normed, 1, 0, turn),
        Buffer("partials", 4 * len(slabs) * tiles * normed, 1, 0, turn),
        Buffer("sums", 4 * reduced * normed, 1, 0, turn),
        Buffer("all_sums", 4 * reduced * (1 if sizes.ranks > 1 else 0) * normed, 1, turn, turn),
        # the factor of each token and segment, and its negative
        Buffer("factors", 2 * 4 * columns, 1, 0, last),
        Buffer("angles", 4 * sizes.head_dim * roped, slots + 1, turn, last),
        Buffer("straight", 4 * widest * roped, slots, turn, last),
        Buffer("crossed", 4 * widest * roped, slots, turn, last),
    ]


def later_segments(sizes: Sizes) -> list[Segment]:
    """The segments that are finished later."""
    return [segment for segment in segments_of(sizes) if segment.finished_later]


def _placed(wanted: list[Buffer]) -> tuple[Buffer, ...]:
    """Each buffer at the lowest address at which none of those alive with it lies."""
    placed: list[Buffer] = []
    for buffer in wanted:
        size = -(-buffer.size // 4) * 4
        alive = [o for o in placed if o.first <= buffer.last and buffer.first <= o.last]
        address = 0
        moved = True
        while moved:
            moved = False
            for other in alive:
                if address < other.end() and other.address < address + size * buffer.slots:
                    address = other.end()
                    moved = True
        placed.append(Buffer(buffer.name, size, buffer.slots, buffer.first, buffer.last, address))
    return tuple(placed)
