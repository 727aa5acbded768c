"""`RingPlan`: the buffers of a ring kernel, from which they are allocated and which must fit."""

from __future__ import annotations

from dataclasses import dataclass

from wantrn.kernels.nki import nl
from wantrn.kernels.psum import BANK_BYTES
from wantrn.kernels.sbuf import PARTITIONS

# Groups of 128 queries in a block. Their scores against 128 keys fill two banks, so that two such
# tiles and the sums of eight groups are seven. Half as many would cost Vector and Scalar 60 more
# cycles on 512.
BLOCK_GROUPS = 8
# tiles of 128 tokens that are transposed together
TURNED_TILES = 8
# heads whose tokens are loaded together
LOADED_HEADS = 8
# exponentials of 128 queries that the ring with a maximum transposes at a time: a PSUM bank of them
PORTION_BYTES = BANK_BYTES
# such portions between the matmuls
PORTION_WEIGHTS = 3


@dataclass(frozen=True)
class RingShape(nl.NKIObject):
    """What the plan depends on.

    Attributes:
        heads: batch times heads.
        head_dim: D.
        queries, keys: tokens of this rank.
        itemsize: bytes of the dtype of Q, K and V.
        ranks, cores: of the ring, and of each rank.
    """

    heads: int
    head_dim: int
    queries: int
    keys: int
    itemsize: int
    ranks: int
    cores: int

    def query_groups(self) -> int:
        """Groups of 128 queries."""
        return -(-self.queries // PARTITIONS)

    def key_tiles(self) -> int:
        """Tiles of 128 keys."""
        return -(-self.keys // PARTITIONS)

    def columns(self) -> int:
        """A row of the values with its one, or of their sum with that of the weights."""
        return self.head_dim + 1


@dataclass(frozen=True)
class RingPlan(nl.NKIObject):
    """How much of a ring is in SBUF at a time.

    Attributes:
        shape: of the problem.
        wide: whether a matmul may fill more than one PSUM bank (Trainium3).
        block_tiles: tiles of 128 keys in a K/V block.
        weights: tiles of exponentials between the two matmuls; while the sums of a block are folded
            away, the first matmul runs ahead by as many.
        shifted: tiles of scores less their bound.
        resident_groups: groups of queries of a core whose sums stay in SBUF from step to step.
    """

    shape: RingShape
    wide: bool
    block_tiles: int
    weights: int
    shifted: int
    resident_groups: int

    def group_bytes(self) -> int:
        """The sums of one group, and its running maximum."""
        return 4 * self.shape.columns() + 4

    def block_columns(self) -> int:
        """Queries of a block."""
        return PARTITIONS * min(BLOCK_GROUPS, self.shape.query_groups())

    def streaming_bytes(self) -> int:
        """SBUF bytes per partition of what the inner loop of either ring streams through.

        Two blocks of queries, keys and values, two results, and what is between the matmuls.
        """
        item, columns = self.shape.itemsize, self.block_columns()
        queries = 2 * columns * item
        keys = 2 * self.block_tiles * PARTITIONS * item
        values = 2 * self.block_tiles * self.shape.columns() * item
        results = 2 * columns // PARTITIONS * self.shape.head_dim * item
        between = max(self.bounded_bytes(), self.online_bytes())
        return queries + keys + values + results + between

    def bounded_bytes(self) -> int:
        """Of the ring with a bound: two blocks of bounds, shifted scores and exponentials."""
        return self.block_columns() * (
            4 * 2 + 4 * self.shifted + self.shape.itemsize * self.weights
        )

    def online_bytes(self) -> int:
        """Of the ring with a maximum: exponentials, also transposed, and masks of padding."""
        item = self.shape.itemsize
        tiles = PORTION_BYTES // (PARTITIONS * item) * PORTION_WEIGHTS
        return (tiles + 2 * tiles // PORTION_WEIGHTS + self.block_tiles) * PARTITIONS * item

    def preparing_bytes(self) -> int:
        """SBUF bytes per partition of loading, transposing and squaring."""
        item, turned = self.shape.itemsize, TURNED_TILES * PARTITIONS
        loaded = LOADED_HEADS * TURNED_TILES * self.shape.columns() * item
        return 4 * loaded + turned * (3 * item + 2 * item + 2 * 4)

    def small_bytes(self) -> int:
        """SBUF bytes per partition of an identity, ones, and columns of numbers."""
        item, heads = self.shape.itemsize, self.shape.heads
        blocks = -(-self.shape.query_groups() // BLOCK_GROUPS)
        turned = -(-self.shape.key_tiles() // TURNED_TILES)
        return PARTITIONS * (item + 12) + 4 * heads * (6 + 2 * blocks + turned) + 1024

    def sbuf_bytes(self) -> int:
        """SBUF bytes per partition at most, of either part of the kernel."""
        resident = self.resident_groups * self.group_bytes()
        return self.small_bytes() + max(self.preparing_bytes(), self.streaming_bytes() + resident)


# K/V block, exponentials and shifted scores, the deepest first
_DEPTHS = ((16, 8, 3), (16, 4, 3), (8, 4, 3), (8, 3, 3), (4, 3, 3), (4, 2, 2))


def plan_ring(shape: RingShape, sbuf_bytes: int, wide: bool) -> RingPlan:
    """The plan that needs the fewest passes round the ring, and then has the deepest buffers.

    What does not fit even so (see `RingPlan.sbuf_bytes`) is for `capability` to refuse.

    Args:
        shape: of the problem.
        sbuf_bytes: per partition, of the machine.
        wide: see `RingPlan`.
    """
    best = _with_depth(shape, _DEPTHS[0], sbuf_bytes, wide)
    for depth in _DEPTHS[1:]:
        plan = _with_depth(shape, depth, sbuf_bytes, wide)
        if passes(plan) < passes(best) or best.sbuf_bytes() > sbuf_bytes:
            best = plan
    return best


def _with_depth(
    shape: RingShape, depth: tuple[int, int, int], sbuf_bytes: int, wide: bool
) -> RingPlan:
    tiles, weights, shifted = depth
    block_tiles = min(tiles, shape.key_tiles())
    bare = RingPlan(shape, wide, block_tiles, weights, shifted, 0)
    groups = shape.query_groups()
    if shape.ranks == 1:
        # nothing outlives its block of queries
        return RingPlan(shape, wide, block_tiles, weights, shifted, 2 * min(BLOCK_GROUPS, groups))
    left = sbuf_bytes - bare.small_bytes() - bare.streaming_bytes()
    most = max(left // bare.group_bytes(), 0)
    fitting = max(min(most // groups * groups, _groups_of_a_core(shape)), groups)
    return RingPlan(shape, wide, block_tiles, weights, shifted, fitting)


def _groups_of_a_core(shape: RingShape) -> int:
    return -(-shape.heads // shape.cores) * shape.query_groups()


def passes(plan: RingPlan) -> int:
    """How often keys go round: once for the heads whose sums fit into SBUF together."""
    if plan.shape.ranks == 1:
        return 1
    return -(-_groups_of_a_core(plan.shape) // plan.resident_groups)
