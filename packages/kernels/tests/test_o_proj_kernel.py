"""What the kernel `o_proj` computes, and what it does not run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from projection_cases import (
    Interval,
    Weight,
    assert_nearly_equal,
    assert_within,
    launch,
    normal,
    random_bias,
)
from torch import Tensor

from nkisim import TensorSpec, dtypes, lint, mx, profile
from nkisim.enums import NcVersion
from wantrn.kernels.projections import (
    OProjSizes,
    best_o_proj_plan,
    o_proj,
    o_proj_reference,
    o_proj_refusal,
    quantized_mx,
)
from wantrn.kernels.projections.options import o_proj_sizes
from wantrn.kernels.projections.planner import o_proj_candidates
from wantrn.kernels.sbuf import end_of

SIZES = OProjSizes(batch=1, tokens=200, depth=256, width=384)


def expected(x: Tensor, weight: Weight, bias: Tensor | None) -> Interval:
    rows = x.double().flatten(1, 2).transpose(1, 2).flatten(0, 1)
    exact = Interval(rows, torch.zeros_like(rows))
    return (exact if weight.scales is None else exact.quantized()).times(weight.matrix, bias)


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 3),
    heads=st.sampled_from([(1, 128), (3, 128), (5, 128), (2, 64), (6, 64)]),
    tokens=st.sampled_from([1, 2, 97, 128, 129, 255, 300]),
    width=st.sampled_from([128, 384, 1152]),
    packed=st.booleans(),
    bias=st.sampled_from(["none", "bf16", "fp32"]),
    lnc=st.sampled_from([1, 2]),
)
def test_any_call(
    batch: int, heads: tuple[int, int], tokens: int, width: int, packed: bool, bias: str, lnc: int
) -> None:
    x = normal((batch, *heads, tokens), 1).bfloat16()
    weight = Weight.random(heads[0] * heads[1], width, packed, 2)
    added = random_bias(bias, width, 3)
    plan = best_o_proj_plan(o_proj_sizes(x, weight.tensor, added), lnc)
    found = launch(o_proj, x, weight.tensor, plan, weight.scales, added, lnc=lnc)
    assert found.shape == (batch, tokens, width)
    assert_within(found, expected(x, weight, added))
    assert_nearly_equal(found, o_proj_reference(x, weight.tensor, weight.scales, added))


@pytest.mark.parametrize(("heads", "d"), [(3, 40), (1, 1), (5, 20), (7, 128)])
def test_bf16_contracts_any_depth(heads: int, d: int) -> None:
    x = normal((1, heads, d, 150), 1).bfloat16()
    weight = Weight.random(heads * d, 256, False, 2)
    plan = best_o_proj_plan(o_proj_sizes(x, weight.tensor, None), target=NcVersion.gen3)
    found = launch(o_proj, x, weight.tensor, plan, target="gen3")
    assert_within(found, expected(x, weight, None))


@pytest.mark.parametrize("packed", [False, True])
def test_a_plan_changes_no_bit(packed: bool) -> None:
    x = normal((2, 3, 128, 301), 1).bfloat16()
    weight = Weight.random(384, 1152, packed, 2)
    bias = random_bias("bf16", 1152, 3)
    sizes = o_proj_sizes(x, weight.tensor, bias)
    plans = [c.plan for c in o_proj_candidates(sizes, 1, NcVersion.gen4)]
    chosen = {plan.choice.weight_slots: plan for plan in plans if plan.choice.pass_tiles < 4}
    results = [
        launch(o_proj, x, weight.tensor, plan, weight.scales, bias, lnc=lnc)
        for plan in chosen.values()
        for lnc in (1, 2)
    ]
    assert len(results) >= 8
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("magnitude", [0.0, 1e-30, 1e-3, 1.0, 3e4])
def test_the_reference_quantizes_as_the_chip_does(magnitude: float) -> None:
    x = (magnitude * normal((7, 64), 1)).bfloat16()
    x[0, 3] *= 200
    found = quantized_mx(x)
    # four neighbours of a token in a partition
    rows = x.float().reshape(7, 16, 4).transpose(0, 1).reshape(16, 28).numpy()
    codes, scales = mx.quantize(rows, dtypes.float8_e4m3fn_x4)
    values = mx.dequantized_rows(codes, dtypes.float8_e4m3fn_x4, scales)
    assert np.array_equal(found.numpy(), values.T)


def test_one_loud_channel_spoils_its_block_only() -> None:
    x = normal((1, 1, 128, 64), 1).bfloat16()
    loud = x.clone()
    loud[0, 0, 5] *= 1e6
    weight = Weight.random(128, 128, True, 2)
    silent = Weight(weight.tensor.clone(), weight.scales, weight.matrix)
    # nothing of the block of the loud channel is read
    silent.tensor.view(torch.uint8)[0:8] = 0
    plan = best_o_proj_plan(o_proj_sizes(x, weight.tensor, None))
    results = [launch(o_proj, y, silent.tensor, plan, silent.scales) for y in (x, loud)]
    assert torch.equal(*results)


# What it does not run


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"width": 100}, "H is 100; it must be a multiple of 128"),
        ({"depth": 320, "packed": True}, "N * D is 320; it must be a multiple of 128"),
        ({"tokens": 0}, "every one must be at least 1"),
        ({"depth": 128_000}, "do not fit into SBUF"),
    ],
)
def test_refusals(changed: dict[str, Any], words: str) -> None:
    assert o_proj_refusal(SIZES) is None
    found = o_proj_refusal(replace(SIZES, **changed))
    assert found is not None and words in found
    with pytest.raises(ValueError, match="must be|do not fit"):
        best_o_proj_plan(replace(SIZES, **changed))


def test_fp8_needs_the_mx_matmul() -> None:
    found = o_proj_refusal(replace(SIZES, packed=True), target=NcVersion.gen3)
    assert found is not None and "before gen4" in found


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"x": ((2, 128, 200), "bfloat16")}, "x is [2, 128, 200]"),
        ({"x": ((1, 2, 128, 200), "float32")}, "x is float32"),
        ({"weight": ((64, 384, 3), "float8_e4m3fn")}, "weight is [64, 384, 3]"),
        ({"weight": ((256, 384), "float8_e4m3fn")}, "weight is [256, 384]"),
        ({"weight": ((256, 384), "bfloat16")}, "weight_scales must be given exactly where"),
        ({"weight_scales": None}, "weight_scales must be given exactly where"),
        ({"weight_scales": ((384,), "float32")}, "weight_scales is [384]"),
        ({"weight_scales": ((1, 384), "bfloat16")}, "weight_scales is bfloat16"),
        ({"bias": ((1, 256), "float32")}, "bias is [1, 256]"),
        ({"bias": None}, "the plan is for"),
    ],
)
def test_tensors(changed: dict[str, Any], words: str) -> None:
    given = {
        "x": ((1, 2, 128, 200), "bfloat16"),
        "weight": ((64, 384, 4), "float8_e4m3fn"),
        "weight_scales": ((1, 384), "float32"),
        "bias": ((1, 384), "float32"),
        **changed,
    }
    spec: dict[str, Any] = {name: value and TensorSpec(*value) for name, value in given.items()}
    plan = best_o_proj_plan(replace(SIZES, packed=True, bias_bytes=4))
    with pytest.raises(AssertionError) as error:
        profile(o_proj, plan=plan, **spec, target="trn3", numerics=False)
    assert words in str(error.value)


# Size and source


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("tokens", [300, 1300])
def test_the_plan_is_what_is_used_and_weights_are_loaded_once(packed: bool, tokens: int) -> None:
    """Wan's output projection at TP 4, by nkisim's own accounting."""
    x = TensorSpec((1, 10, 128, tokens), "bfloat16")
    weight = TensorSpec((320, 5120, 4) if packed else (1280, 5120), x.dtype)
    bias = TensorSpec((1, 5120), "bfloat16")
    scales = None
    if packed:
        weight, scales = TensorSpec(weight.shape, "float8_e4m3fn"), TensorSpec((1, 5120), "float32")
    plan = best_o_proj_plan(o_proj_sizes(x, weight, bias))
    report = profile(o_proj, x, weight, plan, scales, bias, target="trn3", numerics=False).json()
    # the result's rows come when tokens that were loaded ahead are gone
    assert report["sbuf_peak_bytes"] <= end_of(plan.buffers) <= report["sbuf_limit_bytes"]
    assert report["psum_peak_bytes"] <= report["psum_limit_bytes"]
    once = 1280 * 5120 * (1 if packed else 2)
    # beside the weight: the tokens, and vectors that 128 partitions read
    vectors = 128 * 5120 * (2 + 4 * packed)
    assert report["hbm_read_bytes"] == once + 2 * 1280 * tokens + vectors


def test_a_plan_that_does_not_fit_cannot_be_made() -> None:
    plan = best_o_proj_plan(SIZES)
    with pytest.raises(ValueError, match="SBUF has 10"):
        replace(plan, sbuf_limit=10)
    with pytest.raises(ValueError, match="weight_slots is 9"):
        replace(plan, choice=replace(plan.choice, weight_slots=9))


def test_the_compilers_front_ends_take_it() -> None:
    assert lint(o_proj) == []
