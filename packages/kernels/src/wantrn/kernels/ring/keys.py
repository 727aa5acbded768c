"""Keys and values of this rank, made ready to go round: transposed, measured, and marked."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nisa, nl
from wantrn.kernels.ring.division import Pass, Run, runs
from wantrn.kernels.ring.exchange import Shards, reduced
from wantrn.kernels.ring.plan import LOADED_HEADS, TURNED_TILES
from wantrn.kernels.ring.rank import Rank
from wantrn.kernels.ring.tiles import load_tokens, product
from wantrn.kernels.sbuf import PARTITIONS
from wantrn.kernels.slots import slots


class Turning(nl.NKIObject):
    """Buffers of `turn`: tokens as they are stored, and transposed."""

    def __init__(self, rank: Rank) -> None:
        shape = rank.plan.shape
        columns = TURNED_TILES * PARTITIONS
        heads = min(LOADED_HEADS, shape.heads)
        self.loaded = slots(
            2, (PARTITIONS, TURNED_TILES, heads, shape.head_dim), rank.dtype, nl.sbuf
        )
        self.psum = slots(2, (shape.head_dim, columns), rank.dtype, nl.psum)
        self.turned = slots(3, (shape.head_dim, columns), rank.dtype, nl.sbuf)
        self.squares = slots(2, (shape.head_dim, columns), rank.dtype, nl.sbuf)
        self.norms = slots(2, (1, columns), nl.float32, nl.psum)
        self.rows = slots(2, (1, columns), nl.float32, nl.sbuf)
        self.identity = nl.shared_identity_matrix(PARTITIONS, dtype=rank.dtype)


def turn(tiles: Turning, loaded: Any, head: int) -> Any:
    """Transpose the tokens of one head; PSUM `[D, 128 T]`.

    Args:
        loaded: SBUF `[128, T, n, D]`.
        head: of the n.
    """
    psum = tiles.psum.take()
    for tile in range(loaded.shape[1]):
        columns = psum[:, tile * PARTITIONS : (tile + 1) * PARTITIONS]
        nisa.nc_transpose(columns, loaded[:, tile, head, :])
    return psum[:, 0 : loaded.shape[1] * PARTITIONS]


def squared_norms(rank: Rank, tiles: Turning, turned: Any) -> Any:
    """Sums of squares of the columns; PSUM fp32 `[1, n]`.

    Squares are rounded to the dtype of `turned`; `bounds.margin` makes up for it.
    """
    squares = tiles.squares.take()[:, 0 : turned.shape[1]]
    nisa.activation(squares, nl.square, turned)
    norms = tiles.norms.take()[:, 0 : turned.shape[1]]
    product(norms, rank.ones[0 : turned.shape[0], 0:1], squares, rank.plan.wide)
    return norms


def mean_keys(rank: Rank, k: Any) -> Any:
    """The mean of all real keys of all ranks.

    Each rank sums its keys by matmuls with ones, and counts them; both are added over the ring.

    Returns:
        SBUF fp32 `[D, B * N]`.
    """
    shape = rank.plan.shape
    mine = nl.ndarray(
        (shape.head_dim, shape.heads + 1), nl.float32, buffer=nl.shared_hbm, name="ring_key_sums"
    )
    tiles = Turning(rank)
    for work in rank.passes:
        for run in runs(work.prepared, k.shape[2]):
            _sum_keys(rank, tiles, k, run, mine)
    if rank.core == 0:
        count = nl.ndarray((shape.head_dim, 1), nl.float32, buffer=nl.sbuf)
        nisa.memset(count, float(rank.valid))
        nisa.dma_copy(mine[:, shape.heads : shape.heads + 1], count)
    sums = nl.ndarray(mine.shape, nl.float32, buffer=nl.sbuf)
    nisa.dma_copy(sums, reduced(rank, mine, nl.add, "ring_key_sums_all"))
    share = nl.ndarray((shape.head_dim, 1), nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(share, sums[:, shape.heads : shape.heads + 1])
    means = nl.ndarray((shape.head_dim, shape.heads), nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(means, sums[:, 0 : shape.heads], nl.multiply, share)
    return means


def _sum_keys(rank: Rank, tiles: Turning, k: Any, run: Run, mine: Any) -> None:
    shape = rank.plan.shape
    sums = nl.ndarray((shape.head_dim, run.count), nl.float32, buffer=nl.psum)
    src = k[run.batch, :, run.first : run.first + run.count, :]
    count = shape.key_tiles()
    for first in range(0, count, TURNED_TILES):
        size = min(TURNED_TILES, count - first)
        loaded = tiles.loaded.take()[:, 0:size, 0 : run.count, :]
        load_tokens(loaded, src, first * PARTITIONS, rank.valid)
        for tile in range(size):
            for i in range(run.count):
                nisa.nc_matmul(
                    sums[:, i : i + 1],
                    loaded[:, tile, i, :],
                    rank.ones[:, 0:1],
                    accumulate=first + tile > 0,
                )
    found = nl.ndarray(sums.shape, nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(found, sums)
    head = run.batch * k.shape[2] + run.first
    nisa.dma_copy(mine[:, head : head + run.count], found)


def prepare_keys(rank: Rank, k: Any, shards: list[Shards], means: Any, measured: bool) -> Any:
    """Transpose this core's keys into the first shards of each pass.

    Args:
        k: HBM `[B, S, N, D]`.
        shards: of each pass.
        means: see `mean_keys`; None leaves keys as they are.
        measured: whether norms are wanted.

    Returns:
        Shared HBM fp32 `[1, B * N]`: the largest squared norm of a key of this rank by head, this
        core's heads only; None if not `measured`.
    """
    heads = rank.plan.shape.heads
    largest = None
    if measured:
        largest = nl.ndarray((1, heads), nl.float32, buffer=nl.shared_hbm, name="ring_key_norms")
    tiles = Turning(rank)
    for work in rank.passes:
        for run in runs(work.prepared, k.shape[2]):
            _prepare_run(rank, tiles, k, run, (shards[work.number], means, largest))
    return largest


def _prepare_run(
    rank: Rank, tiles: Turning, k: Any, run: Run, targets: tuple[Shards, Any, Any]
) -> None:
    shards, means, largest = targets
    head = run.batch * k.shape[2] + run.first
    count = rank.plan.shape.key_tiles()
    blocks = -(-count // TURNED_TILES)
    src = k[run.batch, :, run.first : run.first + run.count, :]
    tops = nl.ndarray((1, run.count, blocks), nl.float32, buffer=nl.sbuf)
    for block in range(blocks):
        first = block * TURNED_TILES
        size = min(TURNED_TILES, count - first)
        loaded = tiles.loaded.take()[:, 0:size, 0 : run.count, :]
        load_tokens(loaded, src, first * PARTITIONS, rank.valid)
        for i in range(run.count):
            psum = turn(tiles, loaded, i)
            turned = tiles.turned.take()[:, 0 : size * PARTITIONS]
            if means != None:  # the parser front end has no `is`
                mean = means[:, head + i : head + i + 1]
                nisa.tensor_scalar(turned, psum, nl.subtract, mean)
                _clear(turned, rank.valid - first * PARTITIONS)
            else:
                nisa.tensor_copy(turned, psum)
            start = first * PARTITIONS
            columns = shards.keys[0][run.slot + i][:, start : start + size * PARTITIONS]
            nisa.dma_copy(columns, turned)
            if largest != None:
                norms = squared_norms(rank, tiles, turned)
                nisa.tensor_reduce(tops[:, i, block : block + 1], nl.maximum, norms, axis=1)
    if largest != None:
        found = nl.ndarray((1, run.count), nl.float32, buffer=nl.sbuf)
        nisa.tensor_reduce(found, nl.maximum, tops, axis=2)
        nisa.dma_copy(largest[:, head : head + run.count], found)


def _clear(turned: Any, valid: int) -> None:
    """Zeros in the columns that are no real tokens: less their mean, they were none."""
    columns = turned.shape[1]
    if valid < columns:
        nisa.memset(turned[:, max(valid, 0) : columns], 0.0)


def prepare_values(rank: Rank, v: Any, work: Pass, shards: Shards) -> None:
    """Store this core's values, each row with its one, into the first shard of a pass.

    Args:
        v: HBM `[B, S, N, D]`.
    """
    shape = rank.plan.shape
    heads, count = min(LOADED_HEADS, shape.heads), shape.key_tiles()
    marked = slots(2, (PARTITIONS, heads, TURNED_TILES, shape.columns()), rank.dtype, nl.sbuf)
    # all heads of a token are one run of bytes, which a row with its one would break
    loaded = slots(2, (PARTITIONS, TURNED_TILES, heads, shape.head_dim), rank.dtype, nl.sbuf)
    for run in runs(work.prepared, v.shape[2]):
        src = v[run.batch, :, run.first : run.first + run.count, :]
        for first in range(0, count, TURNED_TILES):
            size = min(TURNED_TILES, count - first)
            rows = loaded.take()[:, 0:size, 0 : run.count, :]
            load_tokens(rows, src, first * PARTITIONS, rank.valid)
            tile = marked.take()[:, 0 : run.count, 0:size, :]
            nisa.tensor_copy(tile[:, :, :, 0 : shape.head_dim], rows.permute((0, 2, 1, 3)))
            _mark(tile, shape.head_dim, rank.valid - first * PARTITIONS)
            for i in range(run.count):
                target = shards.values[0][run.slot + i][:, first : first + size, :]
                nisa.dma_copy(target, tile[:, i])


def _mark(tile: Any, head_dim: int, valid: int) -> None:
    """A one after each row, or a zero where the row is no real token.

    Args:
        tile: SBUF `[128, n, T, D + 1]`.
        valid: real tokens from the first of the tile on.
    """
    tiles = tile.shape[2]
    here = min(max(valid, 0), tiles * PARTITIONS)
    full, rest = here // PARTITIONS, here % PARTITIONS
    marks = tile[:, :, :, head_dim]
    if here < tiles * PARTITIONS:
        nisa.memset(marks, 0.0)
    if full > 0:
        nisa.memset(marks[:, :, 0:full], 1.0)
    if rest > 0:
        nisa.memset(marks[0:rest, :, full], 1.0)
