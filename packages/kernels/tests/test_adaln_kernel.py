"""What `adaln_modulate` and `row_quantize` compute, against statements in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from statements import ROUNDOFF, by_token, normalise
from torch import Tensor

import nkisim
from nkisim.settings import Rules
from wantrn.kernels.adaln import Options, adaln_modulate, adaln_reference, row_quantize
from wantrn.kernels.row_mx import dequantize_rows, quantize_rows, unpack_rows

BF16, FP32 = torch.bfloat16, torch.float32
# nothing is read that nothing wrote, and no two cores touch the same bytes
STRICT = Rules(uninitialized="error", unwritten_output="error")
# Roundings of fp32 before the last one: of the mean and the variance, whose sums have up to three
# levels (8), of 1 / sqrt (2), the offset (2), the normalised value (2), the modulation (2).
FP32_ROUNDINGS = 16


def launch(kernel: Any, *args: Any, lnc: int = 1, target: str = "gen4") -> Any:
    return nkisim.simulate(kernel, target=target, rules=STRICT)[lnc](*args)


def rows(shape: tuple[int, ...], seed: int, dtype: torch.dtype = FP32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def spread(vector: Tensor | None, x: Tensor, default: float) -> Tensor:
    if vector is None:
        return torch.full((1, 1, 1), default, dtype=torch.float64)
    return by_token(vector, x.shape[1])


def assert_stream(found: Tensor, x: Tensor, residual: Tensor, gate: Tensor | None) -> None:
    """Rounded once, after a product and a sum in fp32."""
    product = spread(gate, x, 1.0) * x.double()
    expected = product + residual.double()
    fp32 = ROUNDOFF[FP32] * (product.abs() + expected.abs())
    assert ((found.double() - expected).abs() <= fp32 + ROUNDOFF[x.dtype] * expected.abs()).all()


def modulated(
    stream: Tensor, options: Options, mul: Tensor | None, add: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The values in float64, and what fp32 may have changed of them."""
    wide = stream.double()
    mul, add = spread(mul, stream, 1.0), spread(add, stream, 0.0)
    normal = normalise(wide, options.norm, options.eps)
    size = wide.abs()
    if options.norm != "none":
        # a rounding of the mean is relative to the values, not to their distances from it
        centre = wide.mean(-1, keepdim=True) if options.norm == "layer" else 0.0
        variance = (wide - centre).square().mean(-1, keepdim=True)
        size = (wide.abs().amax(-1, keepdim=True)) / torch.sqrt(variance + options.eps)
    y = normal * mul + add
    return y, FP32_ROUNDINGS * ROUNDOFF[FP32] * (size * mul.abs() + add.abs())


def assert_values(found: Tensor, y: Tensor, fp32: Tensor) -> None:
    assert ((found.double() - y).abs() <= fp32 + ROUNDOFF[found.dtype] * y.abs()).all()


def assert_packed(found: Tensor, y: Tensor, fp32: Tensor, limit: float) -> None:
    """The scale is that of the row, and each value is off by half a step of its code at most."""
    codes, scales = unpack_rows(found)
    expected = (y.abs().amax(-1) / limit).clamp(min=1e-6)
    noise = fp32.amax(-1) / limit + 2 * ROUNDOFF[FP32] * expected
    assert ((scales.double() - expected).abs() <= noise).all()
    assert float(codes.float().abs().max()) <= limit
    # a half of 2 ** -3 relative, or of the smallest step 2 ** -9
    step = torch.maximum(2.0**-4 * y.abs(), 2.0**-10 * expected[..., None])
    slack = fp32 + noise[..., None] * limit + 4 * ROUNDOFF[FP32] * y.abs()
    assert ((dequantize_rows(found).double() - y).abs() <= step + slack).all()


@settings(max_examples=70, deadline=None)
@given(
    batch=st.integers(1, 3),
    groups=st.tuples(*[st.sampled_from(["none", "all", "one", "runs", "each"])] * 3),
    shared=st.booleans(),
    tokens=st.sampled_from([1, 6, 96, 128, 130, 256, 258]),
    hidden=st.sampled_from([4, 100, 512, 516, 1032, 2052]),
    dtype=st.sampled_from([BF16, FP32]),
    norm=st.sampled_from(["layer", "layer", "rms", "none"]),
    with_residual=st.booleans(),
    limit=st.sampled_from([0.0, 0.0, 240.0, 448.0]),
    lnc=st.sampled_from([1, 2]),
)
def test_any_call(
    batch: int,
    groups: tuple[str, str, str],
    shared: bool,
    tokens: int,
    hidden: int,
    dtype: torch.dtype,
    norm: str,
    with_residual: bool,
    limit: float,
    lnc: int,
) -> None:
    def vector(kind: str, seed: int) -> Tensor | None:
        count = {"all": 1, "one": 1, "runs": 2 if tokens % 2 == 0 else 1, "each": tokens}
        if kind == "none":
            return None
        several = 1 if shared or kind == "all" else batch
        return rows((several, count[kind], hidden), seed) + 0.5

    x = rows((batch, tokens, hidden), 1, dtype)
    mul, add, gate = (vector(kind, 2 + i) for i, kind in enumerate(groups))
    residual = rows((batch, tokens, hidden), 5, dtype) if with_residual else None
    gate = gate if with_residual else None
    plain = norm == "none" and not limit and mul is None and add is None
    if plain and not with_residual:
        norm = "layer"
        plain = False
    options = Options(norm, 1e-6, limit)
    found = launch(adaln_modulate, x, options, mul, add, residual, gate, lnc=lnc)
    stream = x
    if residual is not None:
        stream, out = (found, None) if plain else found
        assert_stream(stream, x, residual, gate)
    else:
        out = found
    if out is None:
        return
    values = modulated(stream, options, mul, add)
    if limit:
        assert out.shape == (batch, tokens, hidden + 4)
        assert_packed(out, *values, limit)
    else:
        assert out.dtype == dtype and out.shape == x.shape
        assert_values(out, *values)
    reference = adaln_reference(x, options, mul, add, residual, gate)
    assert torch.equal(stream, reference[0])
    # the last bits of fp32 are not those of the reference, and sometimes that shows
    differ = (out.view(torch.uint8) != reference[1].view(torch.uint8)).double().mean()
    assert dtype == FP32 or limit or float(differ) < 0.01


@settings(max_examples=30, deadline=None)
@given(
    tokens=st.sampled_from([1, 5, 128, 129, 300]),
    hidden=st.sampled_from([4, 64, 1028, 2048]),
    dtype=st.sampled_from([BF16, FP32]),
    kind=st.sampled_from([(448.0, "gen4"), (240.0, "gen4"), (240.0, "gen3")]),
    magnitude=st.sampled_from([0.0, 1e-9, 1e-4, 1.0, 1e4]),
    lnc=st.sampled_from([1, 2]),
)
def test_rows_are_quantized_to_the_bit(
    tokens: int,
    hidden: int,
    dtype: torch.dtype,
    kind: tuple[float, str],
    magnitude: float,
    lnc: int,
) -> None:
    limit, target = kind
    x = (magnitude * rows((2, tokens, hidden), hidden)).to(dtype)
    found = launch(row_quantize, x, limit, lnc=lnc, target=target)
    assert torch.equal(found.view(torch.uint8), quantize_rows(x, limit).view(torch.uint8))


def test_a_row_of_codes_above_240_is_one_only_where_the_format_has_them() -> None:
    x = rows((1, 3, 64), 0, BF16)
    largest = [
        float(unpack_rows(launch(row_quantize, x, limit))[0].float().abs().max())
        for limit in (240.0, 448.0)
    ]
    assert largest == [240.0, 448.0]


@pytest.mark.parametrize("offset", [10.0, 300.0])
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_rows_far_from_zero(offset: float, norm: str) -> None:
    x = rows((1, 130, 640), 3) + offset
    options = Options(norm)
    assert_values(launch(adaln_modulate, x, options), *modulated(x, options, None, None))


def test_constant_rows() -> None:
    x = torch.full((1, 5, 64), 3.0, dtype=BF16)
    assert (launch(adaln_modulate, x, Options("layer")) == 0).all()
    assert (launch(adaln_modulate, x, Options("rms")).double() - 1).abs().max() < 2.0**-8


def test_modulation_is_not_rounded_to_the_rows_dtype() -> None:
    """`1 + scale` of bf16 would lose a scale of 2 ** -10."""
    x = rows((1, 64, 256), 1, BF16)
    mul = torch.full((1, 1, 256), 1 + 2.0**-10)
    add = torch.full((1, 1, 256), -1.0)
    options = Options("none")
    values = x.double() * (1 + 2.0**-10) - 1
    found = launch(adaln_modulate, x, options, mul, add)
    assert_values(found, values, 2 * ROUNDOFF[FP32] * (values.abs() + 1))


def test_rows_that_change_from_one_tile_to_the_next() -> None:
    x = rows((2, 256, 64), 1, BF16)
    mul, add = rows((2, 2, 64), 2), rows((2, 1, 64), 3)
    options = Options()
    found = launch(adaln_modulate, x, options, mul, add)
    assert_values(found, *modulated(x, options, mul, add))


@pytest.mark.parametrize("limit", [0.0, 448.0])
def test_the_same_bits_with_one_core_and_with_two(limit: float) -> None:
    x, residual = rows((2, 300, 512), 1, BF16), rows((2, 300, 512), 2, BF16)
    mul, gate = rows((2, 3, 512), 3), rows((1, 300, 512), 4)
    args = (x, Options(limit=limit), mul, None, residual, gate)
    for one, two in zip(
        launch(adaln_modulate, *args, lnc=1), launch(adaln_modulate, *args, lnc=2), strict=True
    ):
        assert torch.equal(one.view(torch.uint8), two.view(torch.uint8))
