"""Mean and variance on the Vector engine."""

from __future__ import annotations

from nkisim import statistics
from nkisim.core import Core, current
from nkisim.enums import Engine
from nkisim.isa import checks, values
from nkisim.tensor import NkiTensor
from nkisim.trace import Instruction

# `nl.tile_size.bn_stats_fmax`
MAX_STATS_ELEMENTS = 512


def bn_stats(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> Instruction:
    """Count, mean and count times variance of the elements at even, then at odd positions.

    Args:
        dst: [P, 6], SBUF or PSUM.
        data: [P, N], SBUF or PSUM, N at most 512.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.bn_stats")
    what = "bn_stats"
    _check(core, what, dst, data, 6)
    elements = data.access().elements
    if elements > MAX_STATS_ELEMENTS:
        core.violation(
            "constraint",
            f"{what}: data is {data!r} with {elements} elements of each partition; at most "
            f"{MAX_STATS_ELEMENTS} are allowed",
        )
    instruction = core.issue(what, Engine.vector, (dst,), (data,), name)
    if core.numerics:
        values.put(core, what, dst, statistics.bn_stats(values.single(data)))
    return instruction


def bn_aggr(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> Instruction:
    """Mean and variance of all elements that several `bn_stats` have seen.

    Args:
        dst: [P, 2], SBUF or PSUM: mean, and variance of the population.
        data: [P, 3 k], SBUF or PSUM: count, mean, and count times variance, k times.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.bn_aggr")
    what = "bn_aggr"
    _check(core, what, dst, data, 2)
    elements = data.access().elements
    if elements % 3:
        core.violation(
            "constraint",
            f"{what}: data is {data!r} with {elements} elements of each partition; they must be a "
            "multiple of 3",
        )
    instruction = core.issue(what, Engine.vector, (dst,), (data,), name)
    if core.numerics:
        values.put(core, what, dst, statistics.bn_aggr(values.single(data)))
    return instruction


def _check(core: Core, what: str, dst: NkiTensor, data: NkiTensor, results: int) -> None:
    checks.operand(core, what, "dst", dst)
    checks.operand(core, what, "data", data)
    checks.no_packed(core, what, dst=dst, data=data)
    if dst.shape[0] != data.shape[0] or dst.access().elements != results:
        core.violation(
            "constraint",
            f"{what}: dst is {dst!r}; it must have {data.shape[0]} partitions, as data, of "
            f"{results} elements",
        )
