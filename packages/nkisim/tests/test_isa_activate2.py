"""`activate2`: its two steps before the function, and its reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from activation_tools import F32, activation_call, stated, token
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_tiles import (
    DTYPES,
    FLOATS,
    LAYOUTS,
    Array,
    assert_near,
    contents,
    empty,
    laid,
    of,
    on_core,
    refused,
    rejected,
    sample,
    tile,
)

from nkisim import dtypes
from nkisim import operations as nl
from nkisim.dtypes import DType
from nkisim.enums import ReduceCmd
from nkisim.isa.activations import activate2

pytestmark = pytest.mark.filterwarnings("error")

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
