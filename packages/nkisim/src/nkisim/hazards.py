"""Races with a permute under way, which a simulation in program order hides.

On the chip a permute goes on while its core goes on. Here it is done when it is issued, so a kernel
that forgets to wait may still compute the right thing. The detector follows who may touch which
bytes when, whatever the order in which the simulation happened to run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nkisim.extents import overlap
from nkisim.trace import Access, Instruction, Place


@dataclass(frozen=True)
class Race:
    """Two accesses to common bytes that nothing puts in order.

    Attributes:
        text: the ops, the tensors and both source lines
        first, second: source positions, `file:line`
        certain: False if an operand is indexed at run time, so that the bytes are only those that
            it may reach
    """

    text: str
    first: str
    second: str
    certain: bool

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class _Flight:
    """One channel of a permute that nothing has waited for yet."""

    instruction: Instruction
    src: Access
    dst: Access


class InFlight:
    """The permutes that one core has issued and not yet waited for.

    A permute is in flight on the bytes of its source and destination from when it is issued until
    an instruction of the same core reads any of its destination: a compute instruction, a DMA, a
    barrier on it, or a later collective that sends it on. Whatever writes bytes of either meanwhile
    races with it. Each channel of a permute is in flight by itself.
    """

    def __init__(self) -> None:
        self._flights: list[_Flight] = []
        # what an access has to be of to matter: most instructions are done after a look at these
        self._places: set[Place] = set()
        self._aliased = False

    def __len__(self) -> int:
        return len(self._flights)

    def observe(self, instruction: Instruction) -> list[Race]:
        """Take note of an instruction that is not a permute; the races that it has.

        What it reads is waited for before what it writes is looked at, so an instruction may
        overwrite what it consumes.
        """
        if not self._flights:
            return []
        self._consume(instruction.reads)
        return self._races(instruction, instruction.writes)

    def issue(
        self, instruction: Instruction, channels: Sequence[tuple[Access, Access]]
    ) -> list[Race]:
        """Take note of a permute; the races that its writes have.

        Args:
            channels: source and destination of each channel; where two sources are reduced into
                one destination, a pair for each of them
        """
        races: list[Race] = []
        if self._flights:
            self._consume([src for src, _ in channels])
            races = self._races(instruction, [dst for _, dst in channels])
        flights = [_Flight(instruction, src, dst) for src, dst in channels]
        for index, flight in enumerate(flights):
            for place, other in enumerate(flights):
                if other.dst is flight.dst:
                    continue
                if overlap(flight.dst, other.src) or (
                    place < index and overlap(flight.dst, other.dst)
                ):
                    races.append(_flight_race(other, instruction, flight.dst))
        self._keep(self._flights + flights)
        return races

    def _keep(self, flights: list[_Flight]) -> None:
        self._flights = flights
        self._places = {access.place for flight in flights for access in (flight.src, flight.dst)}
        self._aliased = any(place.address is not None for place in self._places)

    def _matters(self, access: Access) -> bool:
        if access.place in self._places:
            return True
        return self._aliased and access.place.address is not None

    def _consume(self, reads: Iterable[Access]) -> None:
        for read in reads:
            if self._matters(read):
                left = [flight for flight in self._flights if not overlap(read, flight.dst)]
                if len(left) < len(self._flights):
                    self._keep(left)

    def _races(self, instruction: Instruction, writes: Iterable[Access]) -> list[Race]:
        return [
            _flight_race(flight, instruction, write)
            for write in writes
            if self._matters(write)
            for flight in self._flights
            if overlap(write, flight.src) or overlap(write, flight.dst)
        ]


def _flight_race(flight: _Flight, instruction: Instruction, write: Access) -> Race:
    on_source = overlap(write, flight.src)
    touched, role = (flight.src, "source") if on_source else (flight.dst, "destination")
    first, second = flight.instruction, instruction
    text = (
        f"{second.op} at {second.location} writes {write.place.name!r} while {first.op} at "
        f"{first.location} is in flight on those bytes as its {role}, {touched.place.name!r}; "
        f"nothing has read its destination, {flight.dst.place.name!r}, since"
    )
    return Race(text, first.location, second.location, not (write.dynamic or touched.dynamic))
