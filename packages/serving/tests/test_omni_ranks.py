"""The processes of ranks: all that can become of a call to them."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext
from types import SimpleNamespace

import pytest
from omni_fake_ranks import answer_plainly, fail_to_start

from wantrn.serving.engines.omni.rank_process import Call
from wantrn.serving.engines.omni.rank_processes import (
    RankProcesses,
    RanksFailedError,
    RanksLostError,
)
from wantrn.serving.engines.protocol import Decoding, WorkEvent

LONG = 60.0  # far beyond what a busy machine takes, and far below what fake ranks wait


@pytest.fixture(scope="module")
def context() -> ForkServerContext:
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["omni_fake_ranks"])
    return made


@pytest.fixture
def start(context: ForkServerContext) -> Iterator[Callable[..., RankProcesses]]:
    started = []

    def start(
        run: Callable[..., None] = answer_plainly, agree_seconds: float = 0.5
    ) -> RankProcesses:
        config = SimpleNamespace(num_gpus=2, master_port=0)
        ranks = RankProcesses(config, context, run, agree_seconds)
        started.append(ranks)
        return ranks

    yield start
    for ranks in started:
        ranks.kill("the test is over")
        assert not any(process.is_alive() for process in ranks.processes)


def nothing(event: WorkEvent) -> None:
    """Hear an event."""


def test_the_first_rank_answers_for_all_and_tells_before(
    start: Callable[..., RankProcesses],
) -> None:
    ranks, heard = start(), list[WorkEvent]()
    ranks.wait_until_up()
    for _ in range(3):
        assert ranks.call(Call("work"), heard.append) == "rank 0"
    assert heard == 3 * [Decoding("told")]


def test_a_failure_that_all_ranks_share_is_no_loss(start: Callable[..., RankProcesses]) -> None:
    ranks = start()
    ranks.wait_until_up()
    with pytest.raises(RanksFailedError, match="^ValueError: a shape$"):
        ranks.call(Call("all fail"), nothing)
    assert ranks.call(Call("one request fails"), nothing) == "rank 0"
    assert ranks.call(Call("work"), nothing) == "rank 0"


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("one fails", "the ranks came to different ends: ValueError: a shape"),
        ("one is ahead", "the ranks came to different ends: nothing failed"),
        ("one is missed", "rank 1 failed, and others did not: ValueError: a shape"),
        ("one request is missed", "rank 1 failed, and others did not: the request a"),
        ("one is killed", "rank 1 of 2 ended by SIGKILL"),
        ("one ends", "rank 1 of 2 ended with status 3"),
    ],
)
def test_a_rank_that_is_not_as_the_others_takes_them_with_it(
    method: str, reason: str, start: Callable[..., RankProcesses]
) -> None:
    ranks = start()
    ranks.wait_until_up()
    begun = time.monotonic()
    with pytest.raises(RanksLostError, match=f"^{reason}$"):
        ranks.call(Call(method), nothing)
    assert ranks.watch() == reason
    assert time.monotonic() - begun < LONG
    assert not any(process.is_alive() for process in ranks.processes)
    with pytest.raises(RanksLostError, match=f"^{reason}$"):
        ranks.call(Call("work"), nothing)


def test_a_rank_that_cannot_start_says_why(start: Callable[..., RankProcesses]) -> None:
    ranks = start(fail_to_start)
    with pytest.raises(RanksLostError, match="^rank 1: ValueError: no such weights$"):
        ranks.wait_until_up()
    assert ranks.watch() == "rank 1: ValueError: no such weights"


def test_ranks_that_do_nothing_end_by_themselves(start: Callable[..., RankProcesses]) -> None:
    ranks = start()
    ranks.wait_until_up()
    ranks.end()
    assert [process.exitcode for process in ranks.processes] == [0, 0]
    assert ranks.reason == "the ranks were told to end"


def test_ranks_that_are_busy_end_at_once(start: Callable[..., RankProcesses]) -> None:
    ranks, told, failed = start(), threading.Event(), list[Exception]()

    def ask() -> None:
        try:
            ranks.call(Call("for ever"), lambda event: told.set())
        except RanksLostError as error:
            failed.append(error)

    ranks.wait_until_up()
    asking = threading.Thread(target=ask)
    asking.start()
    assert told.wait(LONG)
    ranks.end()
    asking.join(LONG)
    assert [str(error) for error in failed] == ["the ranks were told to end"]
