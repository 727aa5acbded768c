"""`mlp`: up, GELU, down, the kernel."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import jit, nisa, nl
from wantrn.kernels.projections.down import Rows
from wantrn.kernels.projections.memory import Dtypes, allocate
from wantrn.kernels.projections.operands import set_neutral
from wantrn.kernels.projections.options import MlpSizes, mlp_sizes
from wantrn.kernels.projections.plan import Plan
from wantrn.kernels.projections.rules import (
    broken_by_mlp_sizes,
    broken_by_mlp_tensors,
    broken_by_vectors,
)
from wantrn.kernels.projections.tiles import Pass, passes_of, tiles_of
from wantrn.kernels.projections.tokens import Tokens
from wantrn.kernels.projections.up import Channels
from wantrn.kernels.projections.weights import Block, Stream, blocks_of
from wantrn.kernels.words import words


class Core(nl.NKIObject):
    """What one core has and does.

    Attributes:
        up_blocks, down_blocks: the blocks of a pass
        stream: of both, in this order
        up_vectors: scales and bias of the channels, HBM `[1, F]` or None
    """

    tokens: Tokens
    channels: Channels
    rows: Rows
    up_blocks: list[Block]
    down_blocks: list[Block]
    stream: Stream
    up_vectors: tuple[Any, Any]

    def run(self, passes: list[Pass]) -> None:
        """All passes; the tokens of the next one are loaded while the second projection runs.

        The first product waits for as little as possible: vectors come behind its operands.
        """
        loaded = self.tokens.load(passes[0])
        self.stream.load_upto(1)
        self.channels.load(self.up_vectors[0], self.up_vectors[1])
        blocks = len(self.up_blocks) + len(self.down_blocks)
        for number, tokens in enumerate(passes):
            use = number * blocks
            operand = self.channels.operand(tokens)
            for block in self.up_blocks:
                self.channels.project(operand, loaded, self.stream.use(use), block, tokens)
                use += 1
            if number == 0:
                for block in self.down_blocks:
                    self.rows.load(block)
            if number + 1 < len(passes):
                loaded = self.tokens.load(passes[number + 1])
            for block in self.down_blocks:
                self.rows.project(operand, self.stream.use(use), block, tokens)
                use += 1


@jit
def mlp(
    x: Any,
    up: Any,
    down: Any,
    plan: Plan,
    up_scales: Any = None,
    down_scales: Any = None,
    up_bias: Any = None,
    down_bias: Any = None,
) -> Any:
    """The feed-forward layer, with the tanh form of GELU.

    In fp32, with `h` rounded to bf16 and the result rounded once::

        h = gelu(x U + up_bias)
        y = h V + down_bias

    With FP8 (ROW_MX) `x` is codes, whose products are scaled, and the kernel quantizes `h` to MX:
    blocks of 32 neighbouring channels of a token share a power of two as their scale, see
    `nkisim.mx.quantize`::

        h = gelu((products * row scale) * up_scales + up_bias)
        y = products * down_scales + down_bias

    Args:
        x: `[B, S, H]` bf16, or packed rows `[B, S, H + 4]` float8_e4m3fn.
        up: `[H, F]` bf16, or `[H/4, F, 4]` float8_e4m3fn, see `wantrn.kernels.row_mx`.
        down: `[F, H_out]` bf16, or `[F/4, H_out, 4]`; `H`, `F` and `H_out` multiples of 128.
        plan: from `wantrn.kernels.projections.best_mlp_plan`, for these sizes; it changes the time
            and no bit of the result.
        up_scales, down_scales: `[1, F]` and `[1, H_out]` fp32, exactly with FP8.
        up_bias, down_bias: `[1, F]` and `[1, H_out]`, fp32 or bf16.

    Returns:
        `[B, S, H_out]` bf16.

    Raises:
        AssertionError: a rule of `wantrn.kernels.projections.rules` is broken, or the plan is for
            other sizes.
    """
    problem = broken_by_mlp_tensors(x, up, down)
    for weight, vectors in (
        (up, [("up_scales", up_scales, True), ("up_bias", up_bias, False)]),
        (down, [("down_scales", down_scales, True), ("down_bias", down_bias, False)]),
    ):
        problem = problem or broken_by_vectors(weight, vectors)
    assert problem == None, problem
    sizes = mlp_sizes(x, up, down, up_bias, down_bias)
    problem = broken_by_mlp_sizes(sizes, nisa.get_nc_version() >= nisa.nc_version.gen4)
    assert problem == None, problem
    assert plan.sizes == sizes, f"the plan is for {plan.sizes}; the call has {sizes}"
    batch, positions = x.shape[0], x.shape[1]
    out = nl.ndarray((batch, positions, sizes.width), nl.bfloat16, buffer=nl.shared_hbm)
    tiles = tiles_of(1, sizes.tokens, nl.program_id(), nl.num_programs())
    if not tiles:
        return out
    passes = passes_of(tiles, plan.choice.pass_tiles, sizes.packed)
    memory = allocate(
        plan.buffers,
        Dtypes(
            tokens=nl.float32 if sizes.packed else x.dtype,
            weights=up.dtype,
            up_bias=None if up_bias == None else up_bias.dtype,
            bias=None if down_bias == None else down_bias.dtype,
        ),
    )
    set_neutral(memory.neutral_scales())
    rows = x.flatten_dims(0, 1)
    tokens = Tokens(
        x=rows.view(nl.float32) if sizes.packed else rows,
        sizes=sizes,
        memory=memory,
        first=tiles[0].first,
    )
    tokens.gather_scales(tiles)
    core = _core(tokens, (up, down), plan, len(passes))
    core.up_vectors = (up_scales, up_bias)
    core.rows = Rows(
        out=out.reshape((1, sizes.tokens, sizes.width)),
        memory=memory,
        scales=down_scales,
        bias=down_bias,
    )
    core.run(passes)
    return out


def _core(tokens: Tokens, weights: tuple[Any, Any], plan: Plan, passes: int) -> Core:
    """All but what the vectors belong to."""
    sizes: MlpSizes = plan.sizes
    up, down = weights
    ups = blocks_of(up, words(sizes.hidden, sizes.packed), plan.choice.up_block)
    downs = blocks_of(down, words(sizes.inner, sizes.packed), plan.choice.down_block)
    memory = tokens.memory
    return Core(
        tokens=tokens,
        channels=Channels(sizes=sizes, memory=memory),
        up_blocks=ups,
        down_blocks=downs,
        stream=Stream(blocks=ups + downs, passes=passes, slots=memory.weights, packed=sizes.packed),
    )
