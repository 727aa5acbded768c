from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
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
    on_core,
    refused,
    rejected,
    sample,
    stored,
    tile,
    warned,
)
from torch import Tensor
from torch.nn import functional

from nkisim import dtypes
from nkisim import operations as nl
from nkisim.dtypes import DType
from nkisim.enums import Engine, MemoryRegion, ReduceCmd
from nkisim.isa.activations import activate2, activation, activation_reduce
from nkisim.isa.reductions import tensor_scalar_reduce
from nkisim.isa.vector_exponential import exponential
from nkisim.settings import Rules

pytestmark = pytest.mark.filterwarnings("error")

F32 = np.float32
QUIET = Rules(fp8_overflow="off", function_range="off")

# in float64; arguments at which every one of them is defined
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "copy": lambda x: x,
    "square": torch.square,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_apprx_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_apprx_sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": functional.silu,
    "tanh": torch.tanh,
    "softplus": functional.softplus,
    "mish": functional.mish,
    "erf": torch.erf,
    "exp": torch.exp,
    "log": lambda x: torch.log(x.abs() + 0.25),
    "sin": torch.sin,
    "arctan": torch.arctan,
    "sqrt": lambda x: torch.sqrt(x.abs() + 0.25),
    "rsqrt": lambda x: torch.rsqrt(x.abs() + 0.25),
    "reciprocal": lambda x: 1 / (x.abs() + 0.25),
    "sign": torch.sign,
    "abs": torch.abs,
}
POSITIVE = ("log", "sqrt", "rsqrt", "reciprocal")


def token(name: str) -> Any:
    return getattr(nl, {"abs": "abs_", "sum": "sum_"}.get(name, name))


def stated(name: str, x: Array) -> Array:
    if name in POSITIVE:
        # the arguments are made positive by the caller
        return {"log": np.log, "sqrt": np.sqrt}.get(
            name, lambda v: 1 / (np.sqrt(v) if name == "rsqrt" else v)
        )(x)
    found: Array = FUNCTIONS[name](torch.from_numpy(np.asarray(x, np.float64))).numpy()
    return found


# ---- activation ----


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


def activation_call(function: Any = activation, **more: Any) -> Any:
    """`function` on [4, 6] tiles, with arguments changed; callables make tensors."""

    def body() -> None:
        given: dict[str, Any] = {"op": nl.exp}
        if function is activation_reduce:
            given |= {"reduce_op": nl.add, "reduce_res": lambda: empty((4, 1))}
        if function is activate2:
            given |= {"imm0": 1.0, "imm1": 0.0, "op0": nl.multiply, "op1": nl.add}
        given |= {"dst": lambda: empty((4, 6)), "data": lambda: tile(np.ones((4, 6), F32))}
        given |= more
        tokens = (nl.Operation, str)
        function(
            **{k: v() if callable(v) and not isinstance(v, tokens) else v for k, v in given.items()}
        )

    return body


def of(shape: tuple[int, ...], dtype: DType = dtypes.float32) -> Any:
    return lambda: tile(np.ones(shape), dtype)


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


# ---- activate2 ----

STEPS: dict[tuple[str, str], Callable[[Any, Any, Any, bool, bool], Any]] = {
    ("multiply", "add"): lambda x, a, b, r0, r1: F32(x * a) + b,
    ("multiply", "subtract"): lambda x, a, b, r0, r1: b - F32(x * a) if r1 else F32(x * a) - b,
    ("multiply", "bypass"): lambda x, a, b, r0, r1: x * a,
    ("add", "bypass"): lambda x, a, b, r0, r1: x + a,
    ("subtract", "bypass"): lambda x, a, b, r0, r1: a - x if r0 else x - a,
    ("bypass", "bypass"): lambda x, a, b, r0, r1: x,
}


def row_reduced(name: str, y: Array) -> Array:
    magnitudes = np.abs(y)
    found: Array = {
        "add": lambda: y.sum(1),
        "maximum": lambda: y.max(1),
        "minimum": lambda: y.min(1),
        "abs_max": lambda: y[np.arange(len(y)), magnitudes.argmax(1)],
        "abs_min": lambda: y[np.arange(len(y)), magnitudes.argmin(1)],
    }[name]()
    return found[:, None]


@settings(max_examples=150, deadline=None)
@given(
    steps=st.sampled_from(sorted(STEPS)),
    name=st.sampled_from(["copy", "exp", "relu", "prelu", "tanh"]),
    reduce_op=st.sampled_from(["add", "maximum", "minimum", "abs_max", "abs_min"]),
    source=st.sampled_from(DTYPES),
    target=st.sampled_from(FLOATS[:3]),
    layouts=st.tuples(*[st.sampled_from(LAYOUTS)] * 2),
    partitions=st.sampled_from([1, 32, 64, 128]),
    elements=st.integers(1, 60),
    reverse=st.tuples(st.booleans(), st.booleans()),
    tensors=st.booleans(),
    seed=st.integers(0, 99),
)
def test_activate2(
    steps: tuple[str, str],
    name: str,
    reduce_op: str,
    source: DType,
    target: DType,
    layouts: tuple[str, str],
    partitions: int,
    elements: int,
    reverse: tuple[bool, bool],
    tensors: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    data = np.clip(sample(rng, (partitions, elements), source, 0.5), -3, 3)
    imm0, imm1 = sample(rng, (2, partitions, 1), dtypes.bfloat16, 0.5)
    if not tensors:
        imm0[:], imm1[:] = 0.5, 0.75

    def body() -> tuple[Array, Array]:
        dst = laid(np.zeros((partitions, elements)), target, layouts[0])
        result = empty((partitions, 1))
        activate2(
            dst,
            token(name),
            laid(data, source, layouts[1]),
            tile(imm0, dtypes.bfloat16) if tensors else 0.5,
            tile(imm1, dtypes.bfloat16) if tensors else 0.75,
            getattr(nl, steps[0]),
            getattr(nl, steps[1]),
            relu_param=0.1,
            reverse0=reverse[0],
            reverse1=reverse[1],
            reduce_op=getattr(nl, reduce_op),
            reduce_res=result,
            reduce_cmd=ReduceCmd.reset_reduce,
        )
        return contents(dst), contents(result)

    v = np.asarray(STEPS[steps](data.astype(F32), imm0.astype(F32), imm1.astype(F32), *reverse))
    y = np.where(v >= 0, v, v * 0.1) if name == "prelu" else stated(name, v)
    written, result = on_core(body)
    size = max(1.0, float(np.abs(y).max()))
    assert_near(written, y, 1e-5, 1e-5 * size)
    wanted = row_reduced(reduce_op, y)
    if reduce_op in ("abs_max", "abs_min"):
        # which of nearly equal magnitudes wins may depend on a rounding
        result, wanted = np.abs(result), np.abs(wanted)
    assert_near(result, wanted, 1e-5, 1e-5 * size * elements)


def test_activate2_accumulates_signed_magnitudes() -> None:
    def body() -> list[float]:
        res, dst = empty((1, 1)), empty((1, 2))
        seen = []
        for command, row in (
            ("reset_reduce", [1.0, -3.0]),
            ("reduce", [2.0, 2.5]),
            ("reduce", [3.0, 0.0]),
            ("reset", [9.0, 9.0]),
        ):
            data = tile(np.array([row], F32))
            activate2(
                dst, nl.copy, data, None, None, nl.bypass, nl.bypass, reduce_op=nl.abs_max,
                reduce_res=res, reduce_cmd=command,
            )  # fmt: skip
            seen.append(contents(res).item())
        return seen

    assert on_core(body) == [-3.0, -3.0, 3.0, 0.0]


def test_activate2_rejects() -> None:
    def call(**more: Any) -> Any:
        return activation_call(activate2, **more)

    rejected(call(), "activate2", "gen4", target="gen3")
    for op0, op1 in ((nl.add, nl.add), (nl.bypass, nl.add), (nl.add, nl.multiply)):
        rejected(
            call(op0=op0, op1=op1),
            f"op0 is {op0.__name__} and op1 {op1.__name__}",
            "(multiply, add)",
        )
    rejected(
        call(imm0=of((4, 1)), imm1=of((4, 1), dtypes.bfloat16)), "imm0 is float32 and imm1 bfloat16"
    )
    rejected(call(imm0=of((4, 2))), "imm0 is", "[4, 2]")
    refused(call(imm1=None), "imm1 is None")
    rejected(call(reduce_cmd=ReduceCmd.reset_reduce), "reduce_op is None", "abs_min")
    rejected(call(reduce_cmd=ReduceCmd.load_reduce), "load_reduce")


# ---- exponential ----


@settings(max_examples=80, deadline=None)
@given(
    source=st.sampled_from(DTYPES),
    target=st.sampled_from(FLOATS[:3]),
    layouts=st.tuples(*[st.sampled_from(LAYOUTS)] * 2),
    partitions=st.sampled_from([1, 32, 64, 128]),
    elements=st.integers(1, 60),
    vector=st.booleans(),
    seed=st.integers(0, 99),
)
def test_exponential(
    source: DType,
    target: DType,
    layouts: tuple[str, str],
    partitions: int,
    elements: int,
    vector: bool,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    src = sample(rng, (partitions, elements), source, 1.0)
    largest = src.max(1, keepdims=True) if vector else np.full((1, 1), 20.0)

    def body() -> tuple[Array, Array]:
        dst = laid(np.zeros((partitions, elements)), target, layouts[0])
        total = empty((partitions, 1))
        maximum = tile(largest, dtypes.float32) if vector else 20
        instruction = exponential(
            dst, laid(src, source, layouts[1]), maximum, total, ReduceCmd.reset_reduce
        )
        assert instruction.engine is Engine.vector
        return contents(dst), contents(total)

    wanted = np.exp(src - largest)
    written, total = on_core(body)
    size = max(1.0, float(wanted.max()))
    assert_near(written, wanted, 1e-5, 1e-6 * size)
    assert_near(total, wanted.sum(1, keepdims=True), 1e-5, 1e-6 * size)


def test_reduce_cmd_of_exponential() -> None:
    def body() -> list[float]:
        src, dst, res = tile(np.zeros((1, 3), F32)), empty((1, 3)), empty((1, 1))
        seen = []

        def step(*command: Any, **more: Any) -> None:
            exponential(dst, src, 0.0, res, *command, **more)
            assert contents(dst).tolist() == [[1, 1, 1]]
            seen.append(contents(res).item())

        step("reset_reduce")
        step(ReduceCmd.reduce)
        step()
        step(ReduceCmd.load_reduce, 0.5)
        step(ReduceCmd.load_reduce, reduce_init=tile(np.full((1, 1), -3, F32)))
        step(ReduceCmd.reset)
        # registers that tensor_scalar_reduce shares
        tensor_scalar_reduce(dst, src, nl.add, 10.0, nl.add)
        step(ReduceCmd.reduce)
        return seen

    assert on_core(body) == [3, 6, 6, 3.5, 0, 0, 33]


def test_a_row_of_nothing_but_masked_scores() -> None:
    def body() -> Array:
        src = tile(np.array([[-np.inf, 0.0, -np.inf]], F32))
        exponential(src, src, 0.0)
        return contents(src)

    assert on_core(body).tolist() == [[0, 1, 0]]


def test_exponential_rejects() -> None:
    def call(**more: Any) -> Any:
        def body() -> None:
            given: dict[str, Any] = {
                "dst": lambda: empty((4, 6)),
                "src": lambda: tile(np.ones((4, 6), F32)),
            } | more
            exponential(**{k: v() if callable(v) else v for k, v in given.items()})

        return body

    rejected(call(), "exponential", "gen4", target="gen3")
    rejected(call(src=of((4, 5))), "src is", "[4, 5]")
    rejected(call(src=of((4, 6), dtypes.float4_e2m1fn_x4)), "src is float4_e2m1fn_x4")
    rejected(call(src=lambda: empty((4, 6))), "src reads")
    rejected(call(max_value=of((4, 1), dtypes.bfloat16)), "max_value is bfloat16", "float32")
    rejected(call(max_value=of((4, 6))), "max_value is", "[4, 6]")
    refused(call(max_value=None), "max_value is None")
    rejected(call(reduce_res=of((4, 1), dtypes.uint8)), "reduce_res is uint8")
    rejected(call(reduce_res=of((4, 6))), "reduce_res is", "[4, 6]")
    rejected(call(reduce_init=2.0), "reduce_init is 2.0", "load_reduce")
    rejected(
        call(reduce_cmd=ReduceCmd.load_reduce, reduce_init=of((4, 2))), "reduce_init is", "[4, 2]"
    )
    refused(call(reduce_cmd=ReduceCmd.load_reduce, reduce_init=None), "reduce_init is None")
    refused(call(reduce_cmd=4), "reduce_cmd is 4")


# ---- without numerics ----


def test_shapes_alone() -> None:
    def body() -> list[Any]:
        x, one = empty((128, 512)), empty((128, 1))
        x.storage.coverage.full = one.storage.coverage.full = True
        activation(x, nl.exp, x, one, one)
        activation(x, nl.exp, x, reduce_op=nl.add, reduce_res=one, reduce_cmd="reset_reduce")
        activation_reduce(x, nl.exp, x, nl.add, one)
        activate2(x, nl.exp, x, one, one, nl.multiply, nl.add)
        exponential(x, x, one)
        return [
            (i.op, len(i.writes), len(i.reads), i.details and i.details["reduces"])
            for i in core().trace
        ]

    assert on_core(body, numerics=False) == [
        ("activation", 1, 3, False),
        ("activation", 2, 1, True),
        ("activation_reduce", 2, 1, True),
        ("activate2", 1, 3, False),
        ("exponential", 1, 2, None),
    ]
