"""Running results of the Vector engine along the free dimension, on NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim.alu import AluOp, Array, Operand, resolve


def scan(
    op0: AluOp,
    op1: AluOp,
    data0: Array,
    data1: Array,
    initial: Operand,
    reverse0: bool = False,
    reverse1: bool = False,
) -> Array:
    """`tensor_tensor_scan`: `r[i] = op1(op0(data0[i], r[i - 1]), data1[i])` with `r[-1] = initial`.

    Args:
        data0, data1: float32 `[P, N]`.
        initial: a number or `[P, 1]`.
        reverse0: `op0(r[i - 1], data0[i])`.
        reverse1: `op1(data1[i], ...)`.

    Returns:
        float32 `[P, N]`; every step is rounded to float32, in order.
    """
    running = op1.ufunc in _ACCUMULATING
    if running and _keeps_state(op0, data0, reverse0):
        return _accumulate(op1, data1, initial)
    if running and op0 is op1:
        P, N = data0.shape
        alternating = np.stack([data0, data1], axis=2).reshape(P, 2 * N)
        return np.ascontiguousarray(_accumulate(op1, alternating, initial)[:, 1::2])
    return _recurrence(op0, op1, data0, data1, initial, reverse0, reverse1)


def cumulative(op0: AluOp, op1: AluOp, src: Array, imm0: Operand, start: Operand) -> Array:
    """`tensor_scalar_cumulative`: `r[i] = op1(op0(src[i], imm0), r[i - 1])` with `r[-1] = start`.

    Args:
        src: float32 `[P, N]`.
        imm0, start: a number or `[P, 1]` each.

    Returns:
        float32 `[P, N]`; every step is rounded to float32, in order.
    """
    terms = op0.function(src, imm0)
    if op1.ufunc in _ACCUMULATING:
        return _accumulate(op1, terms, start)
    return _recurrence(op1, resolve("bypass"), terms, terms, start, False, False)


# ufuncs whose result does not depend on the order of their two operands
_ACCUMULATING = (np.add, np.multiply, np.maximum, np.minimum)


def _keeps_state(op0: AluOp, data0: Array, reverse0: bool) -> bool:
    """Whether `op0` hands the running value on as it is."""
    if op0.name == "bypass":
        return reverse0
    return op0.name == "multiply" and bool(np.all(data0 == 1.0))


def _accumulate(op: AluOp, terms: Array, start: Operand) -> Array:
    assert op.ufunc is not None
    P, N = terms.shape
    sequence = np.empty((P, N + 1), np.float32)
    sequence[:, :1] = start
    sequence[:, 1:] = terms
    with np.errstate(all="ignore"):
        op.ufunc.accumulate(sequence, axis=1, out=sequence)
    return sequence[:, 1:]


def _recurrence(
    op0: AluOp,
    op1: AluOp,
    data0: Array,
    data1: Array,
    initial: Operand,
    reverse0: bool,
    reverse1: bool,
) -> Array:
    P, N = data0.shape
    state = np.empty(P, np.float32)
    state[:] = np.asarray(initial).reshape(-1)
    # position by position, so that each step reads and writes contiguous memory
    first, second = np.ascontiguousarray(data0.T), np.ascontiguousarray(data1.T)
    result = np.empty((N, P), np.float32)
    step0: Any = op0.ufunc or op0.function
    step1: Any = op1.ufunc or op1.function
    with np.errstate(all="ignore"):
        for x, y, row in zip(first, second, result, strict=True):
            carried = step0(state, x, row) if reverse0 else step0(x, state, row)
            state = step1(y, carried, row) if reverse1 else step1(carried, y, row)
    return np.ascontiguousarray(result.T)
