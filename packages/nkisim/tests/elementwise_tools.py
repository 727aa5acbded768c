"""Operators on float64 arrays, and what tests of elementwise instructions draw from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from isa_tiles import LAYOUTS

from nkisim.settings import Rules

F32 = np.float32
QUIET = Rules(fp8_overflow="off", unsupported="off")

# on float64 arrays; the result rounded to float32 is exact
ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": lambda a, b: (a == b) * 1.0,
    "not_equal": lambda a, b: (a != b) * 1.0,
    "less": lambda a, b: (a < b) * 1.0,
    "less_equal": lambda a, b: (a <= b) * 1.0,
    "greater": lambda a, b: (a > b) * 1.0,
    "greater_equal": lambda a, b: (a >= b) * 1.0,
    "logical_and": lambda a, b: ((a != 0) & (b != 0)) * 1.0,
    "logical_or": lambda a, b: ((a != 0) | (b != 0)) * 1.0,
    "logical_xor": lambda a, b: ((a != 0) ^ (b != 0)) * 1.0,
    "mod": lambda a, b: a - b * np.floor(a / b),
    "abs_max": lambda a, b: np.where(np.abs(a) > np.abs(b), a, b),
    "abs_min": lambda a, b: np.where(np.abs(a) < np.abs(b), a, b),
}
two_layouts = st.tuples(*[st.sampled_from(LAYOUTS)] * 2)
three_layouts = st.tuples(*[st.sampled_from(LAYOUTS)] * 3)
counts = st.sampled_from([1, 2, 31, 32, 64, 100, 128])
