"""`qkv_streamed`: the same call in the order of the public library, as a thing to compare with.

Upstream's `qkv` keeps whole rows of the result in PSUM, so a block has as many tiles of tokens as
eight banks hold rows: one from 3584 columns on. The weight is either all in SBUF or streamed anew
for every block. Q and K are finished in a second pass, behind the projection of all tokens. This is
that order, written from its published description and made of this package's own parts: it gives
the bits of `qkv_cte`. Where the rows fit into PSUM, that is up to 4096 columns.
"""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import jit, nisa, nl
from wantrn.kernels.psum import BANK, BANKS, Banks
from wantrn.kernels.qkv.finish import finish_rows
from wantrn.kernels.qkv.kernel import checked_sizes, result_of
from wantrn.kernels.qkv.loads import (
    Group,
    Inputs,
    load_angles,
    load_tokens,
    load_vectors,
    token_slot,
)
from wantrn.kernels.qkv.memory import Memory
from wantrn.kernels.qkv.options import Options, Sizes
from wantrn.kernels.qkv.plan import TABLE_BANKS, Plan
from wantrn.kernels.qkv.project import evict, product
from wantrn.kernels.qkv.slabs import SLAB, TILE, TokenTile, depth_tiles, slabs_of, tiles_of
from wantrn.kernels.qkv.store import later_heads
from wantrn.kernels.qkv.sums import Sums
from wantrn.kernels.row_mx import NEUTRAL_SCALE
from wantrn.kernels.slots import Slots, slots

# what vllm-omni-neuron takes SBUF of Trainium3 to have, for its MX path
BUDGET = 245_760


def streamed_fits(sizes: Sizes) -> bool:
    """Whether there is such a schedule for it: ROW_MX, rows within PSUM, Q and K to finish, and
    nothing but rows as a result."""
    later = sizes.norm and sizes.rope and not sizes.heads_first
    later = later and not (sizes.squared_sums or sizes.cached)
    return sizes.packed and later and sizes.width() <= BANKS * BANK


def degree_of(sizes: Sizes) -> int:
    """Tiles of a block."""
    return max(BANKS // -(-sizes.width() // BANK), 1)


def weight_stays(sizes: Sizes) -> bool:
    """Whether the whole weight is kept, by the library's budget for the MX path.

    Bytes of a partition, as `reference/wan22-on-neuron.md` 1.3 has them: columns of bias and
    scales, two buffers of the weight, both norms' weights, and for each tile the row, three buffers
    of the rotation, and the tokens.
    """
    width, depth, d = sizes.width(), -(-sizes.words() // TILE), sizes.head_dim
    fixed = 2 + 2 * width + 10 * width + 16 + 2 * TILE * d * 2 + 4 * width
    tile = 2 * width + 15 * d + depth * TILE * 4 + 4
    return degree_of(sizes) * tile + fixed - 10 * width + 5 * width * depth < BUDGET


class Streamed(nl.NKIObject):
    """One core's part. Rows of Q and K wait in `waiting`, private HBM `[tokens, heads, D]`."""

    inputs: Inputs
    plan: Plan
    memory: Memory
    sums: Sums
    tiles: list[TokenTile]
    group: Group
    out: Any
    waiting: Any
    kept: list[Any]

    def run(self) -> None:
        """All blocks, the exchange, and the second pass."""
        sizes, count = self.plan.sizes, len(self.tiles)
        self.sums.begin()
        nisa.memset(self.memory.neutral.at(0), NEUTRAL_SCALE)
        load_vectors(self.group, self.inputs, sizes, self.memory)
        degree = degree_of(sizes)
        for at in range(0, count, degree):
            self.project(self.tiles[at : at + degree])
        self.sums.add_up(0, count)
        if sizes.ranks > 1:
            self.sums.exchange()
        self.sums.make_factors(0, count)
        for tile in self.tiles:
            self.finish(tile)

    def weight_tile(self, depth: int) -> Any:
        """Tile `depth` of the weight, all columns: SBUF `[TILE, 4 I]` of codes."""
        if depth < len(self.kept):
            return self.kept[depth]
        sizes = self.plan.sizes
        slot = self.memory.weights.take()
        start = depth * TILE
        rows = min(TILE, sizes.words() - start)
        codes = self.inputs.weight.flatten_dims(1, 2)
        nisa.dma_copy(slot[0:rows, :], codes[start : start + rows, :])
        if weight_stays(sizes):
            self.kept.append(slot)
        return slot

    def project(self, block: list[TokenTile]) -> None:
        """All columns of a block's tiles, one tile of the weight after the other."""
        sizes, memory = self.plan.sizes, self.memory
        banks = -(-sizes.width() // BANK)
        psums = []
        for tile in block:
            load_tokens(tile.number, tile, self.inputs, self.plan, memory)
            psums.append(memory.slabs.take((TILE, banks * BANK), nl.float32))
        for depth, runs in enumerate(depth_tiles(sizes.words())):
            weight = self.weight_tile(depth).view(nl.float8_e4m3fn_x4)
            for index, tile in enumerate(block):
                self.multiply(psums[index], tile, weight, depth, runs)
        for index, tile in enumerate(block):
            self.evict(psums[index], tile)

    def multiply(
        self, psum: Any, tile: TokenTile, weight: Any, depth: int, runs: list[tuple[int, int]]
    ) -> None:
        """A tile's products with tile `depth` of the weight, `[TILE, I]`."""
        width = self.plan.sizes.width()
        tokens = token_slot(tile.number, self.plan, self.memory).view(nl.float8_e4m3fn_x4)
        even = tile.rows + tile.rows % 2
        for start, count in runs:
            places = slice(start, start + count)
            left, neutral = tokens[places, depth, 0:even], self.memory.neutral.at(0)[places, :]
            for lo in range(0, width, BANK):
                hi = min(lo + BANK, width)
                moving = weight[places, lo:hi]
                product(psum[0:even, lo:hi], left, moving, neutral, depth + start > 0)

    def evict(self, psum: Any, tile: TokenTile) -> None:
        """A tile's row from PSUM to HBM, segment by segment."""
        sizes, memory = self.plan.sizes, self.memory
        d = sizes.head_dim
        row = memory.out.take().reshape_dim(1, (sizes.width() // d, d))[0 : tile.rows, :, :]
        scale = memory.row_scales.at(tile.number)[0 : tile.rows, :]
        for slab in slabs_of(sizes):
            part = row[:, slab.first // d : (slab.first + slab.width) // d, :]
            source = psum[:, slab.first : slab.first + slab.width]
            partial = self.sums.partial(slab, tile)
            evict(part, source, scale, partial, self.group, slab, memory)
        heads = later_heads(self.plan)
        nisa.dma_copy(self.waiting_rows(tile), row[:, 0:heads, :])
        plain = self.out[tile.tokens(), heads * d : sizes.width()]
        nisa.dma_copy(plain.reshape_dim(1, (sizes.width() // d - heads, d)), row[:, heads:, :])

    def waiting_rows(self, tile: TokenTile) -> Any:
        """A tile's rows in HBM."""
        return self.waiting[tile.number * TILE : tile.number * TILE + tile.rows, :, :]

    def finish(self, tile: TokenTile) -> None:
        """The second pass over one tile."""
        sizes, heads = self.plan.sizes, later_heads(self.plan)
        d = sizes.head_dim
        angles = load_angles(tile, self.inputs, sizes, self.memory)
        row = self.memory.rows.take().reshape_dim(1, (heads, d))[0 : tile.rows, :, :]
        nisa.dma_copy(row, self.waiting_rows(tile))
        finish_rows(row, angles, tile, self.sums)
        dst = self.out[tile.tokens(), 0 : heads * d]
        nisa.dma_copy(dst.reshape_dim(1, (heads, d)), row)


@jit
def qkv_streamed(
    x: Any,
    weight: Any,
    options: Options,
    plan: Plan,
    weight_scales: Any = None,
    bias: Any = None,
    q_gamma: Any = None,
    k_gamma: Any = None,
    cos: Any = None,
    sin: Any = None,
) -> Any:
    """As `qkv_cte`, for calls that `streamed_fits`; of the plan, only the sizes count."""
    inputs = Inputs(
        x=x,
        weight=weight,
        weight_scales=weight_scales,
        bias=bias,
        q_gamma=q_gamma,
        k_gamma=k_gamma,
        cos=cos,
        sin=sin,
    )
    sizes = checked_sizes(inputs, options, plan)
    assert streamed_fits(sizes), f"there is no such schedule for {sizes}"
    out = result_of(x, sizes)
    tiles = tiles_of(sizes.tokens, nl.program_id(), nl.num_programs(), 1)
    if tiles:
        memory = _memory(plan, weight.dtype, nl.float32 if bias == None else bias.dtype)
        heads = later_heads(plan)
        Streamed(
            inputs=inputs,
            plan=plan,
            memory=memory,
            sums=Sums(plan=plan, options=options, memory=memory),
            tiles=tiles,
            group=Group(number=0, slabs=_later_slabs(sizes), first=0, width=sizes.width()),
            out=out.flatten_dims(0, 1),
            waiting=nl.ndarray(
                (len(tiles) * TILE, heads, sizes.head_dim), nl.bfloat16, buffer=nl.private_hbm
            ),
            kept=[],
        ).run()
    return out


def _later_slabs(sizes: Sizes) -> list[Any]:
    return [slab for slab in slabs_of(sizes) if slab.segment.finished_later]


def _memory(plan: Plan, weight_dtype: Any, bias_dtype: Any) -> Memory:
    """The library's buffers; where they lie is left to the compiler."""
    sizes = plan.sizes
    width, later = sizes.width(), later_heads(plan) * sizes.head_dim
    depth, columns = -(-sizes.words() // TILE), 2 * plan.tiles

    def tiles(count: int, columns: int, dtype: Any) -> Slots:
        return slots(count, (TILE, columns), dtype, nl.sbuf)

    degree = degree_of(sizes)
    return Memory(
        # whole rows
        slabs=Banks(first=tuple([tile * -(-width // BANK) for tile in range(degree)])),
        tables=Banks(first=TABLE_BANKS),
        weights=tiles(depth if weight_stays(sizes) else 2, 4 * width, weight_dtype),
        tokens=tiles(2 * degree, depth * TILE, nl.float32),
        row_scales=tiles(2 * degree, 1, nl.float32),
        neutral=tiles(1, BANK, nl.uint8),
        channel_scales=tiles(1, width, nl.float32),
        bias=tiles(1, width, bias_dtype),
        gamma=tiles(1, width, nl.float32),
        out=tiles(degree, width, nl.bfloat16),
        rows=tiles(3, later, nl.bfloat16),
        squares=tiles(1, SLAB, nl.bfloat16),
        partials=tiles(1, len(_later_slabs(sizes)) * plan.tiles, nl.float32),
        sums=tiles(1, max(columns, 512), nl.float32),
        all_sums=tiles(1, max(columns, 512), nl.float32),
        factors=tiles(1, 2 * columns, nl.float32),
        angles=tiles(3, sizes.head_dim, nl.float32),
        straight=tiles(2, later, nl.float32),
        crossed=tiles(2, later, nl.float32),
    )
