"""The memory of one core, as its plan has it."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.adaln.plan import CHUNK, LIFT_BANKS, PRODUCT_BANKS, TILE, Plan
from wantrn.kernels.nki import nl
from wantrn.kernels.psum import Banks
from wantrn.kernels.sbuf import slots_of
from wantrn.kernels.slots import Slots


class Turns(nl.NKIObject):
    """Chunks that are dealt out to one of two engines, evenly spread.

    Attributes:
        share: of the first engine
        count: chunks so far
    """

    share: float
    count: int = 0

    def next(self) -> bool:
        """Whether the next chunk is the first engine's."""
        self.count += 1
        return int(self.count * self.share) > int((self.count - 1) * self.share)


class Memory(nl.NKIObject):
    """All buffers of a plan, each `[TILE, n]`; None where the plan has none.

    Attributes:
        x, residual: rows as they come; the new stream takes the place of the residual, and the
            result that of the rows that it is computed from
        work: fp32 chunks of GpSimd
        statistics: of bn_stats; columns: see `wantrn.kernels.adaln.norm`
        values: fp32 rows that are to be quantized
        magnitudes, largest: of a chunk, a slot for each engine; and the largest of each
        packed: FP8 rows with their scales
        gate, mul, add: fp32
        lifts, products: chunks in PSUM, of the sum and of the modulation
        summed, modulated: whether GpSimd has a chunk; searched: whether Vector has
    """

    x: Slots
    residual: Any
    work: Any
    statistics: Any
    columns: Slots
    values: Any
    magnitudes: Any
    largest: Any
    packed: Any
    gate: Any
    mul: Any
    add: Any
    lifts: Banks
    products: Banks
    summed: Turns
    modulated: Turns
    searched: Turns

    def place(self, banks: Banks, by_gpsimd: bool, rows: int, width: int) -> Any:
        """fp32 `[rows, width]` where the engine that computes a chunk reaches it."""
        slot = self.work.take() if by_gpsimd else banks.take((TILE, CHUNK), nl.float32)
        return slot[0:rows, 0:width]


def allocate(plan: Plan, dtype: Any, code_dtype: Any) -> Memory:
    """The buffers of `plan`, for rows of `dtype` and FP8 codes of `code_dtype`."""
    found, size = plan.buffers, plan.sizes.itemsize
    return Memory(
        x=slots_of(found, "x", dtype, size),
        residual=slots_of(found, "residual", dtype, size),
        work=slots_of(found, "work", nl.float32, 4),
        statistics=slots_of(found, "statistics", nl.float32, 4),
        columns=slots_of(found, "columns", nl.float32, 4),
        values=slots_of(found, "values", nl.float32, 4),
        magnitudes=slots_of(found, "magnitudes", nl.bfloat16, 2),
        largest=slots_of(found, "largest", nl.float32, 4),
        packed=slots_of(found, "packed", code_dtype, 1),
        gate=slots_of(found, "gate", nl.float32, 4),
        mul=slots_of(found, "mul", nl.float32, 4),
        add=slots_of(found, "add", nl.float32, 4),
        lifts=Banks(first=LIFT_BANKS),
        products=Banks(first=PRODUCT_BANKS),
        summed=Turns(share=plan.shares.gpsimd),
        modulated=Turns(share=plan.shares.gpsimd),
        searched=Turns(share=plan.shares.magnitudes),
    )
