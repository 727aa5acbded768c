"""Sequence attention on real ranks, against float64 attention of the whole sequence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from exact_attention import excess
from processes import Ranks
from sequence_groups import sequence_groups
from torch import Tensor

from wantrn.parallel.attention import SequenceAttention, Strategy, torch_attend
from wantrn.parallel.tokens import TokenShards

# ranks may share a sequence in any order
ORDER = (5, 2, 7, 0, 3, 6, 1, 4)
LAYOUTS = [(1, 1), (2, 1), (3, 1), (4, 1), (8, 1), (1, 2), (1, 3), (1, 4), (1, 8)]
LAYOUTS += [(2, 2), (3, 2), (2, 4), (4, 2)]
TOTALS = (1, 3, 5, 16, 23, 34)
KINDS = ((torch.float32, 1), (torch.float32, 2), (torch.bfloat16, 1), (torch.bfloat16, 2))


@dataclass(frozen=True)
class Case:
    """Attention of one sequence; ``extra`` tokens of padding are in a part beyond need."""

    strategy: Strategy
    total: int
    dtype: torch.dtype = torch.float32
    batch: int = 1
    heads: int = 1
    width: int = 8
    extra: int = 0

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(self.total)
        shape = (3, self.batch, self.total, self.heads, self.width)
        q, k, v = torch.randn(shape, generator=generator).to(self.dtype).unbind()
        return q, k, v

    def part(self, position: int, parts: int) -> tuple[Tensor, Tensor, Tensor]:
        """A part of the inputs, in memory of its own. Keys and values of padding are NaN."""
        length = -(-self.total // parts) + self.extra
        start, missing = position * length, length * parts - self.total
        padded = [
            F.pad(x, (0, 0, 0, 0, 0, missing), value=value)
            for x, value in zip(self.inputs(), (1.0, torch.nan, torch.nan), strict=True)
        ]
        q, k, v = (x[:, start : start + length].clone() for x in padded)
        return q, k, v


@pytest.fixture(scope="module")
def eight() -> Iterator[Ranks]:
    with Ranks(8) as ranks:
        assert ranks.run(dist.get_rank) == list(range(8))
        yield ranks


def results(ring: int, ulysses: int, cases: list[Case]) -> list[Tensor] | None:
    """Of each case, this rank's part."""
    groups = sequence_groups(ORDER[: ring * ulysses], ring, ulysses)
    if groups is None:
        return None
    found = []
    for case in cases:
        attention = SequenceAttention.of(groups, strategy=case.strategy)
        q, k, v = case.part(groups.cp.position, groups.cp.size)
        found.append(attention(q, k, v, case.total))
    return found


def check(ranks: Ranks, ring: int, ulysses: int, cases: list[Case]) -> None:
    answers = ranks.run(results, ring, ulysses, cases)
    parts = [answers[rank] for rank in ORDER[: ring * ulysses]]
    for case, *outs in zip(cases, *parts, strict=True):
        whole = torch.cat(outs, 1)
        assert whole.isfinite().all(), case
        assert whole.dtype is case.dtype
        assert excess(whole[:, : case.total], *case.inputs()) <= 0, case


@pytest.mark.parametrize(("ring", "ulysses"), LAYOUTS)
def test_ranks_together_are_as_one(eight: Ranks, ring: int, ulysses: int) -> None:
    cases = [
        Case(strategy, total, dtype, batch, heads=ulysses * batch, extra=total % 2)
        for strategy in Strategy
        for total in TOTALS
        for dtype, batch in KINDS
    ]
    check(eight, ring, ulysses, cases)


def test_a_sequence_that_eight_ranks_cannot_share_evenly(eight: Ranks) -> None:
    """240 x 432 pixels and 33 frames."""
    check(eight, 8, 1, [Case(strategy, 3645) for strategy in Strategy])


@pytest.mark.parametrize("total", [256, 1100])
def test_small_and_large_messages(eight: Ranks, total: int) -> None:
    cases = [Case(strategy, total, heads=4, width=32) for strategy in Strategy]
    check(eight, 1, 2, cases)
    check(eight, 2, 2, cases)


def views(ring: int, strategy: Strategy) -> list[Tensor] | None:
    """Results for inputs that are views, the same tensor, and to be differentiated or not."""
    groups = sequence_groups(ORDER[:ring], ring, 1)
    if groups is None:
        return None
    attention = SequenceAttention.of(groups, strategy=strategy)
    case = Case(strategy, total=23, heads=2)
    packed = torch.stack(case.part(groups.cp.position, ring), 2)
    q, k, v = packed.unbind(2)
    outs = [attention(q, k, v, case.total)]
    q, k, v = packed.movedim(2, 0).contiguous()
    outs.append(attention(q, k, v, case.total))
    with torch.inference_mode():
        q, k, v = packed.movedim(2, 0).contiguous()
        outs.append(attention(q, k, v, case.total))
    q, k, v = (x.clone().requires_grad_() for x in packed.unbind(2))
    outs.append(attention(q, k, v, case.total))
    assert not outs[-1].requires_grad
    x = packed[:, :, 0].contiguous()
    outs.append(attention(x, x, x, case.total))
    kv = packed[:, :, 0].contiguous()
    outs.append(attention(packed[:, :, 0].contiguous(), kv, kv, case.total))
    return outs


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("ring", [2, 4])
def test_views_and_tensors_that_share_memory(eight: Ranks, ring: int, strategy: Strategy) -> None:
    answers = eight.run(views, ring, strategy)
    q, k, v = Case(strategy, total=23, heads=2).inputs()
    expected = [(q, k, v)] * 4 + [(q, q, q)] * 2
    parts = zip(*(answers[rank] for rank in ORDER[:ring]), strict=True)
    for inputs, outs in zip(expected, parts, strict=True):
        assert excess(torch.cat(outs, 1)[:, :23], *inputs) <= 0


def with_a_kernel(ring: int, ulysses: int) -> list[tuple[Tensor, Tensor, object]] | None:
    """What a kernel is given, and what becomes of its result."""
    groups = sequence_groups(ORDER[: ring * ulysses], ring, ulysses)
    if groups is None:
        return None
    seen: list[object] = []

    def kernel(q: Tensor, k: Tensor, v: Tensor, total: int) -> Tensor:
        seen.append((tuple(q.shape), tuple(k.shape), tuple(v.shape), total))
        return 2 * q + 3 * k + 5 * v

    case = Case(Strategy.RING, total=24, heads=4)
    q, k, v = case.part(groups.cp.position, groups.cp.size)
    out = SequenceAttention.of(groups, ring_kernel=kernel)(q, k, v, 24)
    return [(out, 2 * q + 3 * k + 5 * v, seen)]


@pytest.mark.parametrize(("ring", "ulysses"), [(2, 1), (1, 2), (2, 2)])
def test_a_kernel_has_the_tokens_of_its_ranks(eight: Ranks, ring: int, ulysses: int) -> None:
    shape = (1, 24 // ring, 4 // ulysses, 8)
    answers = eight.run(with_a_kernel, ring, ulysses)
    for rank in ORDER[: ring * ulysses]:
        ((out, expected, seen),) = answers[rank]
        assert torch.equal(out, expected)
        assert seen == [(shape, shape, shape, 24)]


def taken_and_joined(total: int, parts: int) -> Tensor | None:
    groups = sequence_groups(ORDER[:parts], parts, 1)
    if groups is None:
        return None
    shards = TokenShards.of(total, groups.cp)
    x = torch.arange(6.0 * total).view(2, total, 3)
    return shards.join(shards.take(x, 1), 1, groups.cp)


@pytest.mark.parametrize("parts", [1, 3, 8])
def test_what_ranks_take_they_can_join(eight: Ranks, parts: int) -> None:
    for total in (5, 8, 24, 25):
        answers = eight.run(taken_and_joined, total, parts)
        for rank in ORDER[:parts]:
            assert torch.equal(answers[rank], torch.arange(6.0 * total).view(2, total, 3))


def local_attention(case: Case) -> Tensor:
    q, k, v = case.inputs()
    return torch_attend(q, k, v).out.to(case.dtype)


def test_one_rank_gives_the_bits_of_its_local_attention(eight: Ranks) -> None:
    cases = [
        Case(strategy, 23, dtype, batch, heads=2, extra=extra)
        for strategy in Strategy
        for dtype, batch in KINDS
        for extra in (0, 3)
    ]
    found = eight.run(results, 1, 1, cases)[ORDER[0]]
    for case, out in zip(cases, found, strict=True):
        assert torch.equal(out[:, :23], local_attention(case))
