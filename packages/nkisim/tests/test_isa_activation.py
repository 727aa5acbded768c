"""`activation` and `activation_reduce`: each function against torch in float64, and their sums."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from activation_tools import F32, FUNCTIONS, POSITIVE, activation_call, stated, token
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_tiles import (
    DTYPES,
    FLOATS,
    LAYOUTS,
    Array,
    assert_near,
    assert_same,
    contents,
    core,
    empty,
    laid,
    of,
    on_core,
    refused,
    rejected,
    sample,
    stored,
    tile,
    warned,
)

from nkisim import dtypes
from nkisim import operations as nl
from nkisim.dtypes import DType
from nkisim.enums import Engine, MemoryRegion, ReduceCmd
from nkisim.isa.activations import activate2, activation, activation_reduce
from nkisim.isa.reductions import tensor_scalar_reduce
from nkisim.settings import Rules

pytestmark = pytest.mark.filterwarnings("error")

QUIET = Rules(fp8_overflow="off", function_range="off")


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from(sorted(FUNCTIONS)),
    source=st.sampled_from(DTYPES),
    target=st.sampled_from(FLOATS[:3]),
    bias_dtype=st.sampled_from(DTYPES),
    layouts=st.tuples(*[st.sampled_from(LAYOUTS)] * 2),
    partitions=st.sampled_from([1, 2, 31, 32, 64, 100, 128]),
    elements=st.integers(1, 60),
    scale=st.sampled_from(["none", "number", "tensor"]),
    bias=st.sampled_from(["none", "number", "tensor"]),
    seed=st.integers(0, 99),
)
def test_activation(
    name: str,
    source: DType,
    target: DType,
    bias_dtype: DType,
    layouts: tuple[str, str],
    partitions: int,
    elements: int,
    scale: str,
    bias: str,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    data = sample(rng, (partitions, elements), source, 0.5)
    factors = sample(rng, (partitions, 1), dtypes.float32, 0.1)
    offsets = sample(rng, (partitions, 1), bias_dtype, 0.5)
    if name in POSITIVE:
        data, factors, offsets = np.abs(data) + 1, np.abs(factors) + 0.5, np.abs(offsets)
        data = data.astype(source.numpy).astype(np.float64)
        factors = factors.astype(F32).astype(np.float64)
    elif source.is_integer:
        data = np.clip(data, -3, 3)

    def body() -> tuple[Array, Array, Any]:
        dst = laid(np.zeros((partitions, elements)), target, layouts[0])
        more: dict[str, Any] = {}
        if scale != "none":
            more["scale"] = 0.125 if scale == "number" else tile(factors, dtypes.float32)
        if bias != "none":
            more["bias"] = 2 if bias == "number" else tile(offsets, bias_dtype)
        total = empty((partitions, 1))
        instruction = activation(
            dst,
            token(name),
            laid(data, source, layouts[1]),
            reduce_op=nl.add,
            reduce_res=total,
            reduce_cmd=ReduceCmd.reset_reduce,
            **more,
        )
        assert instruction.engine is Engine.scalar
        return contents(dst), contents(total), instruction.details

    x = data * {"none": 1.0, "number": 0.125, "tensor": factors}[scale]
    x = x + {"none": 0.0, "number": 2.0, "tensor": offsets}[bias]
    y = stated(name, x.astype(F32))
    written, total, details = on_core(body, rules=QUIET)
    assert details["reduces"] is True
    size = max(1.0, float(np.abs(y).max()))
    if name not in ("sin",) or np.abs(x).max() < math.pi:
        assert_near(written, y, 1e-5, 1e-5 * size)
        assert_near(total, y.sum(1, keepdims=True), 1e-5, 1e-5 * size * elements)


@pytest.mark.parametrize("target", DTYPES, ids=str)
def test_results_are_rounded_to_every_type(target: DType) -> None:
    data = sample(np.random.default_rng(1), (16, 50), dtypes.float32, 40.0)

    def body() -> tuple[Array, Array]:
        dst = empty((16, 50), target)
        activation(dst, nl.copy, tile(data, dtypes.float32), bias=0.25, scale=0.5)
        ordinary = empty((16, 50), target)
        activation(ordinary, "relu", tile(data, dtypes.float32))
        return contents(dst), contents(ordinary)

    shifted, positive = on_core(body, rules=QUIET)
    scaled = (data.astype(F32) * F32(0.5)) + F32(0.25)
    assert_same(shifted, stored(scaled, target))
    assert_same(positive, stored(np.maximum(data, 0), target))


def test_the_sum_is_of_what_was_not_narrowed() -> None:
    def body() -> tuple[Array, Array]:
        dst, total = empty((1, 512), dtypes.float8_e4m3), empty((1, 1))
        data = tile(np.full((1, 512), 1.03, F32))
        activation_reduce(dst, nl.copy, data, nl.add, total)
        return contents(dst), contents(total)

    written, total = on_core(body)
    assert set(written.astype(F32)[0].tolist()) == {1.0}
    assert_near(total, np.array([[512 * 1.03]]))


def test_softmax_as_attention_computes_it() -> None:
    scores = sample(np.random.default_rng(2), (128, 512), dtypes.float32, 5.0)

    def body() -> tuple[Array, Array]:
        data = tile(scores, dtypes.float32, MemoryRegion.psum)
        negative = tile(-scores.max(1, keepdims=True) * 0.25, dtypes.float32)
        weights, total = empty((128, 512), dtypes.bfloat16), empty((128, 1))
        activation(weights, nl.exp, data, negative, 0.25, nl.add, total, ReduceCmd.reset_reduce)
        return contents(weights), contents(total)

    weights, total = on_core(body)
    wanted = torch.exp(0.25 * torch.from_numpy(scores - scores.max(1, keepdims=True))).numpy()
    assert_near(weights, wanted, 1e-5)
    assert_near(total, wanted.sum(1, keepdims=True), 1e-5)


def test_data_is_not_changed() -> None:
    values = np.array([[1.0, -2.0, 3.0]], F32)

    def body() -> Array:
        data = tile(values)
        for name in ("exp", "square", "silu", "copy", "gelu"):
            activation(empty((1, 3)), name, data)
        return contents(data)

    assert_same(on_core(body), values)


def test_in_place_and_overlapping() -> None:
    values = np.arange(1, 13, dtype=F32)[None]

    def body() -> tuple[Array, Array]:
        t = tile(values)
        activation(t, nl.square, t, scale=2.0)
        shifted = tile(values)
        activation(shifted[:, 1:], nl.copy, shifted[:, :-1])
        return contents(t), contents(shifted)

    squared, shifted = on_core(body)
    assert_same(squared, (2 * values) ** 2)
    assert_same(shifted, np.concatenate([values[:, :1], values[:, :-1]], 1))


def test_reduce_res_in_dst_is_what_stays() -> None:
    def body() -> Array:
        t = tile(np.array([[1.0, 2.0, 3.0]], F32))
        activation(t, nl.square, t, None, 1.0, nl.add, t[:, 1:2], ReduceCmd.reset_reduce)
        return contents(t)

    assert on_core(body).tolist() == [[1.0, 14.0, 9.0]]


def test_bias_may_be_where_dst_is() -> None:
    def body() -> Array:
        t = tile(np.array([[1.0, 2.0], [3.0, 4.0]], F32))
        activation(t, nl.copy, t, bias=t[:, 0:1], scale=t[:, 1:2])
        return contents(t)

    assert on_core(body).tolist() == [[3.0, 5.0], [15.0, 19.0]]


def test_reduce_cmd_of_activation() -> None:
    x = np.array([[1.0, 2.0], [3.0, -4.0]], F32)

    def body() -> list[Any]:
        data, dst, res = tile(x), empty((2, 2)), empty((2, 1))
        seen: list[Any] = []

        def step(command: Any, reduce_op: Any = nl.add, read: bool = True) -> None:
            activation(
                dst, nl.copy, data, reduce_op=reduce_op, reduce_res=res if read else None,
                reduce_cmd=command,
            )  # fmt: skip
            assert_same(contents(dst), x)
            if read:
                seen.append(contents(res)[:, 0].tolist())

        step("reset_reduce", read=False)
        step(ReduceCmd.reduce, np.add, read=False)
        step(ReduceCmd.idle, None)
        step(ReduceCmd.reduce, "sum")
        step(ReduceCmd.reset)
        activation_reduce(dst, nl.copy, data, nl.sum_, res, scale=2.0)
        seen.append(contents(res)[:, 0].tolist())
        # the Vector engine has registers of its own
        tensor_scalar_reduce(dst, data, nl.multiply, 1.0, nl.maximum)
        step(ReduceCmd.idle, None)
        seen.append(core().accumulators[Engine.vector][:2].tolist())
        return seen

    assert on_core(body) == [[6, -2], [9, -3], [0, 0], [6, -2], [6, -2], [2, 3]]


def test_registers_are_those_of_physical_partitions() -> None:
    def body() -> Array:
        core().accumulators[Engine.scalar][:] = 7
        t = tile(np.ones((64, 3), F32), partition=64)
        activation(t, nl.copy, t, reduce_op=nl.add, reduce_cmd=ReduceCmd.reduce)
        return core().accumulators[Engine.scalar].copy()

    assert_same(on_core(body), np.repeat(np.array([7, 10], F32), 64))


@pytest.mark.parametrize(
    ("name", "value", "bound"),
    [("sin", 4.0, "3.14159"), ("log", 0.0, "5.42101e-20"), ("rsqrt", -1.0, "6.46235e-27"),
     ("arctan", 2.0, "1.5708"), ("reciprocal", 2.0**43, "4.39805e+12")],
)  # fmt: skip
def test_values_outside_the_range_of_a_function(name: str, value: float, bound: str) -> None:
    def body() -> None:
        activation(empty((1, 2)), name, tile(np.array([[1.0, value]], F32)))

    warned(body, f"op is {name} of values from")
    warned(body, bound)
    assert on_core(body, rules=Rules(function_range="off")) is None
    rejected(body, f"op is {name}", "function_range", rules=Rules(function_range="error"))
    # nobody knows the values of a run without them
    assert on_core(body, numerics=False, rules=Rules(function_range="error")) is None


def test_the_range_is_that_of_the_scaled_values() -> None:
    def body() -> None:
        data = tile(np.full((1, 3), 9.0, F32))
        activation(empty((1, 3)), nl.sin, data, scale=0.25)

    assert on_core(body, rules=Rules(function_range="error")) is None


def test_gen2_has_no_number_as_bias() -> None:
    def body() -> None:
        activation(empty((1, 3)), nl.copy, tile(np.ones((1, 3), F32)), bias=0.5)

    rejected(body, "bias 0.5", "gen3", target="gen2")
    assert on_core(body, target="gen3") is None


@pytest.mark.parametrize("function", [activation, activation_reduce, activate2])
def test_what_all_of_the_scalar_engine_reject(function: Any) -> None:
    def call(**more: Any) -> Any:
        return activation_call(function, **more)

    rejected(call(data=of((4, 5))), "data is", "[4, 5]")
    rejected(call(data=of((3, 6))), "data has 3 partitions", "dst 4")
    rejected(call(data=of((4, 6), dtypes.float8_e5m2_x4)), "data is float8_e5m2_x4")
    rejected(call(data=lambda: empty((4, 6))), "data reads", "nothing has written")
    rejected(call(dst=lambda: empty((4, 6), address=(8, 0))), "dst starts at partition 8")
    rejected(
        call(dst=lambda: core().allocate((4, 6), dtypes.float32, MemoryRegion.shared_hbm)), "dst is"
    )
    refused(call(dst=lambda: None), "dst is None")
    rejected(call(op=nl.cos), "op is cos", "Scalar engine")
    rejected(call(op=nl.add), "op is add", "gelu")
    rejected(call(op="sinh"), "op is 'sinh'")
    rejected(call(reduce_op=nl.multiply), "reduce_op is multiply", "add")
    rejected(call(reduce_res=of((4, 2))), "reduce_res is", "[4, 2]")
    rejected(call(reduce_res=of((4, 1), dtypes.int32)), "reduce_res is int32")


def test_activation_rejects() -> None:
    call = activation_call
    rejected(call(scale=of((4, 1), dtypes.bfloat16)), "scale is bfloat16", "float32")
    rejected(call(scale=of((4, 2))), "scale is", "[4, 2]")
    refused(call(scale=None), "scale is None")
    refused(call(scale="2"), "scale is '2'")
    rejected(call(bias=of((4, 1), dtypes.tfloat32)), "bias is tfloat32")
    rejected(call(bias=of((4, 1), dtypes.float8_e5m2_x4)), "bias is float8_e5m2_x4")
    rejected(call(bias=of((4, 3))), "bias is", "[4, 3]")
    rejected(call(bias=of((1, 1))), "bias is", "[1, 1]", "4 partitions")
    rejected(call(bias=lambda: empty((4, 1))), "bias reads")
    refused(call(bias=[1.0]), "bias is [1.0]")
    rejected(call(reduce_op=nl.maximum), "reduce_op is maximum", "add")
    rejected(call(reduce_cmd=ReduceCmd.reduce), "reduce_op is None", "reduce_cmd.reduce")
    rejected(
        call(reduce_op=nl.add, reduce_cmd=ReduceCmd.load_reduce),
        "reduce_cmd is reduce_cmd.load_reduce",
    )
    refused(call(reduce_op=nl.add, reduce_cmd=1), "reduce_cmd is 1")
    call = lambda **more: activation_call(activation_reduce, **more)  # noqa: E731
    rejected(call(reduce_op=nl.maximum), "reduce_op is maximum", "add")
    refused(call(reduce_res=None), "reduce_res is None")
    rejected(call(bias=of((4, 1), dtypes.tfloat32)), "bias is tfloat32")
    rejected(call(bias=1.0), "bias 1.0", "gen3", target="gen2")
