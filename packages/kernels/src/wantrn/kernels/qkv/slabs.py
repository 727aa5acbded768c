"""How columns and tokens are cut: segments, slabs of whole heads, tiles of tokens.

None of it depends on the plan, and sums of squares are taken slab by slab: that is why a plan
changes no bit of the result.
"""

from __future__ import annotations

from wantrn.kernels.nki import nl
from wantrn.kernels.psum import BANK
from wantrn.kernels.qkv.options import Sizes
from wantrn.kernels.sbuf import PARTITIONS

# tokens of a tile: one for each partition
TILE = PARTITIONS
# columns of a slab at most: two banks of PSUM
SLAB = 2 * BANK


class Segment(nl.NKIObject):
    """Q, K or V: columns `first:first + width`.

    Attributes:
        number: 0, 1, 2
        finished_later: it is normalised or rotated once its rows are complete
        partials: sums of squares of a token, one for each slab
    """

    number: int
    first: int
    width: int
    finished_later: bool
    partials: int


class Slab(nl.NKIObject):
    """Columns `first:first + width`, whole heads of one segment; `number` within the segment."""

    segment: Segment
    number: int
    first: int
    width: int

    def pieces(self) -> list[tuple[int, int]]:
        """Columns of each matmul, from and to, counted from the slab's first."""
        return [(at, min(at + BANK, self.width)) for at in range(0, self.width, BANK)]


class Block(nl.NKIObject):
    """`tokens` tokens from `first` on, dealt out to `stride` tiles in turns; `number` on its core.

    So a partition has neighbouring tokens, one of each tile, and what is stored head by head goes
    to HBM in runs of `stride` tokens.
    """

    number: int
    first: int
    tokens: int
    stride: int


class TokenTile(nl.NKIObject):
    """Every `block.stride`-th token of a block, `rows` of them; `number` on its core.

    Attributes:
        index: within the block
    """

    number: int
    block: Block
    index: int
    rows: int

    def tokens(self) -> slice:
        """Which they are."""
        first = self.block.first + self.index
        return slice(first, first + (self.rows - 1) * self.block.stride + 1, self.block.stride)

    def is_last(self) -> bool:
        """Whether its block ends with it."""
        return self.index == self.block.stride - 1


class Run(nl.NKIObject):
    """Tokens of a block that are stored at once: of each of `partitions` partitions, from
    `partition` on, `width` tokens, from number `index` on.

    Attributes:
        first: the first token, counted from the block's first
    """

    first: int
    partition: int
    partitions: int
    index: int
    width: int


def runs_of(block: Block, first: int, count: int) -> list[Run]:
    """`count` tokens of a block, from its token `first` on, in as few runs as there can be.

    All partitions have `stride` tokens, but the first and the last one may have fewer.
    """
    found: list[Run] = []
    at, end, stride = first, first + count, block.stride
    while at < end:
        index, partitions = at % stride, 1
        width = min(stride - index, end - at)
        if width == stride:
            partitions = (end - at) // stride
        found.append(
            Run(
                first=at,
                partition=at // stride,
                partitions=partitions,
                index=index,
                width=width,
            )
        )
        at += partitions * width
    return found


def segments_of(sizes: Sizes) -> list[Segment]:
    """Q, and K and V where there are any."""
    found: list[Segment] = []
    first = 0
    for number, heads in enumerate((sizes.heads, sizes.kv_heads, sizes.kv_heads)):
        if heads:
            later = number < 2 and (sizes.norm or sizes.per_head or sizes.rope)
            found.append(
                Segment(
                    number=number,
                    first=first,
                    width=heads * sizes.head_dim,
                    finished_later=later,
                    partials=-(-heads // _heads_of_a_slab(heads, sizes.head_dim)),
                )
            )
        first += heads * sizes.head_dim
    return found


def later_segments(sizes: Sizes) -> list[Segment]:
    """The segments that are finished later."""
    return [segment for segment in segments_of(sizes) if segment.finished_later]


def summed_segments(sizes: Sizes) -> list[Segment]:
    """The segments whose squares are summed: the first ones, if any."""
    if sizes.squared_sums:
        return segments_of(sizes)
    return later_segments(sizes) if sizes.norm else []


def alike_segments(sizes: Sizes) -> list[list[Segment]]:
    """The segments that are finished later, those together that can be rotated together: Q and K
    if they have as many heads."""
    segments = later_segments(sizes)
    if len(segments) == 2 and segments[0].width == segments[1].width:
        return [segments]
    return [[segment] for segment in segments]


def _heads_of_a_slab(heads: int, head_dim: int) -> int:
    """As many heads as two banks hold, and less where that makes slabs of more equal widths."""
    most = max(SLAB // head_dim, 1)
    return -(-heads // -(-heads // most))


def slabs_of(sizes: Sizes) -> list[Slab]:
    """All slabs, in the order of their columns."""
    found: list[Slab] = []
    for segment in segments_of(sizes):
        step = _heads_of_a_slab(segment.width // sizes.head_dim, sizes.head_dim) * sizes.head_dim
        for number, at in enumerate(range(0, segment.width, step)):
            found.append(
                Slab(
                    segment=segment,
                    number=number,
                    first=segment.first + at,
                    width=min(step, segment.width - at),
                )
            )
    return found


def tile_count(tokens: int, cores: int) -> int:
    """Tiles of the core that has most of them, which is the first."""
    return -(-tokens // (TILE * cores))


def tiles_of(tokens: int, core: int, cores: int, stride: int) -> list[TokenTile]:
    """The tiles of one core of a rank, in blocks of `stride`.

    Each core has a run of as many tokens as fill whole tiles, the last one what is left.
    """
    each = tile_count(tokens, cores) * TILE
    end = min((core + 1) * each, tokens)
    found: list[TokenTile] = []
    for number, first in enumerate(range(core * each, end, stride * TILE)):
        count = min(stride * TILE, end - first)
        tiles = -(-count // TILE)
        block = Block(number=number, first=first, tokens=count, stride=tiles)
        for index in range(tiles):
            rows = -(-(count - index) // tiles)
            found.append(TokenTile(number=len(found), block=block, index=index, rows=rows))
    return found


def depth_tiles(words: int) -> list[list[tuple[int, int]]]:
    """For each 128 rows of the weight, the runs of partitions that are contracted at once.

    The MX matmul takes 32, 64 or 128 partitions, so a last tile of 96 is two runs.
    """
    found: list[list[tuple[int, int]]] = []
    for at in range(0, words, TILE):
        rows = min(TILE, words - at)
        found.append([(0, 64), (64, 32)] if rows == 96 else [(0, rows)])
    return found
