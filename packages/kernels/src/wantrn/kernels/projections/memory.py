"""The memory of one core, as its plan has it."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nl
from wantrn.kernels.projections.plan import GROUP_BANKS
from wantrn.kernels.projections.tiles import GROUP, TILE
from wantrn.kernels.psum import Banks
from wantrn.kernels.sbuf import Buffer, slots_of
from wantrn.kernels.slots import Slots


class Memory(nl.NKIObject):
    """All buffers of a plan, each `[TILE, n]`; None where the plan has none.

    Attributes:
        tokens: the first operand's tokens, as they come from HBM or as they are multiplied
        weights: blocks
        codes, code_scales: what has been quantized to MX, and its block scales
        staged: bf16 that is about to be
        row_scales: of the tokens of a pass, the same in every partition
        inner: between the two projections, bf16
        up_scales, up_bias: of a channel in its partition
        channel_scales, bias: along the columns of the result
        work: fp32 columns on their way to GpSimd
        out: rows of the result
        neutral: block scales that stand for 1
        groups: of PSUM
    """

    tokens: Slots
    weights: Slots
    codes: Any
    code_scales: Any
    staged: Any
    row_scales: Any
    inner: Any
    up_scales: Any
    up_bias: Any
    channel_scales: Any
    bias: Any
    work: Any
    out: Slots
    neutral: Any
    groups: Banks

    def group(self) -> Any:
        """fp32 `[TILE, GROUP]` of PSUM."""
        return self.groups.take((TILE, GROUP), nl.float32)

    def neutral_scales(self) -> Any:
        """Block scales that stand for 1, uint8 `[TILE, BANK]`; None for bf16."""
        return None if self.neutral == None else self.neutral.at(0)


class Dtypes(nl.NKIObject):
    """What the tensors of a call are; `up_bias` and `bias` may be None."""

    tokens: Any
    weights: Any
    up_bias: Any
    bias: Any


def allocate(found: tuple[Buffer, ...], dtypes: Dtypes) -> Memory:
    """The buffers of a plan."""
    token_bytes = 4 if dtypes.tokens == nl.float32 else 2
    weight_bytes = 2 if dtypes.weights == nl.bfloat16 else 1
    return Memory(
        tokens=slots_of(found, "tokens", dtypes.tokens, token_bytes),
        weights=slots_of(found, "weights", dtypes.weights, weight_bytes),
        codes=slots_of(found, "codes", nl.float8_e4m3fn_x4, 4),
        code_scales=slots_of(found, "code_scales", nl.uint8, 1),
        staged=slots_of(found, "staged", nl.bfloat16, 2),
        row_scales=slots_of(found, "row_scales", nl.float32, 4),
        inner=slots_of(found, "inner", nl.bfloat16, 2),
        up_scales=slots_of(found, "up_scales", nl.float32, 4),
        up_bias=_vector(found, "up_bias", dtypes.up_bias),
        channel_scales=slots_of(found, "channel_scales", nl.float32, 4),
        bias=_vector(found, "bias", dtypes.bias),
        work=slots_of(found, "work", nl.float32, 4),
        out=slots_of(found, "out", nl.bfloat16, 2),
        neutral=slots_of(found, "neutral", nl.uint8, 1),
        groups=Banks(first=GROUP_BANKS),
    )


def _vector(found: tuple[Buffer, ...], name: str, dtype: Any) -> Any:
    if dtype == None:
        return None
    return slots_of(found, name, dtype, 4 if dtype == nl.float32 else 2)
