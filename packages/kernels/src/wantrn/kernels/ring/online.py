"""A pass round the ring with the running maximum of each query.

Queries are on partitions, so that the maximum is over the free axis, and a number for each
partition shifts the exponentials and shrinks earlier sums. The price is a transpose of the
exponentials by the Tensor engine before the second matmul, and a reading of the scores by Vector.

Maxima are kept as `shift = -scale * max`, which is what exp takes as its bias.
"""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nisa, nl
from wantrn.kernels.ring.division import Pass
from wantrn.kernels.ring.exchange import Shards
from wantrn.kernels.ring.finish import Results, finish_block, store_lse
from wantrn.kernels.ring.loads import Block, Loads, blocks_of
from wantrn.kernels.ring.plan import PORTION_BYTES, PORTION_WEIGHTS
from wantrn.kernels.ring.queries import Queries
from wantrn.kernels.ring.rank import Rank
from wantrn.kernels.ring.tiles import product
from wantrn.kernels.sbuf import PARTITIONS
from wantrn.kernels.slots import slots

# What padding is added to, which no score of real tokens comes near, and which bf16 holds.
_MASK = 2.0**100
# Of four copies of exponentials out of PSUM, Scalar makes three: with its exp it is then as busy as
# Vector with the maxima and sums.
_COPIES = 4


class Portion(nl.NKIObject):
    """128 queries against some tiles of keys, whose exponentials wait for the second matmul.

    Attributes:
        block, group: of which; the group counts from the block's first.
        values: SBUF `[128, n, D + 1]`.
        weights: SBUF `[128 queries, 128 n]`.
        decay: SBUF fp32 `[128, 1]`, by which earlier sums shrink; None where there are none.
    """

    def __init__(self, block: Block, group: int, values: Any) -> None:
        self.block = block
        self.group = group
        self.values = values
        self.weights: Any = None
        self.decay: Any = None


class OnlineStreams(nl.NKIObject):
    """The buffers of the loops.

    Attributes:
        width: tiles of 128 keys in a portion; their exponentials would fill a PSUM bank, and are
            transposed in halves, so that one is copied out while the other is transposed.
        resident: SBUF fp32 `[128 queries, groups, D + 1]`, sums of all units of a pass.
        shifts: SBUF fp32 `[128, groups, 2]`, of the portion before and of this one in turn.
        waiting: portions, so that the Tensor engine begins the next scores before it needs these.
    """

    def __init__(self, rank: Rank) -> None:
        plan, shape = rank.plan, rank.plan.shape
        self.width = PORTION_BYTES // (PARTITIONS * shape.itemsize)
        keys = (PARTITIONS, self.width * PARTITIONS)
        self.loads = Loads(rank)
        self.scores = slots(3, keys, nl.float32, nl.psum)
        self.tops = slots(2, (PARTITIONS, 1), nl.float32, nl.sbuf)
        self.decays = slots(4, (PARTITIONS, 1), nl.float32, nl.sbuf)
        self.weights = slots(PORTION_WEIGHTS, keys, rank.dtype, nl.sbuf)
        half = (PARTITIONS, self.width // 2 * PARTITIONS)
        self.turned = slots(2, half, rank.dtype, nl.psum)
        self.stationary = slots(2, keys, rank.dtype, nl.sbuf)
        self.sums = slots(2, (PARTITIONS, shape.columns()), nl.float32, nl.psum)
        masks = (PARTITIONS, plan.block_tiles, PARTITIONS)
        self.masks = nl.ndarray(masks, rank.dtype, buffer=nl.sbuf)
        resident = (PARTITIONS, plan.resident_groups, shape.columns())
        self.resident = nl.ndarray(resident, nl.float32, buffer=nl.sbuf)
        shifts = (PARTITIONS, plan.resident_groups, 2)
        self.shifts = nl.ndarray(shifts, nl.float32, buffer=nl.sbuf)
        self.identity = nl.shared_identity_matrix(PARTITIONS, dtype=rank.dtype)
        self.copied = 0
        self.waiting: list[Portion] = []


def online_pass(
    rank: Rank, work: Pass, streams: OnlineStreams, sources: tuple[Shards, Queries, Results]
) -> None:
    """All steps of a pass, and its results."""
    shards, queries, results = sources
    for step in range(rank.options.ranks):
        shards.send(rank, step)
        for block in blocks_of(rank, work.units, step):
            turned = streams.loads.load_queries(queries, block)
            portions = _attend(rank, streams, block, shards, turned)
            if block.last:
                _finish(rank, streams, block, (results, portions))
    _drain(rank, streams, 0)


def _attend(rank: Rank, streams: OnlineStreams, block: Block, shards: Shards, queries: Any) -> int:
    """A block of queries against all keys of a step.

    Returns:
        Portions of each group so far.
    """
    count, size, width = rank.plan.shape.key_tiles(), rank.plan.block_tiles, streams.width
    each = 0
    for start in range(0, count, size):
        each += -(-(min(start + size, count) - start) // width)
    done = block.step * each
    for start in range(0, count, size):
        end = min(start + size, count)
        keys, values = streams.loads.load_shard(shards, block, (start, end))
        # from here on there is padding on some rank
        masked = max(rank.common // PARTITIONS - start, 0)
        _make_masks(rank, streams, values, masked)
        for group in range(block.groups):
            stationary = queries[:, group * PARTITIONS : (group + 1) * PARTITIONS]
            for number in range(-(-(end - start) // width)):
                low = number * width
                high = min(low + width, end - start)
                portion = Portion(block, group, values[:, low:high, :])
                scores = streams.scores.take()[:, 0 : (high - low) * PARTITIONS]
                columns = keys[:, low * PARTITIONS : high * PARTITIONS]
                product(scores, stationary, columns, rank.plan.wide)
                _mask(streams, scores, (low, high), masked)
                _weigh(rank, streams, portion, scores, done + number)
                streams.waiting.append(portion)
                _drain(rank, streams, 1)
        done += -(-(end - start) // width)
    return done


def _make_masks(rank: Rank, streams: OnlineStreams, values: Any, masked: int) -> None:
    """For each tile of keys with padding, a stationary operand that adds to the padding's scores.

    Row j of it is zeros for a real key, which has a one after its values, and the mask otherwise.
    """
    head_dim = rank.plan.shape.head_dim
    for tile in range(masked, values.shape[1]):
        ones = values[:, tile, head_dim : head_dim + 1].broadcast(1, PARTITIONS)
        nisa.tensor_scalar(
            streams.masks[:, tile, :], ones, nl.subtract, 1.0, op1=nl.multiply, operand1=_MASK
        )


def _mask(streams: OnlineStreams, scores: Any, tiles: tuple[int, int], masked: int) -> None:
    """Add the masks of the tiles that have one: each is spread over all queries by a matmul."""
    for tile in range(max(tiles[0], masked), tiles[1]):
        start = (tile - tiles[0]) * PARTITIONS
        nisa.nc_matmul(
            scores[:, start : start + PARTITIONS],
            streams.masks[:, tile, :],
            streams.identity,
            accumulate=True,
        )


def _weigh(rank: Rank, streams: OnlineStreams, portion: Portion, scores: Any, number: int) -> None:
    """Exponentials relative to the new maximum.

    Args:
        scores: PSUM fp32 `[128 queries, 128 n]`.
        number: portions of this group before this one.
    """
    place = portion.block.place + portion.group
    new = number % 2
    shift = streams.shifts[:, place, new : new + 1]
    before = streams.shifts[:, place, 1 - new : 2 - new]
    top = streams.tops.take()
    nisa.tensor_reduce(top, nl.maximum, scores, axis=1)
    if number == 0:
        nisa.tensor_scalar(shift, top, nl.multiply, -rank.scale)
    else:
        nisa.tensor_scalar(shift, top, nl.multiply, -rank.scale, op1=nl.minimum, operand1=before)
        portion.decay = streams.decays.take()
        nisa.activation(portion.decay, nl.exp, before, scale=-1.0, bias=shift)
    portion.weights = streams.weights.take()[:, 0 : scores.shape[1]]
    nisa.activation(portion.weights, nl.exp, scores, scale=rank.scale, bias=shift)


def _drain(rank: Rank, streams: OnlineStreams, left: int) -> None:
    """The second matmul of the portions that have waited longest, until `left` wait."""
    while len(streams.waiting) > left:
        portion = streams.waiting[0]
        streams.waiting = streams.waiting[1:]
        _add(streams, portion, _transposed(streams, portion.weights))


def _transposed(streams: OnlineStreams, weights: Any) -> Any:
    """Keys on partitions, SBUF `[128, 128 n]`: a transpose by the Tensor engine and a copy."""
    count = weights.shape[1]
    half = streams.width // 2 * PARTITIONS
    copied = streams.stationary.take()[:, 0:count]
    for start in range(0, count, half):
        end = min(start + half, count)
        psum = streams.turned.take()
        for column in range(start, end, PARTITIONS):
            turned = psum[:, column - start : column - start + PARTITIONS]
            nisa.nc_transpose(turned, weights[:, column : column + PARTITIONS])
        by_vector = streams.copied % _COPIES == 0
        streams.copied += 1
        engine = nisa.engine.vector if by_vector else nisa.engine.scalar
        nisa.tensor_copy(copied[:, start:end], psum[:, 0 : end - start], engine=engine)
    return copied


def _add(streams: OnlineStreams, portion: Portion, weights: Any) -> None:
    """Shrink the sums so far, and add those of a portion."""
    fresh = streams.sums.take()
    count = portion.values.shape[1]
    for tile in range(count):
        nisa.nc_matmul(
            fresh,
            weights[:, tile * PARTITIONS : (tile + 1) * PARTITIONS],
            portion.values[:, tile, :],
            accumulate=tile > 0,
        )
    held = streams.resident[:, portion.block.place + portion.group, :]
    if portion.decay != None:  # the parser front end has no `is`
        nisa.scalar_tensor_tensor(held, held, nl.multiply, portion.decay, nl.add, fresh)
    else:
        nisa.tensor_copy(held, fresh)


def _finish(rank: Rank, streams: OnlineStreams, block: Block, known: tuple[Results, int]) -> None:
    """Results of a block, after its last portion."""
    _drain(rank, streams, 0)
    results, portions = known
    end = block.place + block.groups
    sums = streams.resident[:, block.place : end, :]
    finish_block(rank, results, block, sums)
    if rank.options.lse:
        held = (portions - 1) % 2
        shifts = nl.ndarray((PARTITIONS, block.groups), nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(shifts, streams.shifts[:, block.place : end, held])
        turned = nl.ndarray((block.groups, PARTITIONS), nl.float32, buffer=nl.psum)
        nisa.nc_transpose(turned, shifts)
        # PSUM is full: its place is needed again
        tops = nl.ndarray((block.groups, PARTITIONS), nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(tops, turned)
        store_lse(rank, results, block, sums, (tops, -1.0))
