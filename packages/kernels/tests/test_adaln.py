from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from statements import assert_rounds_to, by_token, normalise, rounded
from torch import Tensor

from wantrn.kernels.ops import Norm, adaln_modulate, gated_adaln_modulate, gated_add


@st.composite
def rows(draw: st.DrawFn, batch: int, tokens: int, hidden: int) -> Tensor | None:
    """None, a vector, or rows for runs of tokens."""
    form = draw(st.sampled_from(["none", "vector", "rows"]))
    if form == "none":
        return None
    if form == "vector":
        return torch.randn(hidden)
    runs = draw(st.sampled_from([g for g in range(1, tokens + 1) if tokens % g == 0]))
    return torch.randn(draw(st.sampled_from([1, batch])), runs, hidden)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    torch.manual_seed(draw(st.integers(0, 1000)))
    batch, tokens, hidden = (
        draw(st.integers(1, 3)),
        draw(st.integers(1, 12)),
        draw(st.integers(2, 40)),
    )
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16]))
    x = (torch.randn(batch, tokens, hidden) * 3 + 1).to(dtype)
    residual = torch.randn(batch, tokens, hidden).to(dtype)
    gate, mul, add = (draw(rows(batch, tokens, hidden)) for _ in range(3))
    return x, residual, gate, mul, add


def statement(
    stream: Tensor, mul: Tensor | None, add: Tensor | None, norm: Norm, eps: float
) -> Tensor:
    tokens = stream.shape[1]
    out = normalise(stream.double(), norm.value, eps)
    out = out if mul is None else out * by_token(mul, tokens)
    return out if add is None else out + by_token(add, tokens)


@settings(max_examples=80, deadline=None)
@given(case=cases(), norm=st.sampled_from(Norm))
def test_agrees_with_its_statement(
    case: tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None], norm: Norm
) -> None:
    x, residual, gate, mul, add = case
    eps = 1e-3  # of two equal values the variance is zero: eps keeps the condition number small
    gated = x.double() * (1 if gate is None else by_token(gate, x.shape[1]))
    scale = float(gated.abs().max() + residual.double().abs().max())
    stream = gated_add(x, residual, gate)
    assert_rounds_to(stream, residual.double() + gated, 2, scale)

    both, out = gated_adaln_modulate(x, residual, gate, mul, add, norm=norm, eps=eps)
    assert torch.equal(both, stream)
    expected = statement(both, mul, add, norm, eps)
    # the fp32 statistics' error grows with the stream's size over its spread, at most sqrt(1/eps)
    bound = float(expected.abs().max()) + 1
    if x.dtype == torch.float32:
        assert_rounds_to(out, expected, 500 * (1 + scale), bound)
    else:
        assert_rounds_to(out, expected, 1.1, bound)
    assert torch.equal(out, adaln_modulate(both, mul, add, norm=norm, eps=eps))


def test_stream_is_rounded_before_it_is_normalised() -> None:
    torch.manual_seed(0)
    x, residual = torch.randn(1, 4, 64).bfloat16(), torch.randn(1, 4, 64).bfloat16() * 50
    stream, out = gated_adaln_modulate(x, residual)
    exact = rounded(residual.double() + x.double(), torch.bfloat16)
    assert torch.equal(stream.double(), exact)
    assert_rounds_to(out, normalise(exact, "layer", 1e-6), 1.1, 4.0)


def test_modulation_is_not_rounded_to_bf16() -> None:
    """1 + 2**-12 is no bf16 number; times 4096 the difference is."""
    x = torch.full((1, 1, 2), 4096.0, dtype=torch.bfloat16)
    mul, add = torch.full((2,), 1 + 2.0**-12), torch.full((2,), -4096.0)
    assert adaln_modulate(x, mul, add, norm=Norm.NONE).tolist() == [[[1.0, 1.0]]]


def test_result_is_never_the_argument() -> None:
    x = torch.randn(1, 2, 3)
    out = adaln_modulate(x, norm=Norm.NONE)
    assert torch.equal(out, x)
    assert out.data_ptr() != x.data_ptr()


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((7,), torch.float32),
        ((1, 5, 8), torch.float32),  # 5 does not divide 12
        ((1, 0, 8), torch.float32),
        ((3, 1, 8), torch.float32),  # neither 1 nor the batch
        ((1, 8), torch.float32),
        ((8,), torch.bfloat16),
    ],
)
@pytest.mark.parametrize("name", ["gate", "mul", "add"])
def test_misfit_rows_are_named(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.zeros(2, 12, 8)
    with pytest.raises(ValueError, match=f"{name} must be"):
        gated_adaln_modulate(x, x, **{name: torch.zeros(shape, dtype=dtype)})  # type: ignore[arg-type]


def test_misfit_streams_are_named() -> None:
    x = torch.zeros(2, 12, 8)
    with pytest.raises(ValueError, match="x must be"):
        adaln_modulate(x[0])
    with pytest.raises(ValueError, match="residual must be"):
        gated_add(x, x[:, :6])
    with pytest.raises(ValueError, match="residual must be"):
        gated_adaln_modulate(x, x.bfloat16())
