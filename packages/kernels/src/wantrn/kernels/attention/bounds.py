"""Bounds of the keys that each query reads, where they are known only when the kernel runs.

Query positions and bounds are fp32, which the instruction takes: exact below 2 ** 24.
"""

from __future__ import annotations

from typing import Any

from wantrn.kernels.attention.options import Options
from wantrn.kernels.attention.plan import GROUP
from wantrn.kernels.nki import nisa, nl

# beyond any position, and exact in fp32
_NO_LIMIT = 2.0**23


class Bounds(nl.NKIObject):
    """For each group of queries a column: query `q0 + p` reads keys `lower <= k < upper`.

    Attributes:
        lower, upper: fp32 `[GROUP, groups]`, of the keys themselves
        prior_lower, prior_upper: of the keys of the prefix; None without one
    """

    lower: Any
    upper: Any
    prior_lower: Any = None
    prior_upper: Any = None


def broadcast_scalar(src: Any) -> Any:
    """fp32 `[GROUP, 1]` with the one element of `src`, `[1, 1]` in HBM, in each partition."""
    raw = nl.ndarray((GROUP, 1), src.dtype, buffer=nl.sbuf)
    nisa.dma_copy(raw, src.ap([[0, GROUP], [1, 1]]))
    wide = nl.ndarray((GROUP, 1), nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(wide, raw)
    return wide


def positions(options: Options, q0: int, groups: int, cp_offset: Any, used: Any) -> Any:
    """fp32 `[GROUP, groups]`: where queries `q0`, ... stand among the keys of their sequence."""
    stride = options.cp_degree if options.cp == "strided" else 1
    found = nl.ndarray((GROUP, groups), nl.float32, buffer=nl.sbuf)
    nisa.iota(found, [[GROUP * stride, groups]], offset=q0 * stride, channel_multiplier=stride)
    for scalar in (cp_offset, used):
        if scalar != None:
            nisa.tensor_scalar(found, found, nl.add, scalar)
    return found


def make_bounds(options: Options, q0: int, groups: int, cp_offset: Any, used: Any) -> Bounds:
    """Bounds that causality, the window, the slice and the prefix give to queries `q0`, ...

    Args:
        cp_offset: fp32 `[GROUP, 1]`, or None.
        used: the keys of the prefix that count, fp32 `[GROUP, 1]`, or None without a prefix.
    """
    lower = nl.ndarray((GROUP, groups), nl.float32, buffer=nl.sbuf)
    upper = nl.ndarray((GROUP, groups), nl.float32, buffer=nl.sbuf)
    nisa.memset(lower, 0.0)
    if options.causal:
        at = positions(options, q0, groups, cp_offset, None)
        nisa.tensor_scalar(upper, at, nl.add, 1.0)
        if options.window:
            nisa.tensor_scalar(lower, at, nl.add, float(1 - options.window))
    else:
        nisa.memset(upper, _NO_LIMIT)
    if used == None:
        return Bounds(lower=lower, upper=upper)
    prior_lower = nl.ndarray((GROUP, groups), nl.float32, buffer=nl.sbuf)
    prior_upper = nl.ndarray((GROUP, groups), nl.float32, buffer=nl.sbuf)
    nisa.memset(prior_lower, 0.0)
    nisa.memset(prior_upper, 0.0)
    nisa.tensor_scalar(prior_upper, prior_upper, nl.add, used)
    if options.window:
        at = positions(options, q0, groups, None, used)
        nisa.tensor_scalar(prior_lower, at, nl.add, float(1 - options.window))
    return Bounds(lower=lower, upper=upper, prior_lower=prior_lower, prior_upper=prior_upper)


def pack_bounds(bounds: Bounds, given: tuple[Any, Any], q0: int, rows: int) -> Bounds:
    """`bounds` within those that one sequence's queries `q0:q0 + rows` were given, `[S_q]` each."""
    groups = -(-rows // GROUP)
    lower = _load_columns(given[0], q0, rows, groups)
    upper = _load_columns(given[1], q0, rows, groups)
    nisa.tensor_tensor(lower, lower, bounds.lower, nl.maximum)
    nisa.tensor_tensor(upper, upper, bounds.upper, nl.minimum)
    return Bounds(
        lower=lower,
        upper=upper,
        prior_lower=bounds.prior_lower,
        prior_upper=bounds.prior_upper,
    )


def _load_columns(src: Any, q0: int, rows: int, groups: int) -> Any:
    """fp32 `[GROUP, groups]` of `src[q0:q0 + rows]`, a group in each column, zeros behind them."""
    raw = nl.ndarray((GROUP, groups), src.dtype, buffer=nl.sbuf)
    whole = rows // GROUP
    if whole:
        part = src[q0 : q0 + whole * GROUP].reshape_dim(0, (whole, GROUP))
        nisa.dma_copy(raw[:, 0:whole], part.permute((1, 0)))
    rest = rows - whole * GROUP
    if rest:
        nisa.memset(raw[:, whole : whole + 1], 0)
        part = src[q0 + whole * GROUP : q0 + rows].reshape((rest, 1))
        nisa.dma_copy(raw[0:rest, whole : whole + 1], part)
    wide = nl.ndarray((GROUP, groups), nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(wide, raw)
    return wide
