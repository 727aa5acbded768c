"""The software pipeline of one core: scores, exponentials and outputs of three groups at a time."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.attention.buffers import Buffers
from wantrn.kernels.attention.items import Item
from wantrn.kernels.attention.options import Options
from wantrn.kernels.attention.output import Outputs, finish, load_output_before, value_chunk
from wantrn.kernels.attention.plan import Plan
from wantrn.kernels.attention.scores import begin_scores, score_chunk
from wantrn.kernels.attention.softmax import (
    add_sink,
    begin_exp,
    exp_chunk,
    update_max,
    update_sum,
)
from wantrn.kernels.attention.sources import Sources
from wantrn.kernels.nki import nl


class Pipeline(nl.NKIObject):
    """The stages of all items, and in which order they are issued."""

    sources: Sources
    outputs: Outputs
    options: Options
    plan: Plan
    buffers: Buffers
    items: list[Item]

    def step(self, scoring: Any, exponential: Any, valued: Any) -> None:
        """One step of the pipeline: three items at three stages, chunk by chunk in turn, so that
        the Tensor engine has both matmuls to choose from."""
        has_sink = self.sources.inputs.sink != None
        chunks = 0
        for item in (scoring, exponential, valued):
            if item != None:
                chunks = max(chunks, len(item.chunks))
        q, k, bounds = None, None, None
        if scoring != None:
            # the first product waits for Q and the first keys, not for all values
            self.sources.load_queries(scoring)
            self.sources.load_kv(scoring.kv)
            q, k = self.sources.queries_of(scoring), self.sources.keys_of(scoring)
            bounds = self.sources.bounds_of(scoring)
            begin_scores(scoring, has_sink)
        if exponential != None:
            begin_exp(exponential, has_sink)
        for item in (exponential, valued):
            if item != None:
                load_output_before(item, self.outputs, self.plan.d)
        for index in range(chunks):
            if valued != None and index < len(valued.chunks):
                value_chunk(valued, index, self.sources.values_of(valued), self.buffers)
            if exponential != None and index < len(exponential.chunks):
                exp_chunk(exponential, index, self.buffers)
            if scoring != None and index < len(scoring.chunks):
                score_chunk(scoring, index, q, k, self.options, bounds, self.buffers)
        if scoring != None:
            update_max(scoring, self.sources.sink_of(scoring))
        if exponential != None:
            add_sink(exponential, self.sources.sink_of(exponential))
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

    def prefetch_kv(self, oldest: int, newest: int) -> None:
        """Load what comes next into a buffer that no item under way reads any more.

        `oldest`, `newest`: numbers of the loads of the items under way.
        """
        following = newest + 1
        if following <= self.items[-1].kv and following - oldest < self.plan.kv_buffers:
            self.sources.load_kv(following)
