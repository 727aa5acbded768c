"""`o_proj`: attention's heads back to the residual stream, the kernel."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import jit, nisa, nl
from wantrn.kernels.projections.down import Rows
from wantrn.kernels.projections.memory import Dtypes, Memory, allocate
from wantrn.kernels.projections.operands import Operand, fill_tail, set_neutral
from wantrn.kernels.projections.options import OProjSizes, o_proj_sizes
from wantrn.kernels.projections.plan import Plan
from wantrn.kernels.projections.rules import (
    broken_by_o_proj_sizes,
    broken_by_o_proj_tensors,
)
from wantrn.kernels.projections.tiles import TILE, Pass, passes_of, tiles_of
from wantrn.kernels.projections.weights import Stream, blocks_of
from wantrn.kernels.row_mx import VALUES
from wantrn.kernels.words import words


@jit
def o_proj(x: Any, weight: Any, plan: Plan, weight_scales: Any = None, bias: Any = None) -> Any:
    """`x W + bias`, all heads of a token contracted; `C = N * D`.

    With FP8 weights (ROW_MX) the kernel quantizes `x` to MX: blocks of 32 neighbouring channels of
    a token share a power of two as their scale, see `nkisim.mx.quantize`. Then in fp32::

        y = (products * weight_scales) + bias

    and in both cases the result is rounded once.

    Args:
        x: `[B, N, D, S]` bf16, as attention gives it with its `tp_out`.
        weight: `[C, H]` bf16, or `[C/4, H, 4]` float8_e4m3fn, see `wantrn.kernels.row_mx`; `H` a
            multiple of 128, and `C` too with FP8.
        plan: from `wantrn.kernels.projections.best_o_proj_plan`, for these sizes; it changes the
            time and no bit of the result.
        weight_scales: `[1, H]` fp32, exactly with FP8.
        bias: `[1, H]` fp32 or bf16.

    Returns:
        `[B, S, H]` bf16.

    Raises:
        AssertionError: a rule of `wantrn.kernels.projections.rules` is broken, or the plan is for
            other sizes.
    """
    problem = broken_by_o_proj_tensors(x, weight, weight_scales, bias)
    assert problem == None, problem
    sizes = o_proj_sizes(x, weight, bias)
    problem = broken_by_o_proj_sizes(sizes, nisa.get_nc_version() >= nisa.nc_version.gen4)
    assert problem == None, problem
    assert plan.sizes == sizes, f"the plan is for {plan.sizes}; the call has {sizes}"
    out = nl.ndarray((sizes.batch, sizes.tokens, sizes.width), nl.bfloat16, buffer=nl.shared_hbm)
    tiles = tiles_of(sizes.batch, sizes.tokens, nl.program_id(), nl.num_programs())
    if not tiles:
        return out
    passes = passes_of(tiles, plan.choice.pass_tiles, sizes.packed)
    bias_dtype = None if bias == None else bias.dtype
    memory = allocate(
        plan.buffers,
        Dtypes(tokens=x.dtype, weights=weight.dtype, up_bias=None, bias=bias_dtype),
    )
    set_neutral(memory.neutral_scales())
    blocks = blocks_of(weight, words(sizes.depth, sizes.packed), plan.choice.down_block)
    stream = Stream(blocks=blocks, passes=len(passes), slots=memory.weights, packed=sizes.packed)
    rows = Rows(out=out, memory=memory, scales=weight_scales, bias=bias)
    loaded = [load_heads(x, passes[0], sizes, memory)]
    stream.load_upto(1)
    rows.load(blocks[0])
    for number, tokens in enumerate(passes):
        for index, block in enumerate(blocks):
            # vectors are small and come before the weights of their block
            if number == 0 and index + 1 < len(blocks):
                rows.load(blocks[index + 1])
            weights = stream.use(number * len(blocks) + index)
            rows.project(loaded[number], weights, block, tokens)
            if index == 0 and number + 1 < len(passes):
                loaded.append(load_heads(x, passes[number + 1], sizes, memory))
    return out


def load_heads(x: Any, tokens: Pass, sizes: OProjSizes, memory: Memory) -> Operand:
    """The channels of a pass's tokens, `[TILE, depth, tokens]`; with FP8 weights quantized."""
    source = x[tokens.batch].flatten_dims(0, 1)[:, tokens.first : tokens.first + tokens.count]
    count = words(sizes.depth, sizes.packed)
    depth = -(-count // TILE)
    if not sizes.packed:
        slot = memory.tokens.take()[:, 0 : depth * tokens.count].reshape_dim(
            1, (depth, tokens.count)
        )
        for index, at in enumerate(range(0, count, TILE)):
            rows = min(TILE, count - at)
            nisa.dma_copy(slot[0:rows, index, :], source[at : at + rows, :])
        return Operand(words=count, data=slot)
    shape = (depth, tokens.even)
    codes = memory.codes.take()[:, 0 : depth * tokens.even].reshape_dim(1, shape)
    scales = memory.code_scales.take()[:, 0 : depth * tokens.even].reshape_dim(1, shape)
    for index, at in enumerate(range(0, count, TILE)):
        rows = min(TILE, count - at)
        staged = _staged(source[VALUES * at : VALUES * (at + rows), :], tokens, memory)
        nisa.quantize_mx(codes[0:rows, index, :], staged, scales[:, index, :])
    fill_tail(codes, scales, count)
    return Operand(words=count, data=codes, scales=scales)


def _staged(source: Any, tokens: Pass, memory: Memory) -> Any:
    """Four channels of each partition, tokens first: SBUF bf16 `[rows, tokens * 4]`.

    Channel `4 k + q` is value `q` of partition `k`. A transfer can bring rows of HBM, a value for
    each token; the Scalar engine puts the four of a token side by side.
    """
    rows = source.shape[0] // VALUES
    columns = VALUES * tokens.even
    raw = memory.tokens.take()[0:rows, 0:columns].reshape_dim(1, (VALUES, tokens.even))
    if tokens.even > tokens.count:
        nisa.memset(raw[:, :, tokens.count : tokens.even], 0.0)
    nisa.dma_copy(raw[:, :, 0 : tokens.count], source.reshape_dim(0, (rows, VALUES)))
    staged = memory.staged.take()[0:rows, 0:columns]
    turned = staged.reshape_dim(1, (tokens.even, VALUES)).permute((0, 2, 1))
    nisa.tensor_copy(turned, raw, engine=nisa.engine.scalar)
    return staged
