"""The exponential function on the Vector engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim import alu, dtypes
from nkisim.core import current
from nkisim.enums import Engine, ReduceCmd
from nkisim.isa import accumulators, checks, values
from nkisim.isa.accumulators import Reduction
from nkisim.tensor import NkiTensor
from nkisim.trace import Instruction

_ADD = alu.resolve("add")


def exponential(
    dst: NkiTensor,
    src: NkiTensor,
    max_value: Any = 0.0,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: Any = ReduceCmd.idle,
    reduce_init: Any = 0.0,
    name: str | None = None,
) -> Instruction:
    """`dst = exp(src - max_value)`, with the row sum in the accumulators.

    Args:
        dst, src: SBUF or PSUM, equal partitions and elements.
        max_value: a number or an fp32 [P, 1] tensor.
        reduce_res: [P, 1], a floating-point type; receives the accumulators.
        reduce_cmd: see `nkisim.isa.accumulators.Reduction`.
        reduce_init: what `load_reduce` starts from: a number or a [P, 1] tensor.

    Raises:
        NkiValidationError: an operand breaks a constraint, or the target is older than gen4.
    """
    core = current("nisa.exponential")
    what = "exponential"
    core.require_generation(what, 4)
    checks.operand(core, what, "dst", dst)
    checks.operand(core, what, "src", src)
    checks.same_size(core, what, "dst", dst, "src", src)
    checks.no_packed(core, what, dst=dst, src=src)
    reads = [src]
    checks.scalar_operand(core, what, "max_value", max_value, src, reads)
    if type(max_value) is NkiTensor:
        checks.dtype_in(core, what, "max_value", max_value, (dtypes.float32,))
    command = accumulators.command(core, what, reduce_cmd, loads=True)
    accumulators.check_init(core, what, "reduce_init", reduce_init, command, dst, reads)
    accumulators.check_result(core, what, reduce_res, dst)
    reduction = Reduction(Engine.vector, _ADD, command, reduce_res, reduce_init)
    instruction = core.issue(what, Engine.vector, reduction.written(dst), reads, name)
    if core.numerics:
        with np.errstate(all="ignore"):
            result = np.subtract(values.single(src), values.scalar(max_value))
            np.exp(result, out=result)
        accumulators.finish(core, what, dst, result, reduction)
    return instruction
