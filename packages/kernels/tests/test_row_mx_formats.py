"""Packed rows and FP8 weights: layouts, round trips and rounding."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nkisim
from wantrn.kernels.nki import nisa, nl
from wantrn.kernels.row_mx import (
    NEUTRAL_SCALE,
    OCP_LIMIT,
    TRN2_LIMIT,
    ChannelWeight,
    dequantize_rows,
    from_kernel_layout,
    pack_rows,
    quantize_channels,
    quantize_rows,
    row_mx_linear,
    to_kernel_layout,
    unpack_rows,
)

FP8 = torch.float8_e4m3fn
# every byte that is a number
BYTES = torch.tensor([b for b in range(256) if b & 0x7F != 0x7F], dtype=torch.uint8)


def codes(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return BYTES[torch.randint(len(BYTES), shape, generator=generator)].view(FP8)


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.view(torch.uint8).equal(b.view(torch.uint8))


# Packed rows


@pytest.mark.parametrize("width", range(4, 68, 4))
@pytest.mark.parametrize("lead", [(), (1,), (3,), (2, 5)])
def test_rows_unpack_to_what_was_packed(width: int, lead: tuple[int, ...]) -> None:
    before, scales = codes(*lead, width), torch.rand(lead) + 0.5
    packed = pack_rows(before, scales)
    assert packed.shape == (*lead, width + 4) and packed.dtype == FP8
    after, found = unpack_rows(packed)
    assert same_bytes(after.contiguous(), before) and found.equal(scales)
    assert same_bytes(pack_rows(after, found), packed)


def test_bytes_of_a_row() -> None:
    packed = pack_rows(torch.tensor([[1.0, -2.0, 0.0, 448.0]]).to(FP8), torch.tensor([0.75]))
    assert bytes(packed.view(torch.uint8)[0].tolist()) == b"\x38\xc0\x00\x7e" + struct.pack(
        "<f", 0.75
    )


def test_zero_bytes_are_a_row_of_zeros() -> None:
    packed = torch.zeros(2, 12, dtype=torch.uint8).view(FP8)
    assert dequantize_rows(packed).equal(torch.zeros(2, 8))


@settings(max_examples=80, deadline=None)
@given(
    rows=st.integers(1, 5),
    width=st.integers(1, 16),
    size=st.sampled_from([1e-30, 1e-6, 1.0, 3e4, 1e30]),
    limit=st.sampled_from([OCP_LIMIT, TRN2_LIMIT]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 1000),
)
def test_quantized_rows_are_near(
    rows: int, width: int, size: float, limit: float, dtype: torch.dtype, seed: int
) -> None:
    x = (size * torch.randn(rows, 4 * width, generator=torch.Generator().manual_seed(seed))).to(
        dtype
    )
    packed = quantize_rows(x, limit)
    found, scales = unpack_rows(packed)
    wide = x.double()
    assert found.double().abs().max() <= limit
    wanted = (wide.abs().amax(-1) / limit).clamp(min=1e-6)
    assert torch.allclose(scales.double(), wanted, rtol=3e-7, atol=0)
    # half a unit of the last of 3 bits, or of the smallest subnormal 2 ** -9
    error = (dequantize_rows(packed).double() - wide).abs()
    step = torch.maximum(wide.abs() * 2.0**-4, 2.0**-10 * wanted[:, None])
    assert bool((error <= step * (1 + 1e-5)).all())


def test_the_largest_value_of_a_row_is_the_limit_to_the_bit() -> None:
    x = torch.randn(4000, 8, generator=torch.Generator().manual_seed(1)) * 7
    for limit in (OCP_LIMIT, TRN2_LIMIT):
        found, _ = unpack_rows(quantize_rows(x, limit))
        assert found.float().abs().amax(-1).eq(limit).all()


# Weights


@pytest.mark.parametrize("depth", range(4, 44, 4))
@pytest.mark.parametrize("width", [1, 2, 3, 8])
def test_layout_and_its_inverse(depth: int, width: int) -> None:
    weight = codes(width, depth)
    packed = to_kernel_layout(weight)
    assert packed.shape == (depth // 4, width, 4) and packed.is_contiguous()
    for h in range(depth):
        assert same_bytes(packed[h // 4, :, h % 4], weight[:, h])
    assert same_bytes(from_kernel_layout(packed), weight)
    assert same_bytes(to_kernel_layout(from_kernel_layout(packed)), packed)


@pytest.mark.parametrize("limit", [OCP_LIMIT, TRN2_LIMIT])
def test_each_channel_has_its_own_scale(limit: float) -> None:
    weight = torch.randn(6, 64, generator=torch.Generator().manual_seed(2))
    weight *= torch.tensor([1e-3, 1.0, 50.0, 1e-30, 0.0, 2.0])[:, None]
    found, scales = quantize_channels(weight, limit)
    assert found.double().abs().amax(1).tolist() == [limit] * 4 + [0.0, limit]
    assert scales[4] == 1
    error = (found.double() * scales.double()[:, None] - weight.double()).abs()
    bound = torch.maximum(weight.double().abs() * 2.0**-4, 2.0**-10 * scales.double()[:, None])
    assert bool((error <= bound * (1 + 1e-5)).all())


def test_a_weight_dequantizes_to_codes_times_scales() -> None:
    weight = torch.randn(5, 16, generator=torch.Generator().manual_seed(3))
    quantized = ChannelWeight.of(weight)
    found, scales = quantize_channels(weight)
    assert quantized.dequantized().equal(found.float() * scales[:, None])


# Products


@pytest.mark.parametrize("depth", [4, 8, 12, 128])
@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("with_bias", [False, True])
def test_products_of_packed_operands(depth: int, width: int, tokens: int, with_bias: bool) -> None:
    packed = pack_rows(codes(tokens, depth, seed=4), torch.rand(tokens) + 0.5)
    weight = ChannelWeight(to_kernel_layout(codes(width, depth, seed=5)), torch.rand(1, width) + 1)
    bias = torch.randn(1, width) if with_bias else None
    expected = dequantize_rows(packed).double() @ weight.dequantized().double().T
    size = dequantize_rows(packed).double().abs() @ weight.dequantized().double().abs().T
    if bias is not None:
        expected, size = expected + bias.double(), size + bias.double().abs()
    error = (row_mx_linear(packed, weight, bias).double() - expected).abs()
    assert bool((error <= 1e-6 * size).all())


@pytest.mark.parametrize("depth", [128, 256, 384, 512])
def test_the_mx_matmul_contracts_these_layouts(depth: int) -> None:
    """Words of a row on partitions, the weight as it is stored, and one tile of neutral scales."""
    tokens, width, words = 6, 5, depth // 4
    packed, weight = codes(tokens, depth + 4, seed=6), codes(width, depth, seed=7)

    def kernel(x: nl.NkiTensor, w: nl.NkiTensor) -> nl.NkiTensor:
        out = nl.ndarray((tokens, width), nl.float32, buffer=nl.shared_hbm)
        moved = nl.ndarray((words, tokens), nl.float32, buffer=nl.sbuf)
        nisa.dma_transpose(moved, x.view(nl.float32)[:, 0:words])
        held = nl.ndarray((words, width * 4), w.dtype, buffer=nl.sbuf)
        nisa.dma_copy(held, w.flatten_dims(1, 2))
        neutral = nl.ndarray((128, 8), nl.uint8, buffer=nl.sbuf)
        nisa.memset(neutral, NEUTRAL_SCALE)
        psum = nl.ndarray((tokens, width), nl.float32, buffer=nl.psum)
        pieces = [(0, 64), (64, 32)] if words == 96 else [(0, words)]
        for at, size in pieces:
            nisa.nc_matmul_mx(
                psum,
                stationary=moved.view(nl.float8_e4m3fn_x4)[at : at + size],
                moving=held.view(nl.float8_e4m3fn_x4)[at : at + size],
                stationary_scale=neutral[at : at + size, 0:tokens],
                moving_scale=neutral[at : at + size, 0:width],
                accumulate=at > 0,
            )
        found = nl.ndarray((tokens, width), nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(found, psum)
        nisa.dma_copy(out, found)
        return out

    found = nkisim.simulate(kernel, target="trn3")(packed, to_kernel_layout(weight))
    expected = packed[:, :depth].float() @ weight.float().T
    assert np.allclose(found, expected, rtol=1e-5, atol=1e-2)


# Bad input


def test_bad_input_is_named() -> None:
    eight = torch.zeros(2, 8)
    fp8 = eight.to(FP8)
    with pytest.raises(ValueError, match="codes must be .*float8_e4m3fn, got .*float32"):
        pack_rows(eight, torch.ones(2))
    with pytest.raises(ValueError, match=r"scales must be \[2\] torch.float32, got \[3\]"):
        pack_rows(fp8, torch.ones(3))
    with pytest.raises(ValueError, match="codes has rows of 6 codes; it must be a multiple of 4"):
        pack_rows(fp8[:, :6], torch.ones(2))
    with pytest.raises(ValueError, match="packed has rows of 0 codes"):
        unpack_rows(fp8[:, :4])
    with pytest.raises(ValueError, match="packed must be .*, got .*float32"):
        unpack_rows(eight)
    with pytest.raises(ValueError, match="x must be .*, got .*float16"):
        quantize_rows(eight.half())
    with pytest.raises(ValueError, match=r"limit must be 448.0 or 240.0, got 256"):
        quantize_rows(eight, 256)
    with pytest.raises(
        ValueError, match=r"codes must be \[I, H\], H a multiple of 4, got \[2, 6\]"
    ):
        to_kernel_layout(fp8[:, :6])
    with pytest.raises(ValueError, match=r"weight must be \[H/4, I, 4\], got \[2, 8\]"):
        from_kernel_layout(fp8)
    with pytest.raises(ValueError, match="weight must be .*, got .*float8"):
        quantize_channels(fp8)
    layout = to_kernel_layout(fp8)
    with pytest.raises(ValueError, match=r"scales must be \[1, 2\] torch.float32, got \[2\]"):
        ChannelWeight(layout, torch.ones(2))
    with pytest.raises(ValueError, match=r"codes must be \[H/4, I, 4\] torch.float8_e4m3fn"):
        ChannelWeight(layout.float(), torch.ones(1, 2))
    weight = ChannelWeight(layout, torch.ones(1, 2))
    with pytest.raises(ValueError, match="packed has rows of 4 codes; weight needs 8"):
        row_mx_linear(quantize_rows(torch.zeros(1, 4)), weight)
    with pytest.raises(ValueError, match=r"bias must be \[1, 2\], got \[2\]"):
        row_mx_linear(quantize_rows(torch.zeros(1, 8)), weight, torch.zeros(2))
