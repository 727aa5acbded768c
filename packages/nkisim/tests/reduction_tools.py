"""Operators of reductions: on two numbers in float32, and over rows in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from isa_tiles import Array

F32 = np.float32

PAIRS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: F32(a + b),
    "subtract": lambda a, b: F32(a - b),
    "multiply": lambda a, b: F32(a * b),
    "maximum": max,
    "minimum": min,
    "logical_and": lambda a, b: F32(a != 0 and b != 0),
    "logical_or": lambda a, b: F32(a != 0 or b != 0),
    "logical_xor": lambda a, b: F32((a != 0) != (b != 0)),
}
IDENTITY = {"add": 0.0, "multiply": 1.0, "maximum": -math.inf, "minimum": math.inf}


def rows_in_double(op: str, rows: Array) -> Array:
    """`op` over the last axis, in float64."""
    nonzero = (rows != 0).sum(-1)
    found: Array = {
        "add": lambda: rows.sum(-1),
        "subtract": lambda: 2 * rows[..., 0] - rows.sum(-1),
        "multiply": lambda: rows.prod(-1),
        "maximum": lambda: rows.max(-1),
        "minimum": lambda: rows.min(-1),
        "logical_and": lambda: (nonzero == rows.shape[-1]).astype(np.float64),
        "logical_or": lambda: (nonzero > 0).astype(np.float64),
        "logical_xor": lambda: (nonzero % 2 == 1).astype(np.float64),
    }[op]()
    return found
