"""The plan that follows from a choice: how large each buffer is, and where it lies.

Not for use in a kernel.
"""

from __future__ import annotations

from wantrn.kernels.qkv.options import Sizes
from wantrn.kernels.qkv.plan import Choice, Plan, columns_of, groups_of
from wantrn.kernels.qkv.slabs import (
    TILE,
    alike_segments,
    later_segments,
    slabs_of,
    summed_segments,
)
from wantrn.kernels.sbuf import Buffer, placed

# an all-reduce of SBUF fails with fewer columns (observed in vllm-omni-neuron)
MIN_REDUCED = 512
# neutral block scales: as many as a matmul has columns
NEUTRAL_COLUMNS = 512
# rows of caches for the tokens of a tile, loaded when it is stored
ROW_SLOTS = 4


def plan_of(sizes: Sizes, choice: Choice, tiles: int, sbuf_limit: int) -> Plan:
    """The plan that follows from a choice.

    Args:
        tiles: of the core that has most of them.
        sbuf_limit: bytes of a partition that there are.

    Raises:
        ValueError: the buffers do not fit.
    """
    groups, later = groups_of(sizes, choice.group_slabs)
    widths = [columns_of(slabs_of(sizes), group) for group in groups]
    last = len(groups) - 1
    wanted = _streamed(sizes, choice, tiles, widths, later)
    if later:
        wanted += _norm(sizes, choice, tiles, last, later, max(widths[:later]))
        wanted += _finish(sizes, choice, tiles, last, later - 1)
    else:
        wanted += _squares(sizes, tiles, last)
    if sizes.squared_sums:
        segments = len(summed_segments(sizes))
        wanted.append(Buffer("totals", 4 * segments, min(tiles, 2), last, last))
    if sizes.mapped:
        wanted.append(Buffer("row_slots", 4, min(tiles, ROW_SLOTS), 0, last))
    return Plan(sizes, tiles, choice, groups, later, placed(wanted), sbuf_limit)


def _streamed(
    sizes: Sizes, choice: Choice, tiles: int, widths: list[int], later: int
) -> list[Buffer]:
    """Operands of the matmul, vectors along the columns, and rows on their way out."""
    depth = -(-sizes.words() // TILE) * sizes.word_bytes()
    widest, last = max(widths), len(widths) - 1
    doubled = min(len(widths), 2)
    # what waits in SBUF is not staged
    rows_out = (len(widths) - later) * -(-tiles // choice.stride)
    if not choice.held:
        rows_out += later * tiles
    scales = 1 if sizes.packed else 0
    return [
        Buffer("weights", depth * widest, doubled, 0, last),
        Buffer("tokens", depth * TILE, choice.token_slots, 0, last),
        Buffer("row_scales", 4 * scales, choice.token_slots, 0, last),
        Buffer("neutral", NEUTRAL_COLUMNS * scales, 1, 0, last),
        Buffer("channel_scales", 4 * widest * scales, doubled, 0, last),
        Buffer("bias", sizes.bias_bytes * widest, doubled, 0, last),
        Buffer(
            "out",
            2 * widest * choice.stride if rows_out else 0,
            min(rows_out, 3 if choice.stride == 1 else 2),
            0,
            last,
        ),
    ]


def _norm(
    sizes: Sizes, choice: Choice, tiles: int, last: int, later: int, widest: int
) -> list[Buffer]:
    """Squares and their sums, a column for each tile and segment; `widest`: columns of a group."""
    segments = later_segments(sizes)
    columns = len(segments) * tiles
    # the factor of each token and segment, and its negative
    found = [Buffer("factors", 2 * 4 * columns, 1, 0, last)]
    if not sizes.norm:
        return found + _squares(sizes, tiles, last)
    turn = later - 1
    # without an exchange, tiles are summed one by one when they are finished
    summed = turn if sizes.ranks > 1 else last
    reduced = max(columns, MIN_REDUCED) if sizes.ranks > 1 else columns
    found.append(Buffer("gamma", 4 * widest, min(later, 2), 0, turn))
    if sizes.squared_sums:
        found += _squares(sizes, tiles, last)
    else:
        found += _squares(sizes, tiles, summed, turn)
    found.append(Buffer("sums", 4 * reduced, 1, 0, summed))
    if sizes.ranks > 1:
        found.append(Buffer("all_sums", 4 * reduced, 1, turn, turn))
    return found


def _squares(sizes: Sizes, tiles: int, last: int, squared: int | None = None) -> list[Buffer]:
    """The squares of a slab, which nobody reads, and their sums, which are read up to group `last`;
    `squared`: the last group with columns that are summed, if it is not that one."""
    segments = summed_segments(sizes)
    slabs = [slab for slab in slabs_of(sizes) if slab.segment.number < len(segments)]
    if not slabs:
        return []
    widest = max(slab.width for slab in slabs)
    return [
        Buffer("squares", 2 * widest, 1, 0, last if squared is None else squared),
        Buffer("partials", 4 * len(slabs) * tiles, 1, 0, last),
    ]


def _finish(sizes: Sizes, choice: Choice, tiles: int, last: int, turn: int) -> list[Buffer]:
    """Rows that wait, and what rotates them; `turn`: the group that completes them."""
    row = sum(segment.width for segment in later_segments(sizes))
    block, blocks = 2 * row * choice.stride, -(-tiles // choice.stride)
    found = [Buffer("rows", block, blocks, 0, last)]
    if not choice.held:
        slots = choice.finish_slots + 1 if choice.stride == 1 else 2
        found = [Buffer("rows", block, min(slots, blocks), turn, last)]
    together = max(sum(s.width for s in alike) for alike in alike_segments(sizes))
    slots = min(choice.finish_slots, tiles * len(alike_segments(sizes)))
    if sizes.rope:
        angles = min(choice.finish_slots + 1, tiles)
        found.append(Buffer("angles", 4 * sizes.head_dim, angles, turn, last))
    if sizes.rope or sizes.per_head:
        found.append(Buffer("straight", 4 * together, slots, turn, last))
        found.append(Buffer("crossed", 4 * together, slots, turn, last))
    if sizes.per_head:
        heads = together // sizes.head_dim
        rows = len(later_segments(sizes))
        found.append(Buffer("head_factors", 4 * heads, slots, turn, last))
        found.append(Buffer("head_gamma", 4 * rows * sizes.head_dim, 1, 0, last))
        if sizes.centred:
            found.append(Buffer("head_means", 4 * heads, slots, turn, last))
        if sizes.shifted:
            found.append(Buffer("head_beta", 4 * rows * sizes.head_dim, 1, 0, last))
    return found
