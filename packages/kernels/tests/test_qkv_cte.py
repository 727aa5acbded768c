"""What `qkv_cte` computes, against a reference that rounds where it rounds."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from qkv_cases import assert_within_a_rounding, random_case

from wantrn.kernels.qkv import Options

BF16, FP32 = torch.bfloat16, torch.float32


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 2),
    tokens=st.sampled_from([1, 2, 97, 128, 129, 200, 255, 257, 300]),
    hidden=st.sampled_from([128, 256, 384, 640]),
    heads=st.sampled_from([(1, 0), (2, 2), (3, 1), (5, 0), (9, 2)]),
    head_dim=st.sampled_from([16, 64, 128]),
    packed=st.booleans(),
    epilogue=st.tuples(st.booleans(), st.booleans()),
    bias=st.sampled_from([None, BF16, FP32]),
    heads_first=st.booleans(),
    lnc=st.sampled_from([1, 2]),
    seed=st.integers(0, 100),
)
def test_any_call(
    batch: int,
    tokens: int,
    hidden: int,
    heads: tuple[int, int],
    head_dim: int,
    packed: bool,
    epilogue: tuple[bool, bool],
    bias: torch.dtype | None,
    heads_first: bool,
    lnc: int,
    seed: int,
) -> None:
    norm, rope = epilogue
    options = Options(*heads, head_dim, 1e-5, heads_first)
    case = random_case(
        (batch, tokens, hidden),
        options,
        packed=packed,
        norm=norm,
        rope=rope,
        bias=bias,
        seed=seed,
    )
    assert_within_a_rounding(case.run(lnc), case.expected())


@settings(max_examples=12, deadline=None)
@given(
    ranks=st.sampled_from([2, 4]),
    tokens=st.sampled_from([97, 130, 300]),
    batch=st.integers(1, 2),
    heads=st.sampled_from([(2, 2), (3, 0), (9, 1)]),
    packed=st.booleans(),
    rope=st.booleans(),
    heads_first=st.booleans(),
    lnc=st.sampled_from([1, 2]),
)
def test_heads_spread_over_ranks(
    ranks: int,
    tokens: int,
    batch: int,
    heads: tuple[int, int],
    packed: bool,
    rope: bool,
    heads_first: bool,
    lnc: int,
) -> None:
    options = Options(*heads, 64, 1e-5, heads_first, (tuple(range(ranks)),))
    case = random_case((batch, tokens, 256), options, packed=packed, rope=rope, ranks=ranks)
    assert_within_a_rounding(case.run(lnc), case.expected())
