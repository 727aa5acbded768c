"""The memory of one core, as its plan has it."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nl
from wantrn.kernels.psum import Banks
from wantrn.kernels.qkv.plan import TABLE_BANKS, Plan
from wantrn.kernels.qkv.slabs import SLAB, TILE
from wantrn.kernels.sbuf import slots_of


class Memory(nl.NKIObject):
    """All buffers of a plan. Each is `[TILE, n]`; who uses one gives it its shape.

    Attributes:
        slabs, tables: places in PSUM
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
    head_means: Any = None
    head_beta: Any = None
    totals: Any = None
    row_slots: Any = None
    slabs: Banks
    tables: Banks

    def slab(self) -> Any:
        """fp32 `[TILE, SLAB]` of PSUM."""
        return self.slabs.take((TILE, SLAB), nl.float32)

    def table(self, segments: int, head_dim: int) -> Any:
        """fp32 `[TILE, segments, 2, head_dim]` of PSUM, a bank of its own."""
        return self.tables.take((TILE, segments, 2, head_dim), nl.float32)


def allocate(plan: Plan, token_dtype: Any, weight_dtype: Any, bias_dtype: Any) -> Memory:
    """The buffers of `plan`. Packed tokens are words of four codes, fp32 to the DMA engines."""
    found, sizes = plan.buffers, plan.sizes
    weight_bytes = 1 if sizes.packed else 2
    return Memory(
        slabs=Banks(first=plan.slab_banks()),
        tables=Banks(first=TABLE_BANKS),
        weights=slots_of(found, "weights", weight_dtype, weight_bytes),
        tokens=slots_of(found, "tokens", token_dtype, sizes.word_bytes()),
        row_scales=slots_of(found, "row_scales", nl.float32, 4),
        neutral=slots_of(found, "neutral", nl.uint8, 1),
        channel_scales=slots_of(found, "channel_scales", nl.float32, 4),
        bias=slots_of(found, "bias", bias_dtype, max(sizes.bias_bytes, 1)),
        gamma=slots_of(found, "gamma", nl.float32, 4),
        out=slots_of(found, "out", nl.bfloat16, 2),
        rows=slots_of(found, "rows", nl.bfloat16, 2),
        squares=slots_of(found, "squares", nl.bfloat16, 2),
        partials=slots_of(found, "partials", nl.float32, 4),
        sums=slots_of(found, "sums", nl.float32, 4),
        all_sums=slots_of(found, "all_sums", nl.float32, 4),
        factors=slots_of(found, "factors", nl.float32, 4),
        angles=slots_of(found, "angles", nl.float32, 4),
        straight=slots_of(found, "straight", nl.float32, 4),
        crossed=slots_of(found, "crossed", nl.float32, 4),
        head_factors=slots_of(found, "head_factors", nl.float32, 4),
        head_gamma=slots_of(found, "head_gamma", nl.float32, 4),
        head_means=slots_of(found, "head_means", nl.float32, 4),
        head_beta=slots_of(found, "head_beta", nl.float32, 4),
        totals=slots_of(found, "totals", nl.float32, 4),
        row_slots=slots_of(found, "row_slots", nl.int32, 4),
    )
