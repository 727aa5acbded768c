"""One meeting of cores: who takes part, who has come, and whether they agree what it is."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

# from the payload of every core that takes part to the result of each; None: no results
Action = Callable[[dict[int, Any]], dict[int, Any] | None]


@dataclass(frozen=True)
class Description:
    """What a core believes it takes part in; the same on all that take part, or they disagree.

    Attributes:
        op: the name of the collective, the barrier or the exchange
        facts: names and comparable values of what has to agree: dtype, shape, group, reduce op
    """

    op: str
    facts: tuple[tuple[str, object], ...] = ()

    @classmethod
    def of(cls, op: str, **facts: object) -> Description:
        """A description whose lists are made tuples, so that `[2, 4]` and `(2, 4)` agree."""
        return cls(op, tuple((name, _frozen(value)) for name, value in facts.items()))

    def __str__(self) -> str:
        return f"{self.op}({', '.join(f'{name}={value}' for name, value in self.facts)})"


def _frozen(value: object) -> object:
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    return value


@dataclass(frozen=True)
class Arrival:
    """What one core brings to a meeting; see `Communicator.meet`."""

    participants: tuple[int, ...]
    description: Description
    position: str
    payload: Any
    action: Action


class Meeting:
    """Who has come to one meeting, and with what.

    Attributes:
        arrivals: by core
        expected: all who take part; where cores disagree about that, all whom any of them names
        agreed: all who have come mean the same
    """

    __slots__ = ("agreed", "arrivals", "expected", "key")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.arrivals: dict[int, Arrival] = {}
        self.expected: set[int] = set()
        self.agreed = True

    def add(self, core: int, arrival: Arrival) -> None:
        """Take note that `core` has come.

        Raises:
            ValueError: it was there already; the caller's key is not unique.
        """
        if core in self.arrivals:
            raise ValueError(f"core {core} comes twice to the meeting {self.key}")
        for other in self.arrivals.values():
            if (other.participants, other.description) != (
                arrival.participants,
                arrival.description,
            ):
                self.agreed = False
            break
        self.arrivals[core] = arrival
        self.expected.update(arrival.participants)

    @property
    def cores(self) -> tuple[int, ...]:
        return tuple(sorted(self.arrivals))

    @property
    def missing(self) -> list[int]:
        return sorted(self.expected - self.arrivals.keys())

    def differences(self) -> list[str]:
        """The names of what the arrivals disagree about."""
        arrivals = [self.arrivals[core] for core in self.cores]
        if len({arrival.description.op for arrival in arrivals}) > 1:
            return ["op"]
        facts = [dict(arrival.description.facts) for arrival in arrivals]
        names = list(dict.fromkeys(name for fact in facts for name in fact))
        found = [
            name
            for name in names
            if any(name not in fact or fact[name] != facts[0].get(name) for fact in facts)
        ]
        if any(arrival.participants != arrivals[0].participants for arrival in arrivals):
            found.append("participants")
        return found
