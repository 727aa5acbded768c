"""Quantisation to MX formats; gen4."""

from __future__ import annotations

from nkisim import dtypes, mx
from nkisim.core import current
from nkisim.enums import Engine
from nkisim.isa import checks, mx_scales, values
from nkisim.tensor import NkiTensor
from nkisim.trace import Instruction

_SOURCES = (dtypes.bfloat16, dtypes.float16)
_RESULTS = (dtypes.float8_e4m3fn_x4, dtypes.float8_e5m2_x4)


def quantize_mx(
    dst: NkiTensor, src: NkiTensor, dst_scale: NkiTensor, name: str | None = None
) -> Instruction:
    """MX elements of fp8, and a scale for each block of 8 partitions and 4 elements; Vector engine.

    The scale is a power of two: `nkisim.mx.quantize` says which, by the rule of NKI 0.5 and later
    or, with `Settings.legacy_mx_scale`, by the one before.

    Args:
        dst: SBUF, float8_e4m3fn_x4 or float8_e5m2_x4, [P, F].
        src: SBUF, bfloat16 or float16, [P, 4 F], P a multiple of 32.
        dst_scale: SBUF, uint8 or float8_e8m0fnu, F elements of each partition. Of each quadrant of
            32 partitions from where the view begins, the first four get the scales of its four rows
            of blocks; the others stay as they are. The view must reach the last of them, and may
            begin at partition 0, 4, 8 or 12 of a quadrant.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.quantize_mx")
    op = "quantize_mx"
    core.require_generation(op, 4)
    checks.operand(core, op, "dst", dst, checks.SBUF)
    checks.operand(core, op, "src", src, checks.SBUF)
    checks.dtype_in(core, op, "dst", dst, _RESULTS)
    checks.dtype_in(core, op, "src", src, _SOURCES)
    partitions, elements = src.shape[0], src.access().elements
    if partitions % mx.QUADRANT_PARTITIONS:
        core.violation(
            "constraint",
            f"{op}: src has {partitions} partitions; they must be a multiple of 32",
        )
    if elements % 4:
        core.violation(
            "constraint",
            f"{op}: src has {elements} elements of each partition; they must be a multiple of 4",
        )
    if (dst.shape[0], dst.access().elements) != (partitions, elements // 4):
        core.violation(
            "constraint",
            f"{op}: dst is {dst!r}; for src {src!r} it must have {partitions} partitions of "
            f"{elements // 4} elements",
        )
    columns = dst.access().elements
    mx_scales.check(core, op, "dst_scale", dst_scale, partitions, columns)
    rows = mx_scales.views(dst_scale, partitions, columns)
    instruction = core.issue(op, Engine.vector, (dst, *rows), (src,), name)
    if core.numerics:
        legacy = core.settings.legacy_mx_scale
        codes, scale = mx.quantize(values.raw(src), dst.dtype, legacy)
        dst.assign(codes)
        for quadrant, view in enumerate(rows):
            part = scale[4 * quadrant : 4 * quadrant + 4]
            view.assign(part.view(dst_scale.dtype.numpy))
    return instruction
