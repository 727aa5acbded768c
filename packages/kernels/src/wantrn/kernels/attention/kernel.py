"""`attention_cte`: the kernel, its loop over the work of a core, and its software pipeline."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.attention.bounds import Bounds, broadcast_scalar, make_bounds, pack_bounds
from wantrn.kernels.attention.buffers import Buffers, allocate
from wantrn.kernels.attention.items import Item, items_of, plan_of, shards_of
from wantrn.kernels.attention.loads import load_keys, load_rows_as_columns, load_values
from wantrn.kernels.attention.options import Options, Sizes, sizes_of
from wantrn.kernels.attention.output import Outputs, finish, load_output_before, value_chunk
from wantrn.kernels.attention.plan import GROUP, Q_PACK, Plan
from wantrn.kernels.attention.rules import (
    broken_by_extras,
    broken_by_options,
    broken_by_sizes,
    broken_by_tensors,
)
from wantrn.kernels.attention.scores import begin_scores, score_chunk
from wantrn.kernels.attention.softmax import (
    add_sink,
    begin_exp,
    exp_chunk,
    update_max,
    update_sum,
)
from wantrn.kernels.nki import jit, nl


class Inputs(nl.NKIObject):
    """The tensors of a call, all in HBM; see `attention_cte`."""

    q: Any
    k: Any
    v: Any
    k_prior: Any = None
    v_prior: Any = None
    bounds: Any = None
    sink: Any = None


class Stages(nl.NKIObject):
    """The stages of the pipeline of one core, and what they share."""

    inputs: Inputs
    outputs: Outputs
    options: Options
    sizes: Sizes
    plan: Plan
    buffers: Buffers
    items: list[Item]
    cp_offset: Any = None
    used: Any = None
    loaded_kv: list[Any]
    loaded_q: list[Any]
    bounds: list[Bounds]
    bounded_shard: Any = None
    sinks: list[Any]

    # K and V

    def load_kv(self, number: int) -> None:
        """Load number `number` of K and V, unless it is there."""
        while len(self.loaded_kv) <= number:
            item = self.first_item(len(self.loaded_kv))
            prior = item.section.is_prior
            kv = item.shard.batch // (self.sizes.batch // self.sizes.kv_batch)
            k_src = self.inputs.k_prior if prior else self.inputs.k
            v_src = self.inputs.v_prior if prior else self.inputs.v
            k, v = self.buffers.k.take(), self.buffers.v.take()
            load_keys(k, k_src[kv], item.section, self.options.tp_k)
            load_values(v, v_src[kv], item.section)
            self.loaded_kv.append((k, v))

    def first_item(self, number: int) -> Item:
        """The first item that needs load `number`."""
        for item in self.items:
            if item.kv == number:
                return item
        raise AssertionError("no item needs this load")

    def prefetch_kv(self, oldest: int, newest: int) -> None:
        """Load what comes next into a buffer that no item under way reads any more.

        `oldest`, `newest`: numbers of the loads of the items under way.
        """
        following = newest + 1
        if following <= self.items[-1].kv and following - oldest < self.plan.kv_buffers:
            self.load_kv(following)

    # Q, bounds and sinks

    def load_queries(self, item: Any) -> None:
        """Load the queries of the item's group and of its neighbours, unless they are there."""
        if item == None or item.pack < len(self.loaded_q):
            return
        start = item.shard.q0 + item.group // Q_PACK * Q_PACK * GROUP
        count = min(Q_PACK * GROUP, item.shard.q0 + item.shard.rows - start)
        slot = self.buffers.q.take()
        src = self.inputs.q[item.shard.batch]
        load_rows_as_columns(slot[:, 0:count], src, start, count, self.options.tp_q)
        self.loaded_q.append(slot)

    def queries_of(self, item: Item) -> Any:
        """`[D, rows]` of the item's group."""
        at = item.group % Q_PACK * GROUP
        return self.loaded_q[item.pack][:, at : at + item.rows]

    def bounds_of(self, item: Item) -> Any:
        """The bounds of the item's shard, or None."""
        if not item.section.bounded:
            return None
        shard = item.shard
        if self.bounded_shard != shard:
            self.bounded_shard = shard
            groups = -(-shard.rows // GROUP)
            made = make_bounds(self.options, shard.q0, groups, self.cp_offset, self.used)
            if self.inputs.bounds != None:
                given = (self.inputs.bounds[0][shard.batch], self.inputs.bounds[1][shard.batch])
                made = pack_bounds(made, given, shard.q0, shard.rows)
            self.bounds.append(made)
        return self.bounds[-1]

    def sink_of(self, item: Item) -> Any:
        """fp32 `[GROUP, 1]`, or None."""
        if self.inputs.sink == None:
            return None
        if self.sinks[item.shard.batch] == None:
            src = self.inputs.sink[item.shard.batch : item.shard.batch + 1, :]
            self.sinks[item.shard.batch] = broadcast_scalar(src)
        return self.sinks[item.shard.batch]

    # The pipeline

    def step(self, scoring: Any, exponential: Any, valued: Any) -> None:
        """One step of the pipeline: three items at three stages, chunk by chunk in turn, so that
        the Tensor engine has both matmuls to choose from."""
        has_sink = self.inputs.sink != None
        chunks = 0
        for item in (scoring, exponential, valued):
            if item != None:
                chunks = max(chunks, len(item.chunks))
        q, k, bounds = None, None, None
        if scoring != None:
            # the first product waits for Q and the first keys, not for all values
            self.load_queries(scoring)
            self.load_kv(scoring.kv)
            q, k = self.queries_of(scoring), self.loaded_kv[scoring.kv][0]
            bounds = self.bounds_of(scoring)
            begin_scores(scoring, has_sink)
        if exponential != None:
            begin_exp(exponential, has_sink)
        for item in (exponential, valued):
            if item != None:
                load_output_before(item, self.outputs, self.sizes.d)
        for index in range(chunks):
            if valued != None and index < len(valued.chunks):
                value_chunk(valued, index, self.loaded_kv[valued.kv][1], self.buffers)
            if exponential != None and index < len(exponential.chunks):
                exp_chunk(exponential, index, self.buffers)
            if scoring != None and index < len(scoring.chunks):
                score_chunk(scoring, index, q, k, self.options, bounds, self.buffers)
        if scoring != None:
            update_max(scoring, self.sink_of(scoring))
        if exponential != None:
            add_sink(exponential, self.sink_of(exponential))
            update_sum(exponential)
        if valued != None:
            finish(valued, self.outputs, self.buffers)

    def item(self, number: int) -> Any:
        """Item `number`, or None before the first and behind the last."""
        return self.items[number] if 0 <= number < len(self.items) else None

    def run(self) -> None:
        """All items. While the probabilities of one group are multiplied by V, the exponentials of
        the next are computed and the scores of the one after that."""
        exp_lag, pv_lag = self.plan.exp_lag, self.plan.pv_lag
        if pv_lag == 0:
            self.run_one_by_one()
            return
        for number in range(len(self.items) + pv_lag):
            self.step(self.item(number), self.item(number - exp_lag), self.item(number - pv_lag))
            oldest = self.item(max(number - pv_lag + 1, 0))
            newest = self.item(min(number, len(self.items) - 1))
            if oldest != None:
                self.prefetch_kv(oldest.kv, newest.kv)

    def run_one_by_one(self) -> None:
        """All items, none before the one before it is done."""
        for item in self.items:
            self.step(item, None, None)
            self.prefetch_kv(item.kv, item.kv)
            self.step(None, item, None)
            self.step(None, None, item)


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
        longest = max([shard.rows for shard in shards])
        groups = -(-longest // GROUP)
        if not all([item.is_last for item in items]):
            outputs.partial = nl.ndarray(
                (groups * GROUP, sizes.d), nl.float32, buffer=nl.private_hbm
            )
        stages = Stages(
            inputs=Inputs(q=q, k=k, v=v, bounds=bounds, sink=sink),
            outputs=outputs,
            options=options,
            sizes=sizes,
            plan=plan,
            buffers=allocate(plan, q.dtype),
            items=items,
            loaded_kv=[],
            loaded_q=[],
            bounds=[],
            sinks=[None] * sizes.batch,
        )
        if cp_offset != None:
            stages.cp_offset = broadcast_scalar(cp_offset)
        if prior != None:
            stages.inputs.k_prior, stages.inputs.v_prior = prior[0], prior[1]
            stages.used = broadcast_scalar(prior[2])
        stages.run()
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
