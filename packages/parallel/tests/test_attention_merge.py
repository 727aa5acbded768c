"""Merging attention to some keys with attention to others."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import torch
from exact_attention import attention, fp32_error
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from wantrn.parallel.attention import Partial, merge_, torch_attend

SEEDS = st.integers(0, 2**31)
SIZES = st.sampled_from([0.1, 1.0, 20.0])


def inputs(seed: int, size: float, keys: int = 24) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(2, 5, 3, 8, generator=generator) * size
    k, v = torch.randn(2, 2, keys, 3, 8, generator=generator).unbind()
    return q, k, v


def none(q: Tensor) -> Partial:
    """Attention to no key."""
    batch, queries, heads, _ = q.shape
    return Partial(torch.zeros_like(q), torch.full((batch, heads, queries), -torch.inf))


def copy(part: Partial) -> Partial:
    return Partial(part.out.clone(), part.lse.clone())


def merged(parts: list[Partial]) -> Partial:
    whole = copy(parts[0])
    for part in parts[1:]:
        merge_(whole, part)
    return whole


@given(SEEDS, SIZES, st.lists(st.integers(0, 24), max_size=5), st.randoms())
def test_parts_of_the_keys_in_any_order_are_all_keys(
    seed: int, size: float, cuts: list[int], order: Random
) -> None:
    q, k, v = inputs(seed, size)
    edges = [0, *sorted(cuts), 24]
    parts = [
        torch_attend(q, k[:, start:end], v[:, start:end]) if start < end else none(q)
        for start, end in pairwise(edges)
    ]
    order.shuffle(parts)
    out, lse = merged(parts)
    exact_out, exact_lse = attention(q, k, v)
    allowed = len(parts) * fp32_error(q, k, v)
    assert (out - exact_out).abs().max() <= allowed
    assert (lse - exact_lse).abs().max() <= allowed


@given(SEEDS, SIZES)
def test_a_part_without_keys_changes_no_bit(seed: int, size: float) -> None:
    q, k, v = inputs(seed, size)
    part = torch_attend(q, k, v)
    for both in ([part, none(q)], [none(q), part], [none(q), none(q), part, none(q)]):
        found = merged(both)
        assert torch.equal(found.out, part.out) and torch.equal(found.lse, part.lse)


def test_no_keys_and_no_keys_are_no_keys() -> None:
    q = torch.randn(1, 3, 2, 4)
    out, lse = merged([none(q), none(q)])
    assert torch.equal(out, torch.zeros_like(out)) and lse.eq(-torch.inf).all()


@given(SEEDS, SIZES)
def test_merging_is_associative_up_to_rounding(seed: int, size: float) -> None:
    q, k, v = inputs(seed, size)
    a, b, c = (torch_attend(q, k[:, i : i + 8], v[:, i : i + 8]) for i in (0, 8, 16))
    left, right = merged([merged([a, b]), c]), merged([a, merged([b, c])])
    allowed = 2 * fp32_error(q, k, v)
    assert (left.out - right.out).abs().max() <= allowed
    assert (left.lse - right.lse).abs().max() <= allowed


def test_parts_that_weigh_differently_by_hundreds_of_orders() -> None:
    out = torch.tensor([1.0, 2.0]).view(2, 1, 1, 1, 1)
    lse = torch.tensor([-4000.0, 4000.0]).view(2, 1, 1, 1)
    light, heavy = (Partial(out[i], lse[i]) for i in range(2))
    for both in ([light, heavy], [heavy, light]):
        found = merged(both)
        assert torch.equal(found.out, heavy.out) and torch.equal(found.lse, heavy.lse)


def test_a_broken_part_is_not_hidden() -> None:
    q, k, v = inputs(0, 1.0)
    part = torch_attend(q, k, v)
    broken = Partial(part.out * torch.nan, part.lse * torch.nan)
    assert merged([part, broken]).out.isnan().all()
