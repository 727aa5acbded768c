"""`adaln_modulate` and `row_quantize`, the kernels."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.adaln.memory import Memory, allocate
from wantrn.kernels.adaln.modulation import Modulation, Tile, tiles_of
from wantrn.kernels.adaln.norm import normalisation
from wantrn.kernels.adaln.options import (
    Options,
    Sizes,
    keeps_rows,
    sizes_of,
    sums_only,
)
from wantrn.kernels.adaln.plan import Plan, best_plan
from wantrn.kernels.adaln.rows import add_gated, modulate, quantize
from wantrn.kernels.adaln.rules import (
    broken_by_options,
    broken_by_sizes,
    broken_by_target,
    broken_by_tensors,
)
from wantrn.kernels.nki import jit, nisa, nl
from wantrn.kernels.row_mx import SCALE_BYTES


class Core(nl.NKIObject):
    """What one core has and does.

    Attributes:
        x, residual: HBM `[B * S, H]`; residual may be None
        gate, mul, add: a `Modulation` or None
        stream: HBM as `x`, the sum; None without a residual
        out: HBM `[B * S, H]`, or FP8 `[B * S, H + 4]`; None where only the sum is asked for
        loaded: by number of the tile, its rows of x and of the residual
        streams: by number of the tile, the rows that are normalised
    """

    plan: Plan
    memory: Memory
    x: Any
    residual: Any
    gate: Any
    mul: Any
    add: Any
    stream: Any
    out: Any
    loaded: list[Any]
    streams: list[Any]

    def run(self, tiles: list[Tile]) -> None:
        """All tiles. While one is finished, the next is summed and the one after it loaded, as far
        as there are slots: what an engine waits for has then been begun long before."""
        ahead = min(self.plan.row_slots, 3) - 1
        for tile in tiles:
            while len(self.loaded) < min(tile.number + ahead + 1, len(tiles)):
                self.load(tiles[len(self.loaded)])
            while len(self.streams) < min(tile.number + min(ahead, 1) + 1, len(tiles)):
                self.sum_up(tiles[len(self.streams)])
            if self.out != None:
                self.finish(tile)

    def load(self, tile: Tile) -> None:
        """The rows of a tile."""
        found = []
        for source, slots in ((self.x, self.memory.x), (self.residual, self.memory.residual)):
            rows = None
            if source != None:
                rows = slots.take()[0 : tile.rows, 0 : source.shape[1]]
                nisa.dma_copy(rows, source[tile.first : tile.first + tile.rows, :])
            found.append(rows)
        self.loaded.append(found)

    def sum_up(self, tile: Tile) -> None:
        """The new stream of a tile, in the place of the residual."""
        x, stream = self.loaded[tile.number]
        if stream == None:
            self.streams.append(x)
            return
        add_gated(x, stream, _rows_of(self.gate, tile), self.memory)
        nisa.dma_copy(self.stream[tile.first : tile.first + tile.rows, :], stream)
        self.streams.append(stream)

    def finish(self, tile: Tile) -> None:
        """The result of a tile."""
        memory, options = self.memory, self.plan.options
        stream = self.streams[tile.number]
        out = self.out[tile.first : tile.first + tile.rows, :]
        columns = memory.columns.take()[0 : tile.rows, :]
        if not options.limit:
            # x is not needed any more
            x = self.loaded[tile.number][0]
            self.modulate(x, stream, columns, tile)
            nisa.dma_copy(out, x)
            return
        values = stream
        if not keeps_rows(self.plan.sizes, options):
            values = memory.values.take()[0 : tile.rows, 0 : stream.shape[1]]
            self.modulate(values, stream, columns, tile)
        packed = memory.packed.take()[0 : tile.rows, 0 : self.out.shape[1]]
        quantize(packed, values, columns, options.limit, memory)
        nisa.dma_copy(out, packed)

    def modulate(self, dst: Any, stream: Any, columns: Any, tile: Tile) -> None:
        """Normalise and modulate the rows of a tile."""
        options, statistics = self.plan.options, None
        if options.norm != "none":
            statistics = self.memory.statistics.take()[0 : tile.rows, :]
        norm = normalisation(stream, statistics, columns, options)
        vectors = (_rows_of(self.mul, tile), _rows_of(self.add, tile))
        modulate(dst, stream, norm, vectors, self.memory)


@jit
def adaln_modulate(
    x: Any,
    options: Options,
    mul: Any = None,
    add: Any = None,
    residual: Any = None,
    gate: Any = None,
) -> Any:
    """Gated residual, normalisation over `H` and modulation of rows, and their quantization.

    In fp32, each result rounded once::

        stream = residual + gate * x                 with a residual, rounded to x's dtype; else x
        y = norm(stream) * mul + add
        out = y                                      rounded to x's dtype, or
              quantize_rows(y, limit)                with options.limit; see wantrn.kernels.row_mx

    Args:
        x: `[B, S, H]` bf16 or fp32.
        options: see `Options`.
        mul, add: fp32 `[1 or B, G, H]`, `G` a divisor of `S`: row `g` belongs to the `g`-th run of
            `S / G` tokens. Without them one and zero.
        residual: as `x`, the stream before.
        gate: as `mul`; needs a residual.

    Returns:
        `[B, S, H]` of x's dtype, or with `options.limit` packed rows `[B, S, H + 4]` of
        float8_e4m3fn (on Trainium2 its own float8_e4m3). With a residual `(stream, out)`; without
        norm, mul, add and limit, the stream alone.

    Raises:
        AssertionError: a rule of `wantrn.kernels.adaln.rules` is broken, or the buffers do not fit;
            `refusal` tells beforehand.
    """
    return _launched(x, options, (mul, add, residual, gate))


@jit
def row_quantize(x: Any, limit: float = 448.0) -> Any:
    """Packed rows of `x`, as `wantrn.kernels.row_mx.quantize_rows` makes them, bit for bit.

    Args:
        x: `[B, S, H]` bf16 or fp32, `H` a multiple of 4.
        limit: 448 (OCP, Trainium3) or 240 (Trainium2).

    Returns, raises: as `adaln_modulate`.
    """
    return _launched(x, Options(norm="none", limit=limit), (None, None, None, None))


def _launched(x: Any, options: Options, further: tuple[Any, Any, Any, Any]) -> Any:
    """Both kernels; `further` is mul, add, residual and gate."""
    mul, add, residual, gate = further
    problem = broken_by_tensors(x, residual, (gate, mul, add))
    assert problem == None, problem
    sizes = sizes_of(x, residual, gate, mul, add, 4 if x.dtype == nl.float32 else 2)
    for problem in (broken_by_sizes(sizes), broken_by_options(options, sizes)):
        assert problem == None, problem
    # Trainium2 has another format of FP8, with a smaller range
    gen4 = nisa.get_nc_version() >= nisa.nc_version.gen4
    fp8 = nl.float8_e4m3fn if gen4 else nl.float8_e4m3
    problem = broken_by_target(options, gen4)
    assert problem == None, problem
    plan = best_plan(sizes, options, nl.tile_size.sbuf_fmax_bytes, gen4)
    assert plan != None, "the buffers do not fit into SBUF"
    stream = None
    if residual != None:
        stream = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
    out = None
    if not sums_only(sizes, options):
        width = sizes.hidden + (SCALE_BYTES if options.limit else 0)
        shape = (sizes.batch, sizes.positions, width)
        out = nl.ndarray(shape, fp8 if options.limit else x.dtype, buffer=nl.shared_hbm)
    tiles = tiles_of(sizes.tokens(), nl.program_id(), nl.num_programs())
    if tiles:
        memory = allocate(plan, x.dtype, fp8)
        Core(
            plan=plan,
            memory=memory,
            x=_flat(x),
            residual=_flat(residual),
            gate=_modulation(gate, sizes, memory.gate),
            mul=_modulation(mul, sizes, memory.mul),
            add=_modulation(add, sizes, memory.add),
            stream=_flat(stream),
            out=_flat(out),
            loaded=[],
            streams=[],
        ).run(tiles)
    if stream == None:
        return out
    return stream if out == None else (stream, out)


def _flat(tensor: Any) -> Any:
    return None if tensor == None else tensor.flatten_dims(0, 1)


def _modulation(source: Any, sizes: Sizes, slots: Any) -> Any:
    if source == None:
        return None
    return Modulation(source=source, positions=sizes.positions, slots=slots)


def _rows_of(modulation: Any, tile: Tile) -> Any:
    return None if modulation == None else modulation.of(tile)
