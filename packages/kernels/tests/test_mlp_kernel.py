"""What the kernel `mlp` computes, and what it does not run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
from statements import ROUNDOFF, gelu_tanh
from torch import Tensor

from nkisim import TensorSpec, lint, profile
from nkisim.enums import NcVersion
from wantrn.kernels.projections import (
    MlpSizes,
    best_mlp_plan,
    mlp,
    mlp_reference,
    mlp_refusal,
)
from wantrn.kernels.projections.options import mlp_sizes
from wantrn.kernels.projections.planner import mlp_candidates
from wantrn.kernels.row_mx import dequantize_rows, quantize_rows
from wantrn.kernels.sbuf import end_of

SIZES = MlpSizes(tokens=200, hidden=256, inner=384, width=256)
# the slope of GELU is less than this everywhere
SLOPE = 1.13


class Case:
    """One call: tokens `[B, S, H]`, packed with FP8 weights, and both layers."""

    def __init__(
        self, shape: tuple[int, int, int], inner: int, width: int, packed: bool, bias: str
    ) -> None:
        wide = normal(shape, 1)
        self.x = quantize_rows(wide) if packed else wide.bfloat16()
        self.up = Weight.random(shape[2], inner, packed, 2)
        self.down = Weight.random(inner, width, packed, 3)
        self.biases = (random_bias(bias, inner, 4), random_bias(bias, width, 5))
        self.packed = packed

    def sizes(self) -> MlpSizes:
        return mlp_sizes(self.x, self.up.tensor, self.down.tensor, *self.biases)

    def run(self, plan: Any = None, lnc: int = 1) -> Tensor:
        plan = plan or best_mlp_plan(self.sizes(), lnc)
        scales = (self.up.scales, self.down.scales)
        args = (self.x, self.up.tensor, self.down.tensor, plan, *scales, *self.biases)
        return launch(mlp, *args, lnc=lnc)

    def reference(self) -> Tensor:
        scales = (self.up.scales, self.down.scales)
        return mlp_reference(self.x, self.up.tensor, self.down.tensor, *scales, *self.biases)

    def expected(self) -> Interval:
        x = dequantize_rows(self.x).double() if self.packed else self.x.double()
        x = x.flatten(0, 1)
        wide = Interval(x, torch.zeros_like(x)).times(self.up.matrix, self.biases[0])
        # the fp32 function itself is off by a few roundings of its argument and its result
        off = SLOPE * wide.off + 8 * ROUNDOFF[torch.float32] * wide.value.abs()
        inner = Interval(gelu_tanh(wide.value), off).rounded()
        return (inner.quantized() if self.packed else inner).times(self.down.matrix, self.biases[1])


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 2),
    tokens=st.sampled_from([1, 2, 97, 128, 129, 255, 300]),
    hidden=st.sampled_from([128, 384, 512, 640]),
    inner=st.sampled_from([128, 256, 384, 896, 1152]),
    width=st.sampled_from([128, 384, 1152]),
    packed=st.booleans(),
    bias=st.sampled_from(["none", "bf16", "fp32"]),
    lnc=st.sampled_from([1, 2]),
)
def test_any_call(
    batch: int,
    tokens: int,
    hidden: int,
    inner: int,
    width: int,
    packed: bool,
    bias: str,
    lnc: int,
) -> None:
    case = Case((batch, tokens, hidden), inner, width, packed, bias)
    found = case.run(lnc=lnc)
    assert found.shape == (batch, tokens, width)
    assert_within(found, case.expected())
    # a value between the layers that is rounded to its other neighbour shows in a whole row
    assert_nearly_equal(found, case.reference(), 0.05)


@pytest.mark.parametrize("packed", [False, True])
def test_a_plan_changes_no_bit(packed: bool) -> None:
    case = Case((1, 301, 384), 1152, 640, packed, "fp32")
    plans = [c.plan for c in mlp_candidates(case.sizes(), 1, NcVersion.gen4)]
    chosen = {plan.choice.weight_slots: plan for plan in plans if plan.choice.pass_tiles < 3}
    results = [case.run(plan, lnc) for plan in chosen.values() for lnc in (1, 2)]
    assert len(results) >= 6
    assert all(torch.equal(results[0], other) for other in results[1:])


@pytest.mark.parametrize("tokens", [1100, 1281])
def test_more_tokens_than_an_instruction_takes(tokens: int) -> None:
    case = Case((1, tokens, 128), 128, 128, True, "bf16")
    plans = [c.plan for c in mlp_candidates(case.sizes(), 1, NcVersion.gen4)]
    longest = max(plans, key=lambda plan: plan.choice.pass_tiles)
    assert longest.choice.pass_tiles * 128 > 1024
    found = case.run(longest)
    assert_within(found, case.expected())
    assert torch.equal(found, case.run(min(plans, key=lambda plan: plan.choice.pass_tiles)))


def test_packed_rows_of_zeros() -> None:
    """What pads a packed tensor: rows whose scale is zero too."""
    case = Case((1, 130, 256), 256, 128, True, "bf16")
    case.x.view(torch.uint8)[0, 128:] = 0
    found = case.run()
    assert_within(found, case.expected())
    assert torch.equal(found[0, 128], found[0, 129])


# What it does not run


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"hidden": 100}, "H is 100; it must be a multiple of 128"),
        ({"inner": 200}, "F is 200; it must be a multiple of 128"),
        ({"width": 64}, "H_out is 64; it must be a multiple of 128"),
        ({"tokens": 0}, "there are 0 tokens"),
        ({"hidden": 128_000}, "do not fit into SBUF"),
    ],
)
def test_refusals(changed: dict[str, Any], words: str) -> None:
    assert mlp_refusal(SIZES) is None
    found = mlp_refusal(replace(SIZES, **changed))
    assert found is not None and words in found
    with pytest.raises(ValueError, match="must be|do not fit"):
        best_mlp_plan(replace(SIZES, **changed))


def test_fp8_needs_the_mx_matmul() -> None:
    found = mlp_refusal(replace(SIZES, packed=True), target=NcVersion.gen3)
    assert found is not None and "before gen4" in found


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"x": ((200, 256), "bfloat16")}, "x is [200, 256]"),
        ({"x": ((1, 200, 256), "float32")}, "x is float32"),
        ({"x": ((1, 200, 260), "float8_e4m3fn")}, "up is bfloat16; it must be float8_e4m3fn"),
        ({"up": ((384, 256), "bfloat16")}, "up is [384, 256]; it must be [256, I]"),
        ({"down": ((256, 256), "bfloat16")}, "down is [256, 256]; it must be [384, I]"),
        ({"up_scales": ((1, 384), "float32")}, "up_scales must be given exactly where"),
        ({"up_bias": ((1, 256), "float32")}, "up_bias is [1, 256]; it must be [1, 384]"),
        ({"down_bias": ((1, 256), "int32")}, "down_bias is int32"),
        ({"x": ((1, 201, 256), "bfloat16")}, "the plan is for"),
    ],
)
def test_tensors(changed: dict[str, Any], words: str) -> None:
    given = {
        "x": ((1, 200, 256), "bfloat16"),
        "up": ((256, 384), "bfloat16"),
        "down": ((384, 256), "bfloat16"),
        **changed,
    }
    spec: dict[str, Any] = {name: TensorSpec(*value) for name, value in given.items()}
    with pytest.raises(AssertionError) as error:
        profile(mlp, plan=best_mlp_plan(SIZES), **spec, target="trn3", numerics=False)
    assert words in str(error.value)


# Size and source


@pytest.mark.parametrize(
    ("target", "packed"),
    [(NcVersion.gen3, False), (NcVersion.gen4, False), (NcVersion.gen4, True)],
)
@pytest.mark.parametrize("tokens", [200, 1200])
def test_the_plan_is_what_is_used(target: NcVersion, packed: bool, tokens: int) -> None:
    """Wan's feed-forward layer at TP 4, by nkisim's own accounting."""
    hidden, inner = 5120, 3456
    dtype = "float8_e4m3fn" if packed else "bfloat16"
    up: tuple[int, ...] = (hidden, inner)
    down: tuple[int, ...] = (inner, hidden)
    if packed:
        up, down = (hidden // 4, inner, 4), (inner // 4, hidden, 4)
    vectors = [TensorSpec((1, inner), "float32"), TensorSpec((1, hidden), "float32")]
    tensors = (
        TensorSpec((1, tokens, hidden + 4 * packed), dtype),
        TensorSpec(up, dtype),
        TensorSpec(down, dtype),
    )
    scales = vectors if packed else [None, None]
    plan = best_mlp_plan(mlp_sizes(*tensors, *vectors), 1, target)
    report = profile(mlp, *tensors, plan, *scales, *vectors, target=target, numerics=False).json()
    # with one pass, tokens are gone before the result's rows come
    assert report["sbuf_peak_bytes"] <= end_of(plan.buffers) <= report["sbuf_limit_bytes"]
    assert report["psum_peak_bytes"] <= report["psum_limit_bytes"]
    passes = -(-tokens // (128 * plan.choice.pass_tiles))
    weights = 2 * hidden * inner * (1 if packed else 2)
    rest = report["hbm_read_bytes"] - passes * weights
    # beside the weights: the tokens, and vectors that 128 partitions read
    assert 0 < rest < 2 * hidden * tokens + 128 * 4 * (3 * hidden + tokens)


def test_a_plan_that_does_not_fit_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="SBUF has 10"):
        replace(best_mlp_plan(SIZES), sbuf_limit=10)


def test_the_compilers_front_ends_take_it() -> None:
    assert lint(mlp) == []
