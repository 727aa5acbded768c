"""The accumulator registers of the Vector and the Scalar engine, and instructions that use them.

Each engine has one fp32 register for each of its 128 lanes. They keep their values from one
instruction to the next; all instructions of the engine that reduce share them. Here a lane has the
number of the physical partition of `dst` (NKI reference, `nki.isa.reduce_cmd`, and the notes
"Accumulator behavior" of the instructions).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nkisim.alu import AluOp
from nkisim.core import Core
from nkisim.enums import Engine, ReduceCmd, member
from nkisim.isa import checks, values
from nkisim.tensor import NkiTensor

_STARTS_ANEW = (ReduceCmd.reset, ReduceCmd.reset_reduce)
_ACCUMULATES = (ReduceCmd.reduce, ReduceCmd.reset_reduce, ReduceCmd.load_reduce)


@dataclass(frozen=True, slots=True)
class Reduction:
    """What one instruction does with the registers of its engine.

    Attributes:
        engine: vector or scalar
        alu: the operator that reduces; it has an identity
        command: `idle` leaves the registers, `reset` sets them to the identity, `reduce` goes on
            from what they hold, `reset_reduce` from the identity, `load_reduce` from `init`
        result: `[P, 1]`, receives the registers afterwards, or None to leave them there
        init: a number or a `[P, 1]` tensor, for `load_reduce`
        negate: `result` gets the registers with the other sign
    """

    engine: Engine
    alu: AluOp
    command: ReduceCmd
    result: NkiTensor | None
    init: Any = None
    negate: bool = False

    def written(self, dst: NkiTensor) -> tuple[NkiTensor, ...]:
        """The tensors that the instruction writes."""
        return (dst,) if self.result is None else (dst, self.result)


def command(core: Core, what: str, value: Any, loads: bool = False) -> ReduceCmd:
    """The `reduce_cmd` that `value` means; `loads` says whether `load_reduce` is one of them."""
    chosen = member(ReduceCmd, value, f"{what}: reduce_cmd")
    if chosen is ReduceCmd.load_reduce and not loads:
        core.violation(
            "constraint",
            f"{what}: reduce_cmd is {chosen}; this instruction has nothing to load, it takes idle, "
            "reset, reduce and reset_reduce",
        )
    return chosen


def accumulates(reduce_cmd: ReduceCmd) -> bool:
    """Whether the instruction reduces its results into the registers."""
    return reduce_cmd in _ACCUMULATES


def check_result(core: Core, what: str, result: Any, dst: NkiTensor) -> None:
    """`reduce_res`: None, or a `[P, 1]` tensor of a floating-point type."""
    if result is None:
        return
    checks.operand(core, what, "reduce_res", result)
    checks.column(core, what, "reduce_res", result, dst)
    if not result.dtype.is_float:
        core.violation(
            "constraint", f"{what}: reduce_res is {result.dtype}; it must be a floating-point type"
        )


def check_init(
    core: Core,
    what: str,
    name: str,
    value: Any,
    reduce_cmd: ReduceCmd,
    dst: NkiTensor,
    reads: list[NkiTensor],
) -> None:
    """What `load_reduce` loads: a number or a `[P, 1]` tensor, which is added to `reads`.

    Without `load_reduce` it must be None or 0.
    """
    if reduce_cmd is ReduceCmd.load_reduce:
        if value is None:
            raise TypeError(f"{what}: {name} is None; reduce_cmd load_reduce needs a value to load")
        checks.scalar_operand(core, what, name, value, dst, reads)
    elif value is not None and (type(value) is NkiTensor or value != 0):
        core.violation(
            "constraint",
            f"{what}: {name} is {value!r}; it must be None or 0, since reduce_cmd is {reduce_cmd} "
            "and only load_reduce loads it",
        )


def start(core: Core, reduction: Reduction, dst: NkiTensor) -> Any:
    """What the reduction goes on from: fp32, `[P, 1]` or a number."""
    if reduction.command is ReduceCmd.load_reduce:
        return values.scalar(reduction.init)
    if reduction.command in _STARTS_ANEW:
        return identity(reduction.alu)
    return registers(core, reduction.engine, dst)[:, None]


def identity(alu: AluOp) -> Any:
    """What an accumulator of `alu` starts from, in fp32."""
    assert alu.identity is not None
    return np.float32(alu.identity)


def registers(core: Core, engine: Engine, dst: NkiTensor) -> values.Float32:
    """The registers of the lanes of `dst`: `[P]`, not a copy."""
    first = dst.access().p0
    return core.accumulators[engine][first : first + dst.shape[0]]


def finish(
    core: Core, what: str, dst: NkiTensor, result: values.Float32, reduction: Reduction
) -> None:
    """Reduce `result` [P, N] into the registers; then write it, and after it the registers.

    The reduction takes fp32 values, before `dst` narrows them. Where `reduce_res` overlaps `dst`,
    `reduce_res` is what stays.
    """
    lanes = registers(core, reduction.engine, dst)
    if accumulates(reduction.command):
        reduce = reduction.alu.reduce
        assert reduce is not None
        total = reduction.alu.function(start(core, reduction, dst), reduce(result, 1)[:, None])
        lanes[:] = total[:, 0]
    elif reduction.command is ReduceCmd.reset:
        lanes[:] = identity(reduction.alu)
    values.put(core, what, dst, result)
    if reduction.result is not None:
        total = -lanes if reduction.negate else lanes
        values.put(core, what, reduction.result, total[:, None])
