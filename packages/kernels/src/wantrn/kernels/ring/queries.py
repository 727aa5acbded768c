"""Queries of this core, transposed, and the bound of each."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nisa, nl
from wantrn.kernels.ring.division import Run, runs
from wantrn.kernels.ring.keys import Turning, squared_norms, turn
from wantrn.kernels.ring.plan import TURNED_TILES
from wantrn.kernels.ring.rank import Rank
from wantrn.kernels.ring.tiles import load_tokens
from wantrn.kernels.sbuf import PARTITIONS

# The least square of a bound: Scalar takes roots from 2^-116 on. Of a zero query it makes a bound
# of 2^-50, which changes no exponential.
LEAST_SQUARE = 2.0**-100


def margin(itemsize: int) -> float:
    """A factor of the product of two squared norms that makes its root a bound.

    Squares are rounded to bf16 (by at most 2^-9 of each; fp32: 2^-24), so a sum of them is at least
    `1 - 2^-9` times the true one, and the product of two at least `1 - 2^-8` times. `1 + 2^-7` more
    than makes up for that, and what remains, 2^-9 of the bound, is over a hundred times the
    error of a score that is added up in fp32 (128 terms: 2^-17 of `|q||k|`). In fp32 all of these
    are 2^-17 at most.
    """
    return 1.0 + (2.0**-7 if itemsize == 2 else 2.0**-12)


class Queries(nl.NKIObject):
    """What the steps of a ring read of the queries; of the own core's units only.

    Attributes:
        turned: HBM `[B * N, D, 128 groups]`.
        norms: HBM fp32 `[B * N, 128 groups]`, squared.
        bounds: HBM fp32 `[B * N, 128 groups]`, `|q_i| max_j |k_j|`, without the scale of scores.
    """

    def __init__(self, rank: Rank) -> None:
        shape = rank.plan.shape
        rows = (shape.heads, shape.query_groups() * PARTITIONS)
        turned = (shape.heads, shape.head_dim, rows[1])
        self.turned = nl.ndarray(turned, rank.dtype, buffer=nl.private_hbm, name="ring_queries")
        self.norms = nl.ndarray(rows, nl.float32, buffer=nl.private_hbm, name="ring_query_norms")
        self.bounds = nl.ndarray(rows, nl.float32, buffer=nl.private_hbm, name="ring_bounds")


def prepare_queries(rank: Rank, q: Any, measured: bool) -> Queries:
    """Transpose this core's queries.

    Args:
        q: HBM `[B, S, N, D]`.
        measured: whether norms are wanted.
    """
    queries = Queries(rank)
    tiles = Turning(rank)
    groups = rank.plan.shape.query_groups()
    for work in rank.passes:
        whole = [(unit.slot, unit.head) for unit in work.units if unit.groups == groups]
        for run in runs(whole, q.shape[2]):
            _prepare_run(rank, tiles, q, run, (0, groups, queries, measured))
        for unit in work.units:
            if unit.groups < groups:
                run = runs([(unit.slot, unit.head)], q.shape[2])[0]
                _prepare_run(rank, tiles, q, run, (unit.first, unit.groups, queries, measured))
    return queries


def _prepare_run(
    rank: Rank, tiles: Turning, q: Any, run: Run, part: tuple[int, int, Queries, bool]
) -> None:
    start, groups, queries, measured = part
    src = q[run.batch, :, run.first : run.first + run.count, :]
    for first in range(start, start + groups, TURNED_TILES):
        size = min(TURNED_TILES, start + groups - first)
        loaded = tiles.loaded.take()[:, 0:size, 0 : run.count, :]
        load_tokens(loaded, src, first * PARTITIONS, rank.queries_valid())
        columns = nl.ds(first * PARTITIONS, size * PARTITIONS)
        for i in range(run.count):
            head = run.batch * q.shape[2] + run.first + i
            turned = tiles.turned.take()[:, 0 : size * PARTITIONS]
            nisa.tensor_copy(turned, turn(tiles, loaded, i))
            nisa.dma_copy(queries.turned[head][:, columns], turned)
            if measured:
                norms = squared_norms(rank, tiles, turned)
                row = tiles.rows.take()[:, 0 : size * PARTITIONS]
                nisa.tensor_copy(row, norms)
                nisa.dma_copy(queries.norms[head : head + 1, columns], row)


def bound_queries(rank: Rank, queries: Queries, largest: Any) -> None:
    """Bounds of this core's queries (Cauchy-Schwarz): `|q_i| max_j |k_j|`, in fp32.

    Args:
        largest: HBM fp32 `[1, B * N]`, the largest squared norm of a key of any rank.
    """
    heads = rank.plan.shape.heads
    tops = nl.ndarray((PARTITIONS, heads), nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(tops, largest.ap([[0, PARTITIONS], [1, heads]]))
    nisa.tensor_scalar(tops, tops, nl.multiply, margin(rank.plan.shape.itemsize))
    for work in rank.passes:
        for unit in work.units:
            for first in range(unit.first, unit.first + unit.groups, PARTITIONS):
                size = min(PARTITIONS, unit.first + unit.groups - first)
                columns = nl.ds(first * PARTITIONS, size * PARTITIONS)
                norms = queries.norms[unit.head, columns].reshape((size, PARTITIONS))
                tile = nl.ndarray((size, PARTITIONS), nl.float32, buffer=nl.sbuf)
                nisa.dma_copy(tile, norms)
                top = tops[0:size, unit.head : unit.head + 1]
                nisa.tensor_scalar(
                    tile, tile, nl.multiply, top, op1=nl.maximum, operand1=LEAST_SQUARE
                )
                nisa.activation(tile, nl.sqrt, tile)
                bounds = queries.bounds[unit.head, columns].reshape((size, PARTITIONS))
                nisa.dma_copy(bounds, tile)
