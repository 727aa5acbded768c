"""The rules that a call of `adaln_modulate` must keep; each function says which one is broken."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.adaln.options import NORMS, Options, Sizes, keeps_rows
from wantrn.kernels.row_mx import OCP_LIMIT, TRN2_LIMIT

DTYPES = ("bfloat16", "float32")


def broken_by_options(options: Options, sizes: Sizes) -> Any:
    """A rule about the options, and which sizes go with them."""
    if options.norm not in NORMS:
        return f"norm is {options.norm!r}; it must be one of {NORMS}"
    if not 0 < options.eps < float("inf"):
        return f"eps is {options.eps}; it must be positive and finite"
    if options.limit not in (0.0, TRN2_LIMIT, OCP_LIMIT):
        return f"limit is {options.limit}; it must be {OCP_LIMIT} or {TRN2_LIMIT}, or 0 for none"
    if options.limit and sizes.hidden % 4:
        return f"H is {sizes.hidden}; packed rows need a multiple of 4"
    if not sizes.residual and not options.limit and keeps_rows(sizes, options):
        return "without residual, norm, mul, add and limit there is nothing to compute"
    return None


def broken_by_sizes(sizes: Sizes) -> Any:
    """A rule about the sizes alone."""
    if min(sizes.batch, sizes.positions, sizes.hidden) < 1:
        return f"x is {[sizes.batch, sizes.positions, sizes.hidden]}; every size must be at least 1"
    if sizes.gate and not sizes.residual:
        return "a gate without a residual; it multiplies what is added to the residual"
    for name, rows in sizes.modulations():
        batch, groups = rows
        if batch not in (1, sizes.batch) or groups < 1 or sizes.positions % groups:
            return (
                f"{name} is {[batch, groups, sizes.hidden]}; it must be [1 or {sizes.batch}, G, "
                f"{sizes.hidden}] with G a divisor of {sizes.positions} tokens"
            )
    return None


def broken_by_tensors(x: Any, residual: Any, modulations: tuple[Any, Any, Any]) -> Any:
    """A rule about ranks, widths and dtypes.

    Args:
        modulations: gate, mul, add; each may be None.
    """
    if len(x.shape) != 3:
        return f"x is {list(x.shape)}; it must be [B, S, H]"
    if not any([dtype in str(x.dtype) for dtype in DTYPES]):
        return f"x is {x.dtype}; it must be {' or '.join(DTYPES)}"
    if residual != None and (tuple(residual.shape) != tuple(x.shape) or residual.dtype != x.dtype):
        return (
            f"residual is {list(residual.shape)} {residual.dtype}; it must be {list(x.shape)} "
            f"{x.dtype}, as x"
        )
    for index, name in enumerate(("gate", "mul", "add")):
        rows = modulations[index]
        if rows == None:
            continue
        if len(rows.shape) != 3 or rows.shape[2] != x.shape[2]:
            return f"{name} is {list(rows.shape)}; it must be [1 or B, G, {x.shape[2]}]"
        if "float32" not in str(rows.dtype):
            return f"{name} is {rows.dtype}; it must be float32"
    return None


def broken_by_target(options: Options, ocp: bool) -> Any:
    """A rule about the generation of the chip; `ocp`: it has the OCP format of FP8."""
    if options.limit == OCP_LIMIT and not ocp:
        return f"limit is {options.limit}; before gen4 it must be {TRN2_LIMIT}"
    return None
