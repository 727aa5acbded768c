"""The memory of one core, as its plan has it."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nl
from wantrn.kernels.qkv.plan import (
    BANK_BYTES,
    SLAB_BANKS,
    TABLE_BANKS,
    Buffer,
    Plan,
)
from wantrn.kernels.qkv.slabs import SLAB, TILE


class Slots(nl.NKIObject):
    """The slots of one buffer, taken in turns or by number."""

    tensors: list[Any]
    taken: int = 0

    def take(self) -> Any:
        """The next one; what it held is gone."""
        self.taken += 1
        return self.at(self.taken - 1)

    def at(self, number: int) -> Any:
        """Number `number`, counted round."""
        return self.tensors[number % len(self.tensors)]


def slots_of(plan: Plan, name: str, dtype: Any, itemsize: int) -> Any:
    """`[TILE, n]` of `dtype` for each slot of a buffer, as many as its bytes hold; None without."""
    buffer: Buffer = plan.buffer(name)
    if buffer == None:
        return None
    return Slots(
        tensors=[
            nl.ndarray(
                (TILE, buffer.size // itemsize),
                dtype,
                buffer=nl.sbuf,
                name=f"{name}_{slot}",
                address=(0, buffer.address + slot * buffer.size),
            )
            for slot in range(buffer.slots)
        ]
    )


class Memory(nl.NKIObject):
    """All buffers of a plan. Each is `[TILE, n]`; who uses one gives it its shape.

    Attributes:
        slab_slots: slabs that PSUM holds
        slab_banks, tables_made: how many have been taken
    """

    weights: Any
    tokens: Any
    row_scales: Any
    neutral: Any
    channel_scales: Any
    bias: Any
    gamma: Any
    out: Any
    rows: Any
    squares: Any
    partials: Any
    sums: Any
    all_sums: Any
    factors: Any
    angles: Any
    straight: Any
    crossed: Any
    head_factors: Any = None
    head_gamma: Any = None
    slab_slots: int
    slab_banks: int = 0
    tables_made: int = 0

    def slab(self) -> Any:
        """fp32 `[TILE, SLAB]` of PSUM."""
        bank = self.slab_banks % self.slab_slots * SLAB_BANKS
        self.slab_banks += 1
        return nl.ndarray((TILE, SLAB), nl.float32, buffer=nl.psum, address=(0, bank * BANK_BYTES))

    def tables(self, segments: int, head_dim: int) -> Any:
        """fp32 `[TILE, segments, 2, head_dim]` of PSUM, a bank of its own."""
        bank = TABLE_BANKS[self.tables_made % len(TABLE_BANKS)]
        self.tables_made += 1
        return nl.ndarray(
            (TILE, segments, 2, head_dim),
            nl.float32,
            buffer=nl.psum,
            address=(0, bank * BANK_BYTES),
        )


def allocate(plan: Plan, token_dtype: Any, weight_dtype: Any, bias_dtype: Any) -> Memory:
    """The buffers of `plan`. Packed tokens are words of four codes, fp32 to the DMA engines."""
    sizes = plan.sizes
    weight_bytes = 1 if sizes.packed else 2
    return Memory(
        slab_slots=plan.slab_slots(),
        weights=slots_of(plan, "weights", weight_dtype, weight_bytes),
        tokens=slots_of(plan, "tokens", token_dtype, sizes.word_bytes()),
        row_scales=slots_of(plan, "row_scales", nl.float32, 4),
        neutral=slots_of(plan, "neutral", nl.uint8, 1),
        channel_scales=slots_of(plan, "channel_scales", nl.float32, 4),
        bias=slots_of(plan, "bias", bias_dtype, max(sizes.bias_bytes, 1)),
        gamma=slots_of(plan, "gamma", nl.float32, 4),
        out=slots_of(plan, "out", nl.bfloat16, 2),
        rows=slots_of(plan, "rows", nl.bfloat16, 2),
        squares=slots_of(plan, "squares", nl.bfloat16, 2),
        partials=slots_of(plan, "partials", nl.float32, 4),
        sums=slots_of(plan, "sums", nl.float32, 4),
        all_sums=slots_of(plan, "all_sums", nl.float32, 4),
        factors=slots_of(plan, "factors", nl.float32, 4),
        angles=slots_of(plan, "angles", nl.float32, 4),
        straight=slots_of(plan, "straight", nl.float32, 4),
        crossed=slots_of(plan, "crossed", nl.float32, 4),
        head_factors=slots_of(plan, "head_factors", nl.float32, 4),
        head_gamma=slots_of(plan, "head_gamma", nl.float32, 4),
    )
