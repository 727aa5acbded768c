"""`attention_cte`, the kernel."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.attention.bounds import broadcast_scalar
from wantrn.kernels.attention.buffers import allocate
from wantrn.kernels.attention.items import items_of, plan_of, shards_of
from wantrn.kernels.attention.options import Options, Sizes, sizes_of
from wantrn.kernels.attention.output import Outputs
from wantrn.kernels.attention.pipeline import Pipeline
from wantrn.kernels.attention.plan import GROUP
from wantrn.kernels.attention.rules import (
    broken_by_extras,
    broken_by_options,
    broken_by_sizes,
    broken_by_tensors,
)
from wantrn.kernels.attention.sources import Inputs, Sources
from wantrn.kernels.nki import jit, nl


@jit
def attention_cte(
    q: Any,
    k: Any,
    v: Any,
    options: Options,
    sink: Any = None,
    cp_offset: Any = None,
    bounds: Any = None,
    prior: Any = None,
) -> Any:
    """`softmax(scale * Q K^T) V`, one head at a time; heads are folded into the batch.

    Args:
        q: `[B, S_q, D]`, or `[B, D, S_q]` without `options.tp_q`; fp32, bf16 or fp16; D <= 128.
        k: `[B_kv, S_k, D]`, or `[B_kv, D, S_k]` without `options.tp_k`. `B_kv` divides `B`:
            sequence `b` of Q reads sequence `b // (B / B_kv)` of K and V.
        v: `[B_kv, S_k, D]`.
        options: see `Options`.
        sink: `[B, 1]` fp32: a logit that takes part in the softmax and has no value.
        cp_offset: `[1, 1]` int32: with `options.cp`, the position of the first query.
        bounds: a pair of `[B, S_q]` int32: query `i` reads keys `bounds[0][i] <= k < bounds[1][i]`.
        prior: `(k_prior, v_prior, used)`: keys that come before those of `k`, as `k` and `v` are
            laid out, and `[1, 1]` int32, how many of them count. Needs `options.causal`.

    Returns:
        `[B, S_q, D]` of Q's dtype, or `[B, D, S_q]` with `options.tp_out`; with
        `options.cache_softmax` a tuple of it, the negated row maxima and the reciprocals of the row
        sums, `[B, S_q]` in fp32. A query that reads no key gets zeros.

    Raises:
        AssertionError: a rule of `wantrn.kernels.attention.rules` is broken, or the buffers do not
            fit; `refusal` tells beforehand.
    """
    problem = broken_by_tensors((q, k, v), options, cp_offset, prior)
    assert problem == None, problem
    sizes = sizes_of(q, k, options, sink, bounds, prior, 4 if q.dtype == nl.float32 else 2)
    for problem in (
        broken_by_extras(sizes, sink, cp_offset, bounds, prior),
        broken_by_options(options),
        broken_by_sizes(sizes, options),
    ):
        assert problem == None, problem
    shards = shards_of(sizes, options, nl.program_id(), nl.num_programs())
    items = items_of(shards, sizes, options)
    plan = plan_of(sizes, items, nl.tile_size.sbuf_fmax_bytes)
    assert plan != None, "the buffers do not fit into SBUF"
    outputs = _outputs(q, sizes, options)
    if items:
        buffers = allocate(plan, q.dtype)
        sources = Sources(
            inputs=Inputs(q=q, k=k, v=v, bounds=bounds, sink=sink),
            options=options,
            sizes=sizes,
            buffers=buffers,
            items=items,
            loaded_kv=[],
            loaded_q=[],
            bounds=[],
            sinks=[None] * sizes.batch,
        )
        if cp_offset != None:
            sources.cp_offset = broadcast_scalar(cp_offset)
        if prior != None:
            sources.inputs.k_prior, sources.inputs.v_prior = prior[0], prior[1]
            sources.used = broadcast_scalar(prior[2])
        if not all([item.is_last for item in items]):
            groups = -(-max([shard.rows for shard in shards]) // GROUP)
            outputs.partial = nl.ndarray(
                (groups * GROUP, sizes.d), nl.float32, buffer=nl.private_hbm
            )
        Pipeline(
            sources=sources,
            outputs=outputs,
            options=options,
            plan=plan,
            buffers=buffers,
            items=items,
        ).run()
    if options.cache_softmax:
        return outputs.o, outputs.neg_max, outputs.reciprocal
    return outputs.o


def _outputs(q: Any, sizes: Sizes, options: Options) -> Outputs:
    shape = (sizes.batch, sizes.s_q, sizes.d)
    if options.tp_out:
        shape = (sizes.batch, sizes.d, sizes.s_q)
    found = Outputs(o=nl.ndarray(shape, q.dtype, buffer=nl.shared_hbm), transposed=options.tp_out)
    if options.cache_softmax:
        rows = (sizes.batch, sizes.s_q)
        found.neg_max = nl.ndarray(rows, nl.float32, buffer=nl.shared_hbm)
        found.reciprocal = nl.ndarray(rows, nl.float32, buffer=nl.shared_hbm)
    return found
