"""The pure part of the quantizer: which layers, what codes, and what rounding costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from checkpoint_files import SMALL, TINY, canonical_tensors
from hypothesis import given, settings
from hypothesis import strategies as st

from wantrn.kernels.row_mx import OCP_LIMIT, TRN2_LIMIT, ChannelWeight, from_kernel_layout
from wantrn.model.checkpoints.native import native_shapes, to_native
from wantrn.model.errors import CheckpointError
from wantrn.model.quantization import (
    Group,
    QuantizationOptions,
    keep_codes,
    parse_group,
    quantize_layer,
    quantize_state,
    quantized_layers,
)
from wantrn.model.quantization import layer as layer_module

BLOCK = (
    *("self_attention.qkv", "self_attention.out"),
    *("cross_attention.q", "cross_attention.k", "cross_attention.v", "cross_attention.out"),
    *("feed_forward.up", "feed_forward.down"),
)


def same_codes(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(left.view(torch.uint8), right.view(torch.uint8))


def relative(weight: torch.Tensor, rounded: torch.Tensor) -> float:
    """RMS over rows of each row's relative error."""
    errors = (weight.double() - rounded.double()).norm(dim=-1) / weight.double().norm(dim=-1)
    return float(errors.square().mean().sqrt())


def test_the_layers_are_the_linears_of_attention_and_feed_forward() -> None:
    layers = quantized_layers(SMALL, frozenset(Group))
    assert layers == tuple(f"blocks.{i}.{layer}" for i in range(2) for layer in BLOCK)
    matrices = {
        name.removesuffix(".weight")
        for name, shape in native_shapes(SMALL).items()
        if name.startswith("blocks.") and len(shape) == 2
    }
    assert set(layers) == matrices


@pytest.mark.parametrize("group", Group)
def test_groups_are_chosen_one_by_one(group: Group) -> None:
    state = to_native(canonical_tensors(SMALL), SMALL)
    quantized = quantize_state(state, SMALL, QuantizationOptions(frozenset({group})))
    assert quantized.layers.keys() == quantized.errors.keys()
    assert all(f".{group.value}." in layer for layer in quantized.layers)
    weights = {f"{layer}.weight" for layer in quantized.layers}
    assert len(weights) == len(quantized.layers) > 0
    assert weights.isdisjoint(quantized.parameters)
    assert weights | quantized.parameters.keys() == state.keys()
    assert all(tensor is state[name] for name, tensor in quantized.parameters.items())


@pytest.mark.parametrize("limit", [OCP_LIMIT, TRN2_LIMIT])
def test_codes_are_those_of_the_kernels_quantizer(limit: float) -> None:
    state = to_native(canonical_tensors(SMALL), SMALL)
    quantized = quantize_state(state, SMALL, QuantizationOptions(limit=limit))
    for layer, weight in quantized.layers.items():
        expected = ChannelWeight.of(state[f"{layer}.weight"], limit)
        assert same_codes(weight.codes, expected.codes)
        assert torch.equal(weight.scales, expected.scales)
        assert weight.codes.float().abs().max() == limit


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 40),
    quarter=st.integers(1, 12),
    parts=st.integers(1, 3),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    chunk=st.integers(1, 500),
    seed=st.integers(0, 1000),
)
def test_chunks_and_parts_do_not_show_in_the_codes(
    rows: int, quarter: int, parts: int, dtype: torch.dtype, chunk: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(parts * rows, 4 * quarter, generator=generator).to(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer_module, "_CHUNK_VALUES", chunk)
        result = quantize_layer(weight, OCP_LIMIT, parts)
    expected = ChannelWeight.of(weight.float())
    assert same_codes(result.weight.codes, expected.codes)
    assert torch.equal(result.weight.scales, expected.scales)
    assert result.error is not None
    assert result.error.per_channel == pytest.approx(
        relative(weight, expected.dequantized()), rel=1e-6
    )
    flat = [part.float().reshape(1, -1) for part in weight.chunk(parts)]
    each = torch.cat([ChannelWeight.of(part).dequantized() for part in flat]).reshape(weight.shape)
    assert result.error.per_tensor == pytest.approx(relative(weight, each), rel=1e-6)


@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
def test_a_scale_for_each_channel_costs_less_than_one_for_all(spread: float) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = (spread * torch.randn(1024, 1, generator=generator)).exp()
    weight = torch.randn(1024, 512, generator=generator) * sizes
    error = quantize_layer(weight, OCP_LIMIT).error
    assert error is not None
    print(f"rows spread by e^{spread:g}: {error}")
    assert 0 < error.per_channel < error.per_tensor
    assert error.per_channel < 0.027


def test_the_number_of_threads_does_not_show() -> None:
    weight = torch.randn(1500, 1024, generator=torch.Generator().manual_seed(0))
    threads = torch.get_num_threads()
    results = []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            results.append(quantize_layer(weight, OCP_LIMIT, 3))
    finally:
        torch.set_num_threads(threads)
    assert same_codes(results[0].weight.codes, results[1].weight.codes)
    assert results[0].error == results[1].error


def test_channels_below_the_range_of_one_scale_are_lost_only_with_one_scale() -> None:
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(0)) * 1e-8
    weight[0] *= 1e8
    rounded = quantize_layer(weight, OCP_LIMIT).weight.dequantized()
    assert max(relative(w, r) for w, r in zip(weight, rounded, strict=True)) < 0.04


def test_zero_rows_and_zero_weights_stay_zero() -> None:
    weight = torch.zeros(8, 16)
    weight[3] = torch.arange(16)
    result = quantize_layer(weight, OCP_LIMIT)
    assert torch.equal(result.weight.scales[0] == 1, torch.arange(8) != 3)
    assert torch.equal(result.weight.dequantized()[4:], torch.zeros(4, 16))
    nothing = quantize_layer(torch.zeros(4, 4), OCP_LIMIT).error
    assert nothing is not None
    assert (nothing.per_channel, nothing.per_tensor) == (0, 0)


def test_kept_codes_are_the_same_codes() -> None:
    codes = torch.randn(6, 8).to(torch.float8_e4m3fn)
    result = keep_codes(codes, torch.arange(1.0, 7.0))
    assert result.error is None
    assert same_codes(from_kernel_layout(result.weight.codes.view(torch.uint8)), codes)
    assert torch.equal(
        result.weight.dequantized(), codes.float() * torch.arange(1.0, 7.0).unsqueeze(1)
    )


@pytest.mark.parametrize(
    ("weight", "parts", "word"),
    [
        (torch.zeros(4), 1, r"\[4\]"),
        (torch.zeros(4, 4, dtype=torch.int8), 1, "int8"),
        (torch.zeros(4, 0), 1, r"\[4, 0\]"),
        (torch.zeros(4, 6), 1, "rows of 6"),
        (torch.zeros(4, 4), 3, "3 equal parts"),
    ],
)
def test_a_weight_that_does_not_fit_is_named(weight: torch.Tensor, parts: int, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        quantize_layer(weight, OCP_LIMIT, parts)


def test_bad_options_are_named() -> None:
    with pytest.raises(ValueError, match=r"unknown group 'ffn'.*feed_forward"):
        parse_group("ffn")
    assert [parse_group(group.value) for group in Group] == list(Group)
    with pytest.raises(ValueError, match="groups is empty"):
        QuantizationOptions(frozenset())
    with pytest.raises(ValueError, match="limit must be one of"):
        QuantizationOptions(limit=100.0)
    with pytest.raises(ValueError, match="limit must be"):
        quantize_layer(torch.ones(4, 4), 100.0)


def test_a_state_that_does_not_fit_is_named() -> None:
    state = to_native(canonical_tensors(SMALL), SMALL)
    name = "blocks.1.cross_attention.k.weight"
    missing = {key: tensor for key, tensor in state.items() if key != name}
    for bad, fault in (
        (missing, "is missing"),
        ({**missing, name: torch.zeros(3, 3)}, "shape"),
        ({**state, "x": state[name]}, "x is unexpected"),
    ):
        with pytest.raises(ValueError, match=fault):
            quantize_state(bad, SMALL, QuantizationOptions())
    odd = replace(TINY, ffn_dim=66)
    with pytest.raises(CheckpointError, match=r"feed_forward\.down contracts 66"):
        quantize_state(to_native(canonical_tensors(odd), odd), odd, QuantizationOptions())
