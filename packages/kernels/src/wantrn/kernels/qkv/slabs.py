"""How columns and tokens are cut: segments, slabs of whole heads, tiles of tokens.

None of it depends on the plan, and sums of squares are taken slab by slab: that is why a plan
changes no bit of the result.
"""

from __future__ import annotations

from wantrn.kernels.nki import nl
from wantrn.kernels.qkv.options import Sizes

# tokens of a tile: one for each partition
TILE = 128
# columns of a slab at most: two banks of PSUM
SLAB = 1024
# columns of one matmul: one bank
BANK = 512


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


class TokenTile(nl.NKIObject):
    """Tokens `first:first + rows`; `number` on its core."""

    number: int
    first: int
    rows: int


def segments_of(sizes: Sizes) -> list[Segment]:
    """Q, and K and V where there are any."""
    found: list[Segment] = []
    first = 0
    for number, heads in enumerate((sizes.heads, sizes.kv_heads, sizes.kv_heads)):
        if heads:
            later = number < 2 and (sizes.norm or sizes.rope)
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


def tiles_of(tokens: int, core: int, cores: int) -> list[TokenTile]:
    """The tiles of one core of a rank: a run of whole tiles, the odd one for the first."""
    count = -(-tokens // TILE)
    each = -(-count // cores)
    found: list[TokenTile] = []
    for index in range(core * each, min((core + 1) * each, count)):
        first = index * TILE
        found.append(TokenTile(number=len(found), first=first, rows=min(TILE, tokens - first)))
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
