"""The buffers of one core, each kind taken in turn."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.attention.plan import (
    BANK_BYTES,
    CHUNK,
    GROUP,
    K_TILE,
    OUTPUT_BANKS,
    Q_PACK,
    V_TILE,
    Plan,
)
from wantrn.kernels.nki import nl


class Slots(nl.NKIObject):
    """Tensors that are taken one after the other, again and again.

    How many there are is the plan's business: as many as are in use at once, and a few for
    instructions that overlap.
    """

    tensors: list[Any]
    taken: int = 0

    def take(self) -> Any:
        """The next one; what it held is gone."""
        found = self.tensors[self.taken % len(self.tensors)]
        self.taken += 1
        return found


class Buffers(nl.NKIObject):
    """What a plan asks for, in SBUF, and PSUM by its banks.

    Attributes:
        k: `[D, section]`; v: `[V_TILE, blocks, D]`, key `V_TILE * t + p` in partition `p`
        q: `[D, Q_PACK * GROUP]`
        scores: fp32 `[GROUP, CHUNK]`
        p: `[GROUP, CHUNK]`; pt: `[V_TILE, CHUNK / V_TILE, GROUP]`
    """

    k: Slots
    v: Slots
    q: Slots
    scores: Slots
    p: Slots
    pt: Slots
    score_banks: int = 0
    output_banks: int = 0

    def score_psum(self) -> Any:
        """fp32 `[GROUP, CHUNK]` in two of the four banks for scores."""
        first = 2 * (self.score_banks % 2)
        self.score_banks += 1
        return nl.ndarray(
            (GROUP, CHUNK), nl.float32, buffer=nl.psum, address=(0, first * BANK_BYTES)
        )

    def output_psum(self, shape: tuple[int, int], dtype: Any) -> Any:
        """A tile in one of the four banks for outputs."""
        bank = OUTPUT_BANKS[self.output_banks % len(OUTPUT_BANKS)]
        self.output_banks += 1
        return nl.ndarray(shape, dtype, buffer=nl.psum, address=(0, bank * BANK_BYTES))


def allocate(plan: Plan, dtype: Any) -> Buffers:
    """The buffers of `plan`, for Q, K and V of `dtype`."""

    def slots(count: int, shape: tuple[int, ...], kind: Any) -> Slots:
        return Slots(tensors=[nl.ndarray(shape, kind, buffer=nl.sbuf) for _ in range(count)])

    columns = -(-plan.section // K_TILE) * K_TILE
    return Buffers(
        k=slots(plan.kv_buffers, (plan.d, columns), dtype),
        v=slots(plan.kv_buffers, (V_TILE, plan.blocks(), plan.d), dtype),
        q=slots(2, (plan.d, Q_PACK * GROUP), dtype),
        scores=slots(plan.score_slots, (GROUP, CHUNK), nl.float32),
        p=slots(plan.p_slots, (GROUP, CHUNK), dtype),
        pt=slots(plan.pt_slots, (V_TILE, CHUNK // V_TILE, GROUP), dtype),
    )
