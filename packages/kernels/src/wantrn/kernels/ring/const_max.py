"""A pass round the ring with a bound in place of the running maximum.

Scores are made with keys on partitions, `K Q^T`, so that their exponentials are at once the
stationary operand of the second matmul, and nothing is transposed. Against a maximum that is known
beforehand, nothing is rescaled either: sums of a step are added to those of the steps before.

Of 128 keys and 1024 queries, Vector (subtract) and Scalar (exp) take 1084 cycles each, 903 ns, and
Tensor 2056, 857 ns. So these loops do nothing else on Vector and Scalar.
"""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nisa, nl
from wantrn.kernels.psum import BANK
from wantrn.kernels.ring.division import Pass
from wantrn.kernels.ring.exchange import Shards
from wantrn.kernels.ring.finish import Results, finish_block, store_lse
from wantrn.kernels.ring.loads import Block, Loads, blocks_of
from wantrn.kernels.ring.queries import Queries
from wantrn.kernels.ring.rank import Rank
from wantrn.kernels.ring.tiles import product
from wantrn.kernels.sbuf import PARTITIONS
from wantrn.kernels.slots import slots


class Weighted(nl.NKIObject):
    """Exponentials that wait for their product with the values.

    Attributes:
        block: of which.
        weights: SBUF `[128 keys, 128 groups]`.
        values: SBUF `[128 keys, D + 1]`.
        opens, closes: whether they are the first and the last of their block.
    """

    def __init__(self, block: Block, tensors: tuple[Any, Any], opens: bool, closes: bool) -> None:
        self.block = block
        self.weights = tensors[0]
        self.values = tensors[1]
        self.opens = opens
        self.closes = closes


class Streams(nl.NKIObject):
    """The buffers of the loops, as the plan has them, and what waits in them.

    Attributes:
        sums: PSUM fp32 `[128 queries, 512 banks]`; several groups to a bank, none across two.
        resident: SBUF fp32 `[128 queries, groups, D + 1]`, of all units of a pass.
        per_bank: groups in a bank.
        loaded: tiles in the block of values that was loaded last.
        waiting: products that are still to be issued, so that the Tensor engine begins the next
            scores before it needs these exponentials.
    """

    def __init__(self, rank: Rank) -> None:
        plan, shape = rank.plan, rank.plan.shape
        columns = plan.block_columns()
        self.loads = Loads(rank)
        self.bounds = slots(2, (PARTITIONS, columns), nl.float32, nl.sbuf)
        self.scores = slots(2, (PARTITIONS, columns), nl.float32, nl.psum)
        self.shifted = slots(plan.shifted, (PARTITIONS, columns), nl.float32, nl.sbuf)
        self.weights = slots(plan.weights, (PARTITIONS, columns), rank.dtype, nl.sbuf)
        self.per_bank = min(BANK // shape.columns(), columns // PARTITIONS)
        banks = -(-(columns // PARTITIONS) // self.per_bank)
        self.sums = nl.ndarray((PARTITIONS, banks * BANK), nl.float32, buffer=nl.psum)
        resident = (PARTITIONS, plan.resident_groups, shape.columns())
        self.resident = nl.ndarray(resident, nl.float32, buffer=nl.sbuf)
        self.loaded = 0
        self.ahead = min(2, plan.weights - 1)
        self.waiting: list[Weighted] = []


def const_max_pass(
    rank: Rank, work: Pass, streams: Streams, sources: tuple[Shards, Queries, Results]
) -> None:
    """All steps of a pass, and its results."""
    shards = sources[0]
    for step in range(rank.options.ranks):
        shards.send(rank, step)
        for block in blocks_of(rank, work.units, step):
            _attend(rank, streams, block, sources)
    while len(streams.waiting) > 0:
        _weigh(rank, streams, sources)


def _attend(
    rank: Rank, streams: Streams, block: Block, sources: tuple[Shards, Queries, Results]
) -> None:
    """A block of queries against all keys of a step."""
    shards, queries, _ = sources
    columns = block.groups * PARTITIONS
    turned = streams.loads.load_queries(queries, block)
    bounds = streams.bounds.take()[:, 0:columns]
    # one row for all partitions
    row = queries.bounds[block.unit.head]
    offset = block.first * PARTITIONS
    nisa.dma_copy(bounds, row.ap([[0, PARTITIONS], [1, columns]], offset=offset))
    count, size = rank.plan.shape.key_tiles(), rank.plan.block_tiles
    for start in range(0, count, size):
        end = min(start + size, count)
        # those that wait must still find their values: the next buffer is that of the block of
        # keys before the last
        while len(streams.waiting) > streams.loaded:
            _weigh(rank, streams, sources)
        streams.loaded = end - start
        keys, values = streams.loads.load_shard(shards, block, (start, end))
        for tile in range(end - start):
            stationary = keys[:, tile * PARTITIONS : (tile + 1) * PARTITIONS]
            weights = _exponentials(rank, streams, stationary, turned, bounds)
            opens, closes = start + tile == 0, start + tile + 1 == count
            pair = (weights, values[:, tile, :])
            streams.waiting.append(Weighted(block, pair, opens, closes))
            if len(streams.waiting) > streams.ahead:
                _weigh(rank, streams, sources)


def _exponentials(rank: Rank, streams: Streams, keys: Any, queries: Any, bounds: Any) -> Any:
    """`exp(scale * (k_j q_i - bound_i))`, keys on partitions; `[128, n]` of the dtype of values.

    The difference is fp32: at a score of 64, bf16 knows it by 1/4, or 28 % of an exponential.
    """
    columns = queries.shape[1]
    scores = streams.scores.take()[:, 0:columns]
    product(scores, keys, queries, rank.plan.wide)
    shifted = streams.shifted.take()[:, 0:columns]
    nisa.tensor_tensor(shifted, scores, bounds, nl.subtract)
    weights = streams.weights.take()[:, 0:columns]
    nisa.activation(weights, nl.exp, shifted, scale=rank.scale)
    return weights


def _weigh(rank: Rank, streams: Streams, sources: tuple[Shards, Queries, Results]) -> None:
    """The product that has waited longest; after the last of a block, its sums."""
    entry = streams.waiting[0]
    streams.waiting = streams.waiting[1:]
    columns = rank.plan.shape.columns()
    for group in range(entry.block.groups):
        start = group // streams.per_bank * BANK + group % streams.per_bank * columns
        nisa.nc_matmul(
            streams.sums[:, start : start + columns],
            entry.weights[:, group * PARTITIONS : (group + 1) * PARTITIONS],
            entry.values,
            accumulate=not entry.opens,
        )
    if entry.closes:
        _close(rank, streams, entry.block, sources)


def _close(
    rank: Rank, streams: Streams, block: Block, sources: tuple[Shards, Queries, Results]
) -> None:
    """Add the sums of a block in PSUM to those of earlier steps; after the last one, finish them.

    A bank at a time, so that the next block's products may begin in it.
    """
    columns = rank.plan.shape.columns()
    sums = streams.resident[:, block.place : block.place + block.groups, :]
    for first in range(0, block.groups, streams.per_bank):
        count = min(streams.per_bank, block.groups - first)
        start = first // streams.per_bank * BANK
        fresh = streams.sums[:, start : start + count * columns]
        held = sums[:, first : first + count, :]
        if block.step == 0:
            nisa.tensor_copy(held, fresh)
        else:
            nisa.tensor_tensor(held, fresh, held, nl.add)
    if block.last:
        finish_block(rank, sources[2], block, sums)
        if rank.options.lse:
            tops = nl.ndarray((block.groups, PARTITIONS), nl.float32, buffer=nl.sbuf)
            row = sources[1].bounds[block.unit.head, block.tokens()]
            nisa.dma_copy(tops, row.reshape((block.groups, PARTITIONS)))
            store_lse(rank, sources[2], block, sums, (tops, rank.scale))
