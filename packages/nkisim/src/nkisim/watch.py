"""Races between cores, and with collectives under way, as they are reported."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from nkisim.hazards import InFlight, Race
from nkisim.memory_view import MemoryView
from nkisim.shared_writes import SharedWrites
from nkisim.trace import PERMUTES, Access, Instruction, Place

if TYPE_CHECKING:
    from nkisim.core import Core

_NOTHING = nullcontext()


class Watch:
    """The race detectors of a run: one for the permutes of each core, one for the shared HBM of
    each of its ranks."""

    def __init__(self, ranks: Sequence[int], lnc: int) -> None:
        self._in_flight = {
            rank * lnc + number: InFlight() for rank in ranks for number in range(lnc)
        }
        self._shared = {rank: SharedWrites(lnc) for rank in ranks} if lnc > 1 else {}

    def look(self, core: Core, instruction: Instruction) -> None:
        """Look at an instruction that is no collective."""
        _report(core, "collective_race", self._in_flight[core.id].observe(instruction))
        if self._shared:
            races = self._shared[core.rank].observe(core.number, instruction)
            _report(core, "core_race", races)

    def storing(
        self, core: Core, instruction: Instruction, dst: MemoryView
    ) -> AbstractContextManager[None]:
        """To be around a store by DMA: what both cores store to shared HBM is compared."""
        data = dst.storage.data
        if not self._shared or dst.storage.place.core is not None or data is None:
            return _NOTHING
        parts = dst.touched() if dst.dynamic is not None else [dst.access()]
        if not parts:
            return _NOTHING
        return self._shared[core.rank].storing(core.number, instruction, parts, data)

    def collective(self, core: Core, instruction: Instruction, co_issued: bool) -> None:
        """Look at a collective before it meets.

        A collective that both cores of the rank issue touches its tensors once, for both.
        """
        flying = self._in_flight[core.id]
        if instruction.op in PERMUTES:
            # the second sources of a permute with a reduction come after the first ones
            writes = (*instruction.writes, *instruction.writes)
            pairs = list(zip(instruction.reads, writes, strict=False))
            races = flying.issue(instruction, pairs)
        else:
            races = flying.observe(instruction)
        _report(core, "collective_race", races)
        if self._shared and not co_issued:
            races = self._shared[core.rank].observe(core.number, instruction)
            _report(core, "core_race", races)

    def met(self, core: Core, instruction: Instruction) -> None:
        """Both cores have passed a collective: accesses before and after it are in order."""
        if self._shared:
            places = {access.place for access in (*instruction.reads, *instruction.writes)}
            _report(core, "core_race", self._shared[core.rank].meet(core.number, places))

    def barrier(self, core: Core, instruction: Instruction, place: Place) -> None:
        """Both cores have passed a barrier on a tensor, which also waits for a permute into it."""
        _report(core, "collective_race", self._in_flight[core.id].observe(instruction))
        if self._shared:
            _report(core, "core_race", self._shared[core.rank].meet(core.number, (place,)))

    def finish(self, cores: Sequence[Core]) -> None:
        """All cores have ended; `cores` has the first one of each rank."""
        for core in cores if self._shared else ():
            _report(core, "core_race", self._shared[core.rank].finish())


def as_touched(
    instruction: Instruction, writes: Sequence[MemoryView], reads: Sequence[MemoryView]
) -> Instruction:
    """`instruction` with the bytes that its operands with dynamic addresses mean at this moment."""
    seen = copy.copy(instruction)
    seen.writes = tuple(_touched(instruction.writes, writes))
    seen.reads = tuple(_touched(instruction.reads, reads))
    return seen


def _touched(accesses: Sequence[Access], operands: Sequence[MemoryView]) -> Iterator[Access]:
    for operand, access in zip(operands, accesses, strict=False):
        parts = operand.touched() if access.dynamic else None
        yield from (access,) if parts is None else parts
    # the indices, which follow the operands
    yield from accesses[len(operands) :]


def _report(core: Core, rule: str, races: list[Race]) -> None:
    for race in races:
        # without numerics, what an operand with a dynamic address means may not be known
        if race.certain:
            core.violation(rule, race.text)
