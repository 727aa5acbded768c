"""How the cores of a run meet: collectives, barriers and exchanges between threads.

A run is one thread per core, `ranks * lnc` of them; core `rank * lnc + core` of the run is that
core of that rank. Each runs by itself until it meets others. What comes out, errors included, does
not depend on how the threads are scheduled: a meeting is judged when all have come, or when it is
certain that some never will.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from nkisim.errors import NkiDeadlockError, NkiError, NkiMismatchError, NkiPeerError
from nkisim.meeting import Action, Arrival, Description, Meeting


class Stopped(BaseException):
    """Ends the thread of a core once the run is over; like an interrupt, nothing to handle."""


class Counts(Protocol):
    """Something that counts the instructions of a core as it issues them."""

    progress: int


@dataclass(frozen=True)
class _Outcome:
    result: Any = None
    error: BaseException | None = None


class _Core:
    """Where a core stands: it runs, waits in a meeting, has finished or has failed."""

    __slots__ = ("failure", "finished", "meeting", "outcome", "thread", "woken")

    def __init__(self, lock: threading.Lock) -> None:
        self.woken = threading.Condition(lock)
        self.meeting: Meeting | None = None
        self.outcome: _Outcome | None = None
        self.finished = False
        self.failure: _Failure | None = None
        self.thread: int | None = None


@dataclass(frozen=True)
class _Failure:
    """Why a core failed.

    Attributes:
        error: what it raised
        origin: the error that it goes back to: its own, or that of a core it waited for
        cores: where `origin` was raised: one core, or several that failed together
    """

    error: BaseException
    origin: BaseException
    cores: tuple[int, ...]


class Communicator:
    """Lets the cores of one run meet, and knows when they never will. Serves one run.

    Arguments:
        cores: how many cores the run has, over all of its ranks
        lnc: how many of them make a rank
        stall_seconds: how long a run in threads may go without any instruction on any core, as
            long as every core is followed
        first: the number of the first one; others ranks' cores may be in other runs

    Attributes:
        numbers: of the cores

    Raises:
        ValueError: `cores` is no positive multiple of `lnc`, or `stall_seconds` is not positive.
    """

    def __init__(self, cores: int, lnc: int, stall_seconds: float = 6.0, first: int = 0) -> None:
        if lnc < 1 or cores < 1 or cores % lnc:
            raise ValueError(f"cores is {cores}; it must be a positive multiple of lnc, {lnc}")
        if not stall_seconds > 0:
            raise ValueError(f"stall_seconds is {stall_seconds}; it must be positive")
        self.cores = cores
        self.lnc = lnc
        self.numbers = range(first, first + cores)
        self.stall_seconds = stall_seconds
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._meetings: dict[Hashable, Meeting] = {}
        self._cores = {core: _Core(self._lock) for core in self.numbers}
        # cores that are neither waiting nor finished nor failed
        self._running = cores
        self._live = cores
        self._stopped = False
        self._followed: dict[int, Counts] = {}
        # cores that wait for other runs
        self._abroad = 0
        # errors that belong to all cores of a meeting, whichever of them raised it
        self._joint: dict[int, tuple[BaseException, tuple[int, ...]]] = {}

    def meet(
        self,
        core: int,
        key: Hashable,
        participants: tuple[int, ...],
        description: Description,
        position: str,
        payload: Any,
        action: Action,
    ) -> Any:
        """Wait for all `participants`, then give each what `action` makes of all payloads.

        `action` runs once, in the thread of one of them, while the others wait. It gets the
        payloads in ascending order of cores and has to do with nothing else, because which thread
        runs it is chance; of the actions that the participants bring, the lowest core's is taken.

        Args:
            core: who calls
            key: the same on every participant, and different for each meeting: the group, the
                channel, and a number that every participant counts for these
            participants: all who take part, the caller included
            description: what has to agree between them
            position: the source line of the call, `file:line`
            payload: what the caller brings

        Returns:
            The caller's result, or None where `action` has none for it.

        Raises:
            NkiMismatchError: the participants disagree about what this meeting is.
            NkiDeadlockError: a participant never comes, because it waits elsewhere or has finished.
            NkiPeerError: a participant has failed, or `action` failed in another's thread.
        """
        if core not in participants:
            raise ValueError(f"core {core} is not one of the participants {participants}")
        if len(participants) == 1:
            results = action({core: payload})
            return None if results is None else results.get(core)
        arrival = Arrival(participants, description, position, payload, action)
        with self._lock:
            meeting = self._arrive(core, key, arrival)
            if meeting.missing or not meeting.agreed:
                return self._wait(core, meeting)
            del self._meetings[key]
        return self._act(core, meeting)

    # What follows up to `finish` is called with the lock held, except `_act`.

    def _arrive(self, core: int, key: Hashable, arrival: Arrival) -> Meeting:
        if self._stopped:
            raise Stopped
        meeting = self._meetings.get(key)
        if meeting is None:
            meeting = self._meetings[key] = Meeting(key)
        meeting.add(core, arrival)
        return meeting

    def _wait(self, core: int, meeting: Meeting) -> Any:
        state = self._cores[core]
        state.meeting = meeting
        self._running -= 1
        self._judge(meeting)
        self._settle()
        while state.outcome is None:
            state.woken.wait()
        outcome, state.outcome = state.outcome, None
        if outcome.error is not None:
            raise outcome.error
        return outcome.result

    def _act(self, core: int, meeting: Meeting) -> Any:
        """Run the action of a complete meeting and release the others."""
        cores = meeting.cores
        first = meeting.arrivals[cores[0]]
        try:
            payloads = {other: meeting.arrivals[other].payload for other in cores}
            results = first.action(payloads) or {}
        except BaseException as error:
            with self._lock:
                self._joint[id(error)] = (error, cores)
                for other in cores:
                    if other != core:
                        self._release(other, self._peer_error(meeting, other, error, cores))
            if isinstance(error, Exception):
                error.add_note(f"in {first.description} of {self._arrivals(meeting)}")
            raise
        with self._lock:
            for other in cores:
                if other != core:
                    self._release(other, _Outcome(results.get(other)))
        return results.get(core)

    def _judge(self, meeting: Meeting) -> None:
        """Release those in `meeting` if a core that they wait for has failed, or all disagree."""
        if not meeting.missing:
            self._refuse(meeting)
            return
        for core in meeting.missing:
            failure = self._cores[core].failure
            if failure is not None:
                del self._meetings[meeting.key]
                for waiting in meeting.cores:
                    outcome = self._peer_error(meeting, waiting, failure.origin, failure.cores)
                    self._release(waiting, outcome)
                return

    def _settle(self) -> None:
        """Release those who wait for ever; to be called whenever a core stops running."""
        if self._running > 0 or not self._meetings:
            return
        disputed = [meeting for meeting in self._meetings.values() if not meeting.agreed]
        disputed = disputed or self._same_calls()
        for meeting in disputed:
            self._refuse(meeting)
        if not disputed:
            text = f"deadlock: every core waits for another or has ended\n{self._table()}"
            cores = tuple(sorted(core for m in self._meetings.values() for core in m.cores))
            self._meetings.clear()
            self._release_all(cores, NkiDeadlockError, text)

    def _same_calls(self) -> list[Meeting]:
        """Join the meetings that are one call of the program, in which cores name different others.

        That is, the same op at the same line, and a core of each is expected in the other.
        """
        calls: dict[tuple[str, str], list[Meeting]] = {}
        for meeting in self._meetings.values():
            arrival = meeting.arrivals[meeting.cores[0]]
            calls.setdefault((arrival.description.op, arrival.position), []).append(meeting)
        joined = []
        for first, *others in calls.values():
            meant = [other for other in others if first.expected & other.expected]
            for other in meant:
                for core in other.cores:
                    first.add(core, other.arrivals[core])
                    self._cores[core].meeting = first
                del self._meetings[other.key]
            if meant:
                joined.append(first)
        return joined

    def _refuse(self, meeting: Meeting) -> None:
        """Release those in `meeting` because they disagree."""
        lines = []
        for core in sorted(meeting.expected):
            arrival = meeting.arrivals.get(core)
            if arrival is None:
                lines.append(f"  {self._stand(core)}")
            else:
                lines.append(f"  {self.name(core)}: {arrival.position}: {arrival.description}")
        text = (
            f"the cores of one collective, barrier or exchange disagree about "
            f"{', '.join(meeting.differences())}:\n" + "\n".join(lines)
        )
        del self._meetings[meeting.key]
        self._release_all(meeting.cores, NkiMismatchError, text)

    def _release_all(self, cores: tuple[int, ...], kind: type[NkiError], text: str) -> None:
        for core in cores:
            # each thread gets an error of its own, for its own traceback
            error = kind(text)
            self._joint[id(error)] = (error, cores)
            self._release(core, _Outcome(error=error))

    def _release(self, core: int, outcome: _Outcome) -> None:
        state = self._cores[core]
        if state.meeting is None:
            return  # `stop` was faster
        state.meeting = None
        state.outcome = outcome
        self._running += 1
        state.woken.notify()

    def _peer_error(
        self, meeting: Meeting, core: int, origin: BaseException, cores: tuple[int, ...]
    ) -> _Outcome:
        arrival = meeting.arrivals[core]
        error = NkiPeerError(
            f"{arrival.description} at {arrival.position} cannot complete: "
            f"{self.names(cores)} failed: {_brief(origin)}",
            cores,
        )
        error.__cause__ = origin
        return _Outcome(error=error)

    def finish(self, core: int) -> None:
        """Say that `core` has come to its end."""
        with self._lock:
            self._cores[core].finished = True
            self._end()

    def fail(self, core: int, error: BaseException) -> None:
        """Say that `core` has ended with `error`; those who wait for it are released."""
        with self._lock:
            self._cores[core].failure = self._failure(core, error)
            for meeting in list(self._meetings.values()):
                if core in meeting.expected:
                    self._judge(meeting)
            self._end()

    def _failure(self, core: int, error: BaseException) -> _Failure:
        for link in _chain(error):
            if isinstance(link, NkiPeerError) and link.__cause__ is not None:
                return _Failure(error, link.__cause__, link.cores)
            if id(link) in self._joint:
                return _Failure(error, error, self._joint[id(link)][1])
        return _Failure(error, error, (core,))

    def _end(self) -> None:
        self._running -= 1
        self._live -= 1
        self._settle()
        if not self._live:
            self._ended.notify_all()

    def follow(self, core: int, counts: Counts) -> None:
        """Take `counts.progress` for the number of instructions that `core` has issued."""
        self._followed[core] = counts

    def unfollow(self) -> None:
        """After the run: let go of what was followed."""
        self._followed.clear()

    def progress(self) -> list[int] | None:
        """How many instructions each core has issued; None if not all of them are followed, or one
        waits for another run."""
        if len(self._followed) < self.cores or self._abroad:
            return None
        return [self._followed[core].progress for core in self.numbers]

    @contextlib.contextmanager
    def abroad(self) -> Iterator[None]:
        """To be around a wait for another run, which may take as long as that one likes."""
        with self._lock:
            self._abroad += 1
        try:
            yield
        finally:
            with self._lock:
                self._abroad -= 1

    def runs(self, core: int) -> bool:
        """Whether `core` goes on by itself: it neither waits nor has ended."""
        with self._lock:
            state = self._cores[core]
            return not (self._stopped or state.meeting or state.finished or state.failure)

    def started(self, core: int) -> None:
        """Say that the calling thread runs `core`."""
        self._cores[core].thread = threading.get_ident()

    def wait(self, seconds: float | None) -> bool:
        """Wait until every core has finished or failed, or for `seconds`; whether they have."""
        with self._lock:
            return self._ended.wait_for(lambda: not self._live, seconds)

    def stop(self) -> None:
        """End every core that waits, and every other when it comes to a meeting."""
        with self._lock:
            self._stopped = True
            self._meetings.clear()
            for core in self.numbers:
                self._release(core, _Outcome(error=Stopped()))

    def failure(self) -> BaseException | None:
        """The error that the run ends with: the first cause, of the lowest core that raised one.

        It carries a note that says which core raised it, and which others raised something else.
        """
        failures = [state.failure for state in self._cores.values() if state.failure is not None]
        own = [found for found in failures if found.error is found.origin]
        if not own:
            return None
        first = min(own, key=lambda found: found.cores)
        if len(first.cores) == 1:
            first.error.add_note(f"on {self.names(first.cores)}")
        told = {_brief(first.error)}
        for found in own:
            if _brief(found.error) not in told:
                told.add(_brief(found.error))
                first.error.add_note(f"{self.names(found.cores)} failed too: {_brief(found.error)}")
        return first.error

    def name(self, core: int) -> str:
        return f"rank {core // self.lnc} core {core % self.lnc}"

    def names(self, cores: Iterable[int]) -> str:
        return ", ".join(self.name(core) for core in cores)

    def table(self) -> str:
        """A line for every core: where it stands and what it waits for."""
        with self._lock:
            return self._table()

    def _table(self) -> str:
        return "\n".join(f"  {self._stand(core)}" for core in self.numbers)

    def _stand(self, core: int) -> str:
        state = self._cores[core]
        name = self.name(core)
        if state.failure is not None:
            return f"{name}: failed: {_brief(state.failure.error)}"
        if state.finished:
            return f"{name}: finished"
        if state.meeting is None:
            return f"{name}: {_running_at(state.thread)}: runs"
        arrival = state.meeting.arrivals[core]
        return (
            f"{name}: {arrival.position}: waits in {arrival.description} for "
            f"{self.names(state.meeting.missing) or 'what another core does there'}"
        )

    def _arrivals(self, meeting: Meeting) -> str:
        return ", ".join(
            f"{self.name(core)} at {meeting.arrivals[core].position}" for core in meeting.cores
        )


def _brief(error: BaseException) -> str:
    """The error in one line."""
    text = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    """`error` and the errors that it was raised from or during, newest first."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def _running_at(thread: int | None) -> str:
    """The innermost source line of `thread` that is not in nkisim or in a library below it."""
    frame = sys._current_frames().get(thread) if thread is not None else None
    while frame is not None:
        module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if module not in ("nkisim", "numpy", "ml_dtypes", "threading"):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "unknown"
