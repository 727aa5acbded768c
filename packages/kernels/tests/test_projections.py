from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from statements import assert_rounds_to, gelu_tanh

from wantrn.kernels.ops import linear, mlp, o_proj

DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
SIZES = st.integers(1, 33)


@settings(max_examples=40, deadline=None)
@given(tokens=SIZES, heads=st.integers(1, 3), head_dim=SIZES, hidden=SIZES, dtype=DTYPES)
def test_o_proj(tokens: int, heads: int, head_dim: int, hidden: int, dtype: torch.dtype) -> None:
    torch.manual_seed(tokens)
    x = torch.randn(2, tokens, heads, head_dim).to(dtype)
    weight, bias = torch.randn(hidden, heads * head_dim).to(dtype), torch.randn(hidden).to(dtype)
    expected = bias.double() + sum(
        x[:, :, n].double() @ weight[:, n * head_dim : (n + 1) * head_dim].double().T
        for n in range(heads)
    )
    scale = float((x.double().abs().flatten(2) @ weight.double().abs().T).max()) + 1
    assert_rounds_to(o_proj(x, weight, bias), expected, 8, scale)


@settings(max_examples=40, deadline=None)
@given(tokens=SIZES, hidden=SIZES, inner=SIZES, out=SIZES, biased=st.booleans(), dtype=DTYPES)
def test_mlp(
    tokens: int, hidden: int, inner: int, out: int, biased: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(tokens)
    x = torch.randn(1, tokens, hidden).to(dtype)
    up = (torch.randn(inner, hidden) / hidden**0.5).to(dtype)
    down = (torch.randn(out, inner) / inner**0.5).to(dtype)
    up_bias = torch.randn(inner).to(dtype) if biased else None
    down_bias = torch.randn(out).to(dtype) if biased else None
    middle = x.double() @ up.double().T + (0 if up_bias is None else up_bias.double())
    active = gelu_tanh(middle)
    expected = active @ down.double().T + (0 if down_bias is None else down_bias.double())
    scale = float((active.abs() @ down.double().abs().T).max()) + 2
    assert_rounds_to(mlp(x, up, up_bias, down, down_bias), expected, 16, scale)


def test_linear_sums_in_fp32() -> None:
    """1 + 4096 * 2**-9 is 9; a bf16 sum would stay at 1, where 2**-9 is below the last bit."""
    x = torch.ones(1, 1, 4097, dtype=torch.bfloat16)
    weight = torch.full((1, 4097), 2.0**-9, dtype=torch.bfloat16)
    weight[0, 0] = 1
    assert linear(x, weight, None).item() == 9.0


def test_misfits_are_named() -> None:
    x = torch.zeros(1, 2, 4)
    with pytest.raises(ValueError, match="x must be"):
        mlp(x[0], torch.zeros(8, 4), None, torch.zeros(4, 8), None)
    with pytest.raises(ValueError, match="up must be"):
        mlp(x, torch.zeros(8, 5), None, torch.zeros(4, 8), None)
    with pytest.raises(ValueError, match="down must be"):
        mlp(x, torch.zeros(8, 4), None, torch.zeros(4, 7), None)
    with pytest.raises(ValueError, match="bias of up"):
        mlp(x, torch.zeros(8, 4), torch.zeros(7), torch.zeros(4, 8), None)
    with pytest.raises(ValueError, match="x must be"):
        o_proj(x, torch.zeros(4, 4), None)
    with pytest.raises(ValueError, match="weight must be"):
        o_proj(x.view(1, 2, 2, 2), torch.zeros(4, 5), None)
    with pytest.raises(ValueError, match="bias of weight"):
        o_proj(x.view(1, 2, 2, 2), torch.zeros(4, 4), torch.zeros(4).bfloat16())
