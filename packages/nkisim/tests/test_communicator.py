"""Cores that meet in threads: results, disagreements, deadlocks, failures and hangs."""

from __future__ import annotations

import contextvars
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkisim.communicator import Communicator
from nkisim.core_threads import run_threads
from nkisim.errors import NkiDeadlockError, NkiMismatchError, NkiPeerError, NkiValidationError
from nkisim.meeting import Description

# Hangs are what these tests look for, so none of them may hang the test run itself.
PATIENCE = 20.0


def bounded(call: Callable[[], Any]) -> Any:
    """What `call` returns or raises; fails if it takes too long."""
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["result"] = call()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "the run hangs"
    if "error" in outcome:
        raise outcome["error"]
    return outcome["result"]


def total(payloads: dict[int, int]) -> dict[int, int]:
    return dict.fromkeys(payloads, sum(payloads.values()))


@dataclass
class Counter:
    progress: int = 0


class World:
    """Ranks x cores with a few things that kernels do."""

    def __init__(self, ranks: int, lnc: int, stall_seconds: float = 8.0) -> None:
        self.communicator = Communicator(ranks * lnc, lnc, stall_seconds)
        self.cores = ranks * lnc
        self.ranks = ranks
        self.lnc = lnc
        self.counters = [Counter() for _ in range(self.cores)]
        for core, counter in enumerate(self.counters):
            self.communicator.follow(core, counter)

    def meet(
        self,
        core: int,
        key: Any,
        participants: tuple[int, ...],
        op: str = "all_reduce",
        payload: Any = None,
        action: Any = total,
        **facts: object,
    ) -> Any:
        self.counters[core].progress += 1
        return self.communicator.meet(
            core, key, participants, Description.of(op, **facts), f"kernel.py:{core + 10}",
            core if payload is None else payload, action,
        )  # fmt: skip

    def everyone(self) -> tuple[int, ...]:
        return tuple(range(self.cores))

    def barrier(self, core: int, count: int) -> Any:
        first = core - core % self.lnc
        mates = tuple(range(first, first + self.lnc))
        return self.meet(core, ("barrier", mates, count), mates, "core_barrier")

    def run(self, kernel: Callable[[int], Any]) -> list[Any]:
        functions = [lambda core=core: kernel(core) for core in range(self.cores)]
        return bounded(lambda: run_threads(functions, self.communicator))


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_everyone_gets_the_result_of_all(ranks: int, lnc: int) -> None:
    world = World(ranks, lnc)

    def kernel(core: int) -> list[int]:
        return [
            world.meet(core, ("sum", count), world.everyone(), payload=core * 10 + count)
            for count in range(20)
        ]

    expected = [sum(core * 10 + count for core in range(world.cores)) for count in range(20)]
    assert world.run(kernel) == [expected] * world.cores


def test_the_action_runs_once_with_payloads_in_order() -> None:
    world = World(4, 2)
    calls: list[list[int]] = []

    def action(payloads: dict[int, int]) -> dict[int, str]:
        calls.append(list(payloads.items()))
        return {core: f"for {core}" for core in payloads if core != 3}

    def kernel(core: int) -> Any:
        return world.meet(core, "one", world.everyone(), payload=core * core, action=action)

    results = world.run(kernel)
    assert calls == [[(core, core * core) for core in range(8)]]
    assert results == [None if core == 3 else f"for {core}" for core in range(8)]


def test_the_lowest_cores_action_is_taken() -> None:
    for _ in range(20):
        world = World(4, 1)

        def kernel(core: int, world: World = world) -> Any:
            def action(payloads: dict[int, int]) -> dict[int, int]:
                return dict.fromkeys(payloads, core)

            return world.meet(core, "one", world.everyone(), action=action)

        assert world.run(kernel) == [0] * 4


def test_a_single_core_runs_in_the_calling_thread() -> None:
    world = World(1, 1)

    def kernel(core: int) -> tuple[int, Any]:
        return threading.get_ident(), world.meet(core, "alone", (0,), payload=7)

    functions = [lambda: kernel(0)]
    assert run_threads(functions, world.communicator) == [(threading.get_ident(), 7)]


def test_subgroups_meet_by_themselves() -> None:
    world = World(8, 1)

    def kernel(core: int) -> int:
        group = tuple(range(core % 2, 8, 2))
        return sum(world.meet(core, (group, count), group) for count in range(3))

    assert world.run(kernel) == [3 * 12, 3 * 16] * 4


def test_threads_see_the_callers_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    communicator = Communicator(2, 1)

    def read() -> str:
        value = variable.get()
        variable.set("changed by a core")
        return value

    variable.set("from the caller")
    assert run_threads([read, read], communicator) == ["from the caller"] * 2
    assert variable.get() == "from the caller"


def test_different_ops_are_a_mismatch_that_lists_everyone() -> None:
    world = World(4, 2)

    def kernel(core: int) -> None:
        op = "all_gather" if core // 2 == 3 else "all_reduce"
        world.meet(core, ("group", 0), world.everyone(), op, shape=[4, 8], dtype="float32")

    with pytest.raises(NkiMismatchError, match="disagree about op") as caught:
        world.run(kernel)
    text = str(caught.value)
    for core in range(8):
        op = "all_gather" if core // 2 == 3 else "all_reduce"
        line = f"rank {core // 2} core {core % 2}: kernel.py:{core + 10}: {op}(shape=(4, 8), "
        assert line in text


def test_a_mismatch_names_what_differs() -> None:
    world = World(2, 1)

    def kernel(core: int) -> None:
        world.meet(core, 0, (0, 1), shape=(4, 8 + core), dtype="float32", op_name="add")

    with pytest.raises(NkiMismatchError, match=r"disagree about shape:") as caught:
        world.run(kernel)
    assert "shape=(4, 8)" in str(caught.value)
    assert "shape=(4, 9)" in str(caught.value)


def test_lists_and_tuples_are_the_same_fact() -> None:
    world = World(2, 1)

    def kernel(core: int) -> Any:
        shape: Any = [[1, 2], 3] if core else ((1, 2), 3)
        return world.meet(core, 0, (0, 1), shape=shape)

    assert world.run(kernel) == [1, 1]


def test_a_mismatch_is_told_although_the_rest_never_comes() -> None:
    world = World(4, 1)

    def kernel(core: int) -> None:
        if core < 2:
            world.meet(core, 0, world.everyone(), "all_reduce" if core else "all_to_all")
        elif core == 2:
            world.meet(core, "elsewhere", (2, 3))

    with pytest.raises(NkiMismatchError) as caught:
        world.run(kernel)
    text = str(caught.value)
    assert "rank 0 core 0: kernel.py:10: all_to_all()" in text
    assert "rank 1 core 0: kernel.py:11: all_reduce()" in text
    assert "rank 2 core 0: kernel.py:12: waits in all_reduce() for rank 3 core 0" in text
    assert "rank 3 core 0: finished" in text


def test_disagreement_about_the_participants() -> None:
    world = World(3, 1)

    def kernel(core: int) -> None:
        world.meet(core, 0, (0, 1) if core == 0 else (0, 1, 2))

    with pytest.raises(NkiMismatchError, match="disagree about participants"):
        world.run(kernel)


def test_deadlock_of_eight_ranks_shows_every_core() -> None:
    world = World(8, 2)

    def kernel(core: int) -> None:
        rank = core // 2
        world.barrier(core, 0)
        if rank == 5:
            # both cores leave early
            return
        if rank == 6 and core % 2 == 0:
            # one core waits for its mate, which is in the collective
            world.barrier(core, 1)
        world.meet(core, "all", world.everyone(), shape=(128, 512))

    start = time.monotonic()
    with pytest.raises(NkiDeadlockError) as caught:
        world.run(kernel)
    # exact detection, not the stall limit
    assert time.monotonic() - start < world.communicator.stall_seconds
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("deadlock")
    assert len(lines) == 17
    for core in range(16):
        start_of_line = f"  rank {core // 2} core {core % 2}: "
        line = lines[core + 1]
        assert line.startswith(start_of_line)
        if core // 2 == 5:
            assert line == f"{start_of_line}finished"
        elif core == 12:
            assert line == (
                f"{start_of_line}kernel.py:22: waits in core_barrier() for rank 6 core 1"
            )
        else:
            assert line == (
                f"{start_of_line}kernel.py:{core + 10}: waits in all_reduce(shape=(128, 512)) for "
                "rank 5 core 0, rank 5 core 1, rank 6 core 0"
            )


def test_a_deadlock_has_the_same_text_every_time() -> None:
    def once() -> str:
        world = World(3, 1)

        def kernel(core: int) -> None:
            pair = (core, (core + 1) % 3)
            world.meet(core, ("pair", pair), tuple(sorted(pair)), "sendrecv")

        with pytest.raises(NkiDeadlockError) as caught:
            world.run(kernel)
        return str(caught.value)

    assert len({once() for _ in range(20)}) == 1


def test_a_failing_core_releases_those_who_wait_for_it() -> None:
    world = World(4, 2)
    seen: dict[int, BaseException] = {}

    def kernel(core: int) -> None:
        try:
            if core == 5:
                raise NkiValidationError("dst is [4, 8]")
            if core == 4:
                world.barrier(core, 0)
            # everyone else waits for core 4, which waits for core 5
            world.meet(core, "all", world.everyone())
        except BaseException as error:
            seen[core] = error
            raise

    with pytest.raises(NkiValidationError, match=r"dst is \[4, 8\]") as caught:
        world.run(kernel)
    assert caught.value.__notes__ == ["on rank 2 core 1"]
    assert seen[5] is caught.value
    for core in (0, 1, 2, 3, 4, 6, 7):
        error = seen[core]
        assert isinstance(error, NkiPeerError)
        assert error.cores == (5,)
        assert error.__cause__ is caught.value
        assert "rank 2 core 1 failed: NkiValidationError: dst is [4, 8]" in str(error)


def test_an_error_wrapped_on_the_way_is_still_no_cause() -> None:
    world = World(3, 1)

    def kernel(core: int) -> None:
        if core == 2:
            raise KeyError("lost")
        try:
            world.meet(core, ("with", core), (core, core + 1))
        except NkiPeerError as error:
            raise RuntimeError("wrapped") from error

    with pytest.raises(KeyError, match="lost"):
        world.run(kernel)


def test_cores_that_do_not_need_the_failing_one_go_on() -> None:
    world = World(4, 1)
    done: list[int] = []

    def kernel(core: int) -> None:
        pair = (core - core % 2, core - core % 2 + 1)
        if core == 0:
            raise ValueError("early")
        for count in range(50):
            world.meet(core, (pair, count), pair)
        done.append(core)

    with pytest.raises(ValueError, match="early"):
        world.run(kernel)
    assert sorted(done) == [2, 3]


def test_of_several_errors_the_lowest_cores_is_raised_and_the_others_named() -> None:
    for _ in range(10):
        world = World(4, 1)

        def kernel(core: int, world: World = world) -> None:
            if core in (1, 2):
                raise ValueError(f"core {core} is wrong")
            world.meet(core, 0, (0, 1, 2, 3))

        with pytest.raises(ValueError, match="core 1 is wrong") as caught:
            world.run(kernel)
        assert caught.value.__notes__ == [
            "on rank 1 core 0",
            "rank 2 core 0 failed too: ValueError: core 2 is wrong",
        ]


def test_an_error_of_the_action_belongs_to_all() -> None:
    world = World(2, 2)
    seen: dict[int, BaseException] = {}

    def action(payloads: dict[int, int]) -> None:
        raise NkiValidationError("srcs[1] is float16")

    def kernel(core: int) -> None:
        try:
            world.meet(core, 0, world.everyone(), action=action)
        except BaseException as error:
            seen[core] = error
            raise

    with pytest.raises(NkiValidationError, match=r"srcs\[1\] is float16") as caught:
        world.run(kernel)
    (note,) = caught.value.__notes__
    assert note.startswith("in all_reduce() of rank 0 core 0 at kernel.py:10, rank 0 core 1 at")
    peers = [error for error in seen.values() if isinstance(error, NkiPeerError)]
    assert len(peers) == 3
    assert all(error.__cause__ is caught.value for error in peers)


def test_an_endless_loop_is_found_and_ended() -> None:
    world = World(8, 2, stall_seconds=0.5)
    ended = threading.Event()

    def kernel(core: int) -> None:
        if core == 3:
            try:
                while True:  # the line that has to be named
                    pass
            finally:
                ended.set()
        world.meet(core, 0, world.everyone())

    with pytest.raises(NkiDeadlockError, match=r"no core has issued .* for 0.5 s") as caught:
        world.run(kernel)
    lines = str(caught.value).splitlines()
    assert len(lines) == 17
    assert "test_communicator.py:" in lines[4] and lines[4].endswith(": runs")
    assert "waits in all_reduce() for rank 1 core 1" in lines[1]
    assert ended.wait(PATIENCE)


def test_progress_keeps_a_slow_run_alive() -> None:
    world = World(2, 1, stall_seconds=0.3)

    def kernel(core: int) -> int:
        if core == 0:
            for _ in range(30):
                time.sleep(0.03)
                world.counters[0].progress += 1
        return world.meet(core, 0, (0, 1))

    assert world.run(kernel) == [1, 1]


def test_a_stall_after_a_failure_reports_the_failure() -> None:
    world = World(3, 1, stall_seconds=0.3)

    def kernel(core: int) -> None:
        if core == 1:
            raise ValueError("the cause")
        while core == 2:
            pass

    with pytest.raises(ValueError, match="the cause") as caught:
        world.run(kernel)
    assert any("no core has issued" in note for note in caught.value.__notes__)


def test_an_interrupt_ends_waiting_and_running_threads() -> None:
    communicator = Communicator(2, 1)
    before = set(threading.enumerate())

    def waits() -> None:
        communicator.meet(0, 0, (0, 1), Description("all_reduce"), "k.py:1", None, total)

    def loops() -> None:
        while True:
            pass

    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_threads([waits, loops], communicator)
    assert time.monotonic() - start < 5
    timer.join()
    assert set(threading.enumerate()) <= before


def test_wrong_use_is_refused() -> None:
    with pytest.raises(ValueError, match="positive multiple of lnc, 2"):
        Communicator(3, 2)
    with pytest.raises(ValueError, match="stall_seconds is 0"):
        Communicator(2, 1, stall_seconds=0)
    with pytest.raises(ValueError, match="not one of the participants"):
        World(2, 1).meet(0, 0, (1,))
    with pytest.raises(ValueError, match="1 items for 2 cores"):
        run_threads([lambda: 0], Communicator(2, 1))


def test_two_threads_cannot_be_the_same_core() -> None:
    world = World(3, 1)

    def kernel(core: int) -> None:
        world.meet(min(core, 1), "same", (0, 1, 2))

    with pytest.raises(ValueError, match="core 1 comes twice to the meeting same"):
        world.run(kernel)


@st.composite
def programs(draw: st.DrawFn) -> tuple[int, list[tuple[int, ...]], list[list[int]]]:
    """Meetings of random groups, and for each core the order in which it comes to its own."""
    cores = draw(st.integers(2, 6))
    members = st.sets(st.integers(0, cores - 1), min_size=2).map(lambda s: tuple(sorted(s)))
    groups = draw(st.lists(members, min_size=1, max_size=8))
    orders = []
    for core in range(cores):
        mine = [index for index, group in enumerate(groups) if core in group]
        orders.append(draw(st.permutations(mine)) if draw(st.booleans()) else mine)
    return cores, groups, orders


def completes(groups: list[tuple[int, ...]], orders: list[list[int]]) -> bool:
    """Whether all meetings take place: play them until none is possible."""
    left = [list(order) for order in orders]
    moved = True
    while moved:
        moved = False
        for index, group in enumerate(groups):
            if all(left[core][:1] == [index] for core in group):
                for core in group:
                    left[core].pop(0)
                moved = True
    return not any(left)


@settings(deadline=None, max_examples=150)
@given(programs())
def test_a_run_deadlocks_exactly_when_its_meetings_cannot_all_take_place(
    program: tuple[int, list[tuple[int, ...]], list[list[int]]],
) -> None:
    cores, groups, orders = program
    world = World(cores, 1)

    def kernel(core: int) -> list[int]:
        return [world.meet(core, index, groups[index]) for index in orders[core]]

    if completes(groups, orders):
        expected = [[sum(groups[index]) for index in order] for order in orders]
        assert world.run(kernel) == expected
    else:
        with pytest.raises(NkiDeadlockError, match="deadlock"):
            world.run(kernel)
