"""The buffers of one core, each kind taken in turn."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.attention.plan import (
    CHUNK,
    GROUP,
    K_TILE,
    OUTPUT_BANKS,
    Q_PACK,
    SCORE_BANKS,
    V_TILE,
    Plan,
)
from wantrn.kernels.nki import nl
from wantrn.kernels.psum import Banks
from wantrn.kernels.slots import Slots, slots


class Buffers(nl.NKIObject):
    """What a plan asks for, in SBUF, and PSUM by its banks.

    Attributes:
        k: `[D, section]`; v: `[V_TILE, blocks, D]`, key `V_TILE * t + p` in partition `p`
        q: `[D, Q_PACK * GROUP]`
        scores: fp32 `[GROUP, CHUNK]`
        p: `[GROUP, CHUNK]`; pt: `[V_TILE, CHUNK / V_TILE, GROUP]`
        score_psum, output_psum: a chunk of scores, and outputs of a group
    """

    k: Slots
    v: Slots
    q: Slots
    scores: Slots
    p: Slots
    pt: Slots
    score_psum: Banks
    output_psum: Banks


def allocate(plan: Plan, dtype: Any) -> Buffers:
    """The buffers of `plan`, for Q, K and V of `dtype`."""
    columns = -(-plan.section // K_TILE) * K_TILE
    transposed = (V_TILE, CHUNK // V_TILE, GROUP)
    return Buffers(
        k=slots(plan.kv_buffers, (plan.d, columns), dtype, nl.sbuf),
        v=slots(plan.kv_buffers, (V_TILE, plan.blocks(), plan.d), dtype, nl.sbuf),
        q=slots(2, (plan.d, Q_PACK * GROUP), dtype, nl.sbuf),
        scores=slots(plan.score_slots, (GROUP, CHUNK), nl.float32, nl.sbuf),
        p=slots(plan.p_slots, (GROUP, CHUNK), dtype, nl.sbuf),
        pt=slots(plan.pt_slots, transposed, dtype, nl.sbuf),
        score_psum=Banks(first=SCORE_BANKS),
        output_psum=Banks(first=OUTPUT_BANKS),
    )
