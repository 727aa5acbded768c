"""A run of one rank, whose other ranks run elsewhere: what they say to each other.

Such a run has the cores of one rank. Within it they meet as always; where a collective takes in
other ranks, one of its cores sends what the rank brings to each of them, and waits for theirs. So
every rank has all operands, computes what the `World` of all ranks computes, and gets equal bits.

A rank ends by saying to all others that it has finished, or has failed and why. None waits for one
that has failed, and all end in the same way.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy.typing as npt

from nkisim.errors import NkiDeadlockError, NkiMismatchError, NkiPeerError, NkiValidationError
from nkisim.meeting import Arrival, Description, Meeting
from nkisim.peer_message import Kind, Message

Array = npt.NDArray[Any]

# a rank may simulate for minutes between two collectives; one that has died is seen at once
PATIENCE = 600.0
# that of a rank which has failed, before it raises its own error
FAILED_PATIENCE = 10.0


class Carrier(Protocol):
    """Brings messages to other ranks and back; a rank gets those of another in order.

    Several threads send; one at a time receives from a rank.

    Attributes:
        rank: this one
        ranks: how many the run has
        members: those that can be reached, and this one
    """

    @property
    def rank(self) -> int: ...

    @property
    def ranks(self) -> int: ...

    @property
    def members(self) -> Sequence[int]: ...

    def send(self, rank: int, message: bytes) -> Callable[[], None]:
        """Send, without waiting for the other; what it returns waits until it has it all."""
        ...

    def receive(self, rank: int, seconds: float) -> bytes:
        """Wait for the next message of `rank`, for so long at most.

        Raises:
            ConnectionError: none came, or none will.
        """
        ...


class Peers:
    """The other ranks of one run.

    Args:
        carrier: what reaches them.
        patience: seconds to wait for a message of a rank.
    """

    def __init__(self, carrier: Carrier, patience: float = PATIENCE) -> None:
        if carrier.rank not in carrier.members:
            raise ValueError(f"members are {carrier.members}; they must hold rank {carrier.rank}")
        self.rank = carrier.rank
        self.ranks = carrier.ranks
        self._carrier = carrier
        self._inboxes = {
            rank: _Inbox(rank, carrier, patience)
            for rank in carrier.members
            if rank != carrier.rank
        }
        self._lock = threading.Lock()
        self._has_ended = False
        # what was sent and may not have arrived, by stream; and what the other ranks failed of
        self._under_way: dict[str, list[Callable[[], None]]] = {}
        self._told: str | None = None

    def exchange(
        self,
        stream: str,
        group: tuple[int, ...],
        what: tuple[Description, str],
        arrays: Sequence[Array],
    ) -> dict[int, list[Array]]:
        """What each other rank of `group` brings to a collective, as arrays like `arrays`.

        Args:
            stream: collectives of one stream are in the same order on all ranks
            group: ranks that take part
            what: the collective and the source line of the call
            arrays: of this rank

        Raises:
            NkiMismatchError: a rank is at another collective.
            NkiPeerError: a rank has failed, or nothing is heard of it.
            NkiDeadlockError: a rank has finished.
            NkiValidationError: a rank cannot be reached.
        """
        description, position = what
        others = [rank for rank in group if rank != self.rank]
        for rank in others:
            if rank not in self._inboxes:
                raise NkiValidationError(
                    f"{description.op}: rank {rank} takes part, which rank {self.rank} cannot "
                    f"reach; it reaches {sorted(self._inboxes)}"
                )
        mine = Message.meeting(stream, description, position, arrays)
        sent = self._sent(mine, others)
        found = {rank: self._inboxes[rank].take(stream) for rank in others}
        for rank, theirs in found.items():
            self._check_came(what, rank, theirs)
        _check_agreed(group, {self.rank: mine, **found})
        # they are past the collective before, and have what was sent for it
        for arrived in self._under_way.get(stream, ()):
            arrived()
        self._under_way[stream] = sent
        return {rank: theirs.arrays(arrays) for rank, theirs in found.items()}

    def _check_came(self, what: tuple[Description, str], rank: int, message: Message) -> None:
        where = f"{what[0]} at {what[1]}"
        if message.kind is Kind.finished:
            raise NkiDeadlockError(f"{where} waits for rank {rank}, which has finished")
        if message.kind is Kind.failed:
            raise self._failed(f"{where} cannot complete: ", rank, message)

    def _failed(self, before: str, rank: int, message: Message) -> NkiPeerError:
        self._told = self._told or message.text
        return NkiPeerError(f"{before}{message.text}", (rank,))

    def fail(self, error: BaseException) -> None:
        """Tell the others, once, that this rank has failed; the first error counts. It does not
        wait long for them any more."""
        for inbox in self._inboxes.values():
            inbox.patience = min(inbox.patience, FAILED_PATIENCE)
        name, _, _ = str(error).partition("\n")
        own = f"rank {self.rank} failed: {type(error).__name__}: {name}"
        self._end(Message.failed(self._told or own))

    def finish(self) -> None:
        """Tell the others that this rank has finished, and wait for them.

        Raises:
            NkiPeerError: another has failed.
        """
        self._end(Message.finished())
        ends = self.wait()
        for rank, message in ends.items():
            if message.kind is Kind.failed:
                raise self._failed("", rank, message)

    def wait(self) -> dict[int, Message]:
        """How each of the others ends. After it no message is under way."""
        ends = {rank: inbox.end() for rank, inbox in self._inboxes.items()}
        if not any(message.lost for message in ends.values()):
            for sent in self._under_way.values():
                for arrived in sent:
                    arrived()
        return ends

    def _end(self, message: Message) -> None:
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
        self._under_way[""] = self._sent(message, self._inboxes)

    def _sent(self, message: Message, ranks: Iterable[int]) -> list[Callable[[], None]]:
        encoded = message.encoded()
        sent = []
        for rank in ranks:
            # one that has gone is missed where something of it is waited for
            with contextlib.suppress(ConnectionError):
                sent.append(self._carrier.send(rank, encoded))
        return sent


class _Inbox:
    """What has come of one rank. Threads that wait for it receive in turn, also for each other."""

    def __init__(self, rank: int, carrier: Carrier, patience: float) -> None:
        self.patience = patience
        self._rank = rank
        self._carrier = carrier
        self._changed = threading.Condition()
        self._came: dict[str, deque[Message]] = {}
        self._end: Message | None = None
        self._receiving = False

    def take(self, stream: str) -> Message:
        """The next message of `stream`, or how the rank has ended."""
        while True:
            with self._changed:
                while True:
                    came = self._came.get(stream)
                    if came:
                        return came.popleft()
                    if self._end is not None:
                        return self._end
                    if not self._receiving:
                        break
                    self._changed.wait()
                self._receiving = True
            self._receive()

    def end(self) -> Message:
        """How the rank has ended; all else that it sends is dropped."""
        while self._end is None:
            self._came.clear()
            self.take("")
        return self._end

    def _receive(self) -> None:
        message = None
        try:
            message = Message.decoded(self._carrier.receive(self._rank, self.patience))
        except ConnectionError as error:
            message = Message.gone(f"rank {self._rank} is lost: {error}")
        finally:
            with self._changed:
                self._receiving = False
                if message is not None and message.kind is Kind.meeting:
                    self._came.setdefault(message.stream, deque()).append(message)
                else:
                    self._end = self._end or message
                self._changed.notify_all()


def _check_agreed(group: tuple[int, ...], messages: dict[int, Message]) -> None:
    """Raise NkiMismatchError unless all mean the same."""
    meeting = Meeting("")
    for rank in sorted(messages):
        message = messages[rank]
        arrival = Arrival(group, message.description(), message.position, None, lambda _: None)
        meeting.add(rank, arrival)
    if meeting.agreed:
        return
    lines = [
        f"  rank {rank}: {arrival.position}: {arrival.description}"
        for rank, arrival in sorted(meeting.arrivals.items())
    ]
    raise NkiMismatchError(
        f"the ranks of one collective disagree about {', '.join(meeting.differences())}:\n"
        + "\n".join(lines)
    )
