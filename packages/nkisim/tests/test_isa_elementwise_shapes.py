"""What elementwise instructions record in a run without numerics."""

from __future__ import annotations

from typing import Any

import pytest
from isa_tiles import core, empty, on_core

from nkisim import dtypes
from nkisim import operations as nl
from nkisim.isa.vector import (
    memset,
    reciprocal,
    scalar_tensor_tensor,
    tensor_copy,
    tensor_copy_predicated,
    tensor_scalar,
    tensor_tensor,
)

pytestmark = pytest.mark.filterwarnings("error")


def test_shapes_alone() -> None:
    def body() -> list[Any]:
        x, one, ints = empty((64, 16)), empty((64, 1)), empty((64, 16), dtypes.uint8)
        memset(x, 0.0)
        memset(one, 1.0)
        memset(ints, 1)
        tensor_copy(x, x)
        tensor_copy_predicated(x, x, ints)
        tensor_tensor(x, x, x, nl.add)
        tensor_scalar(x, x, nl.add, one, op1=nl.multiply, operand1=one)
        scalar_tensor_tensor(x, x, nl.add, one, nl.multiply, x)
        reciprocal(x, x)
        return [(i.op, len(i.reads), i.details) for i in core().trace][3:]

    assert on_core(body, numerics=False) == [
        ("tensor_copy", 1, None),
        ("tensor_copy_predicated", 3, None),
        ("tensor_tensor", 2, {"op0": "add"}),
        ("tensor_scalar", 3, {"op0": "add", "op1": "multiply"}),
        ("scalar_tensor_tensor", 3, {"op0": "add", "op1": "multiply"}),
        ("reciprocal", 1, None),
    ]
