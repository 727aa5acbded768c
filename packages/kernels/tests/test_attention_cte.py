"""What `attention_cte` computes, against a float64 statement."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from attention_cases import Case, assert_close, assert_no_worse_than_torch, random_case
from hypothesis import given, settings
from hypothesis import strategies as st

from wantrn.kernels.attention import Options

BF16, FP32, FP16 = torch.bfloat16, torch.float32, torch.float16
LENGTHS = [1, 2, 127, 128, 129, 200, 255, 257, 383]


@settings(max_examples=60, deadline=None)
@given(
    heads=st.sampled_from([(1, 1), (2, 1), (3, 3), (4, 2)]),
    s_q=st.sampled_from(LENGTHS),
    s_k=st.sampled_from([*LENGTHS, 511, 513, 1025, 2049]),
    d=st.sampled_from([1, 16, 64, 128]),
    dtype=st.sampled_from([BF16, FP32, FP16]),
    layout=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    mask=st.sampled_from(["none", "none", "causal", "window", "narrow"]),
    target=st.sampled_from(["gen3", "gen4"]),
    lnc=st.sampled_from([1, 2]),
)
def test_any_call(
    heads: tuple[int, int],
    s_q: int,
    s_k: int,
    d: int,
    dtype: torch.dtype,
    layout: tuple[bool, bool, bool],
    mask: str,
    target: str,
    lnc: int,
) -> None:
    tp_q, tp_k, tp_out = layout
    options = Options(
        scale=1.0 if mask in ("window", "narrow") else d**-0.5,
        causal=mask != "none",
        window={"window": 150, "narrow": 40}.get(mask, 0),
        tp_q=tp_q,
        tp_k=tp_k,
        tp_out=tp_out,
    )
    if options.window:
        s_k = max(s_k, s_q)
    case = random_case(*heads, s_q, s_k, d, options, dtype)
    found = case.run(target, lnc)
    assert found.dtype == dtype
    assert_close(found, case)


@pytest.mark.parametrize("target", ["gen3", "gen4"])
@pytest.mark.parametrize("dtype", [BF16, FP32, FP16])
@pytest.mark.parametrize("causal", [False, True])
def test_errors_against_those_of_torch(target: str, dtype: torch.dtype, causal: bool) -> None:
    case = random_case(2, 1, 384, 1200, 128, Options(scale=0.09, causal=causal), dtype)
    found = case.run(target)
    assert_no_worse_than_torch(found, case)


@pytest.mark.parametrize(
    ("s_q", "s_k", "dtype"),
    [
        (129, 10240, BF16),
        (129, 10241, BF16),
        (257, 16385, BF16),
        (129, 5121, FP32),
        (1, 20000, BF16),
    ],
)
def test_sections(s_q: int, s_k: int, dtype: torch.dtype) -> None:
    case = random_case(1, 1, s_q, s_k, 64, Options(scale=0.3), dtype)
    found = case.run()
    assert_close(found, case)
    assert_no_worse_than_torch(found, case)


def test_a_causal_call_of_several_sections() -> None:
    case = random_case(1, 1, 5400, 5400, 32, Options(scale=0.3, causal=True), FP32)
    assert_close(case.run(), case)


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_long_sequences_are_shared_by_both_cores(lnc: int, batch: int, causal: bool) -> None:
    case = random_case(batch, 1, 1100, 300, 16, Options(scale=0.25, causal=causal))
    assert_close(case.run(lnc=lnc), case)


# Masks that are known only when the kernel runs


def offset(value: int) -> torch.Tensor:
    return torch.full((1, 1), value, dtype=torch.int32)


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(["contiguous", "strided"]),
    rank=st.integers(0, 3),
    degree=st.integers(1, 4),
    s_q=st.sampled_from([1, 100, 129, 260]),
    window=st.sampled_from([0, 0, 60, 300]),
    batch=st.integers(1, 2),
)
def test_a_slice_of_a_longer_sequence(
    kind: str, rank: int, degree: int, s_q: int, window: int, batch: int
) -> None:
    strided = kind == "strided"
    start = rank % degree if strided else rank * s_q
    options = Options(causal=True, window=window, cp=kind, cp_degree=degree if strided else 1)
    case = random_case(batch, 1, s_q, 4 * s_q, 32, options, cp_offset=offset(start))
    assert_close(case.run(), case)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), s_q=st.sampled_from([5, 128, 130, 300]), causal=st.booleans())
def test_sequences_packed_into_one(data: st.DataObject, s_q: int, causal: bool) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, s_q), max_size=4)) | {0, s_q})
    lower, upper = torch.zeros(2, s_q, dtype=torch.int32), torch.zeros(2, s_q, dtype=torch.int32)
    for lo, hi in itertools.pairwise(cuts):
        lower[:, lo:hi], upper[:, lo:hi] = lo, hi
    # the second one reads everything but its first keys
    lower[1], upper[1] = min(3, s_q - 1), s_q
    case = random_case(2, 2, s_q, s_q, 32, Options(causal=causal), bounds=(lower, upper))
    assert_close(case.run(), case)


@settings(max_examples=25, deadline=None)
@given(
    s_prior=st.sampled_from([1, 128, 200, 1100]),
    share=st.sampled_from([0.0, 0.4, 1.0]),
    s_q=st.sampled_from([1, 129, 300]),
    window=st.sampled_from([0, 0, 100, 250]),
    tp_k=st.booleans(),
)
def test_a_prefix(s_prior: int, share: float, s_q: int, window: int, tp_k: bool) -> None:
    options = Options(causal=True, window=window, tp_k=tp_k)
    other = random_case(1, 1, 1, s_prior, 32, options)
    k_prior = other.k if tp_k else other.k.transpose(1, 2).contiguous()
    prior = (k_prior, other.v, offset(int(share * s_prior)))
    case = random_case(2, 1, s_q, s_q, 32, options, prior=prior)
    assert_close(case.run(), case)


def test_a_query_that_reads_no_key_gets_zeros() -> None:
    lower = torch.zeros(1, 200, dtype=torch.int32)
    upper = torch.full((1, 200), 150, dtype=torch.int32)
    lower[0, 7], upper[0, 7] = 30, 30
    lower[0, 199] = 150
    case = random_case(1, 1, 200, 1500, 16, Options(), bounds=(lower, upper))
    found = case.run()
    assert (found[0, [7, 199]] == 0).all()
    assert_close(found, case)


# Sinks and what a backward pass needs


@pytest.mark.parametrize("s_k", [300, 10300])
@pytest.mark.parametrize("logit", [-5.0, 0.0, 40.0])
def test_a_sink(s_k: int, logit: float) -> None:
    sink = torch.tensor([[logit], [logit / 2]])
    case = random_case(2, 1, 130, s_k, 16, Options(scale=0.25), sink=sink)
    assert_close(case.run(), case)


@pytest.mark.parametrize("s_k", [300, 10300])
@pytest.mark.parametrize("tp_out", [False, True])
def test_the_softmax_that_is_kept(s_k: int, tp_out: bool) -> None:
    options = Options(scale=0.25, tp_out=tp_out, cache_softmax=True)
    case = random_case(1, 1, 200, s_k, 16, options, FP32)
    out, neg_max, reciprocal = case.run()
    assert_close(out, case)
    _, wanted_max, wanted_reciprocal = case.expected()
    assert torch.allclose(neg_max.double(), wanted_max, rtol=1e-5, atol=1e-5)
    assert torch.allclose(reciprocal.double(), wanted_reciprocal, rtol=1e-4)


# Numbers that go wrong easily


def loud(case: Case, name: str, factor: float) -> Case:
    q, k = case.q.clone(), case.k.clone()
    (q if name == "q" else k)[:, 5] *= factor
    return Case(q, k, case.v, case.options)


@pytest.mark.parametrize("name", ["q", "k"])
@pytest.mark.parametrize("s_k", [400, 10300])
def test_one_loud_row(name: str, s_k: int) -> None:
    case = loud(random_case(1, 1, 130, s_k, 32, Options(scale=0.18), FP32), name, 60.0)
    assert_close(case.run(), case)


@pytest.mark.parametrize("factor", [0.0, 30.0])
def test_all_rows_loud_or_zero(factor: float) -> None:
    plain = random_case(1, 1, 130, 700, 32, Options(scale=0.18), FP32)
    case = Case(plain.q * factor, plain.k, plain.v, plain.options)
    assert_close(case.run(), case)


def test_constant_keys_give_the_mean() -> None:
    plain = random_case(1, 1, 130, 700, 32, Options(scale=0.18))
    case = Case(plain.q, torch.full_like(plain.k, 3.0), plain.v, plain.options)
    mean = plain.v.double().mean(dim=1, keepdim=True)
    assert ((case.run().double() - mean).abs() < 1e-3).all()


def test_the_same_bits_with_one_core_and_with_two() -> None:
    case = random_case(3, 3, 1100, 260, 16, Options(scale=0.25, causal=True))
    one: Any = case.run(lnc=1)
    assert torch.equal(one, case.run(lnc=2))
