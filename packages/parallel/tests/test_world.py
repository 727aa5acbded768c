"""Ranks that join a world of torch.distributed, and what becomes of the others if one fails."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import LIMIT, command, left, left_in_the_end, python_path, run

from wantrn.parallel.launch import LaunchedRank, join_world, rank_of_environment

JOIN = """
import torch, torch.distributed as dist
from wantrn.parallel.launch import join_world

torch.set_num_threads(1)
started()
"""

SUM = """
with join_world() as place:
    x = torch.tensor([10.0 ** place.rank])
    dist.all_reduce(x)
    pair = dist.new_group([0, 1])
    seen = [place.rank, place.local_rank, place.world, dist.get_rank(), dist.get_world_size()]
    (here / f"sum-{rank}").write_text(f"{seen} {x.item():g}")
    if rank == 1:
        sys.exit(0)
assert not dist.is_initialized()
(here / "after").touch()
"""

FLYING = """
    signal.signal(signal.SIGTERM, signal.{})
    with join_world() as place:
        x = torch.ones(1)
        dist.all_reduce(x)
        if place.rank == 0:
            time.sleep(1000)
        flying = dist.all_reduce(x, async_op=True)
        raise ValueError("mine")
"""
"""Rank 1 fails in a collective, which lasts until rank 0 ends; that may be deaf to SIGTERM."""

VARIABLES = {
    "RANK": "2",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "5",
}


def test_ranks_meet(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(2, command(tmp_path, JOIN + SUM)) == 0
    sums = [(tmp_path / f"sum-{rank}").read_text() for rank in range(2)]
    assert sums == [f"[{rank}, {rank}, 2, {rank}, 2] 11" for rank in range(2)]
    assert (tmp_path / "after").exists()
    assert capfd.readouterr() == ("", "")


def torchrun(program: str) -> tuple[int, str]:
    """The status and the errors of two ranks under ``torchrun``."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            program,
        ],
        env={**os.environ, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        timeout=2 * LIMIT,
        check=False,
    )
    return done.returncode, done.stderr


def test_ranks_meet_under_torchrun(tmp_path: Path) -> None:
    status, errors = torchrun(command(tmp_path, JOIN + SUM)[1])
    assert status == 0, errors
    sums = [(tmp_path / f"sum-{rank}").read_text() for rank in range(2)]
    assert sums == [f"[{rank}, {rank}, 2, {rank}, 2] 11" for rank in range(2)]


def test_a_rank_that_fails_under_torchrun_ends(tmp_path: Path) -> None:
    """Though it has a collective in flight, for which Python's own end would wait."""
    status, errors = torchrun(command(tmp_path, JOIN + _dedent(FLYING.format("SIG_DFL")))[1])
    assert status != 0
    assert errors.count("]: ValueError: mine") == 1
    assert left_in_the_end(tmp_path) == []


@pytest.mark.parametrize(
    ("failure", "status", "told"),
    [
        ("raise ValueError('mine')", 1, "rank 1 of 3 ended with status 1; it wrote:"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "rank 1 of 3 was ended by SIGKILL"),
    ],
)
def test_ranks_in_a_collective_end_in_silence_if_one_fails(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    failure: str,
    status: int,
    told: str,
) -> None:
    """Their own timeout is hours away; rank 0 would write its error on the screen."""
    body = f"""
    with join_world() as place:
        x = torch.ones(1)
        dist.all_reduce(x)
        if place.rank == 1:
            {failure}
        dist.all_reduce(x)
    """
    assert run(3, command(tmp_path, JOIN + _dedent(body)), grace=30) == status
    errors = capfd.readouterr().err
    assert errors.startswith(told) and errors.count("of 3") == 1
    assert errors.count("Traceback") == errors.count("ValueError: mine") == ("Value" in failure)
    assert left(tmp_path) == []


def test_a_rank_that_fails_with_a_collective_in_flight_ends(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Python's own end would wait for the collective, and never come."""
    body = _dedent(FLYING.format("SIG_IGN"))
    assert run(2, command(tmp_path, JOIN + body), grace=1) == 1
    errors = capfd.readouterr().err
    assert errors.startswith("rank 1 of 2 failed, and did not end by itself; it wrote:")
    assert errors.count("ValueError: mine") == errors.count("Traceback") == 1
    assert left(tmp_path) == []


def test_of_ranks_that_fail_alike_one_tells(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = """
    with join_world() as place:
        dist.barrier()
        raise ValueError("no such checkpoint")
    """
    assert run(2, command(tmp_path, JOIN + _dedent(body))) == 1
    errors = capfd.readouterr().err
    assert errors.count("ValueError: no such checkpoint") == errors.count("of 2") == 1


def test_a_lost_connection_without_a_dead_rank_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = """
    with join_world() as place:
        x = torch.ones(1)
        dist.all_reduce(x)
        if place.rank == 0:
            dist.all_reduce(x)
    """
    assert run(2, command(tmp_path, JOIN + _dedent(body))) == 1
    errors = capfd.readouterr().err
    # reset, if it had not read all
    assert "Connection closed by peer" in errors or "Connection reset by peer" in errors
    assert errors.endswith("rank 0 of 2 ended with status 1\n")


def test_ranks_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    """In a collective, in sleep, and before they have joined; their children too."""
    body = """
    if rank == 2:
        time.sleep(0.5)
    with join_world() as place:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        started(child.pid, f"child-of-{rank}")
        if rank == 0:
            dist.barrier(dist.new_group([0, 1]))
        time.sleep(1000)
    """
    program = command(tmp_path, JOIN + _dedent(body))
    call = f"from wantrn.parallel.launch import run_local; run_local(3, {program})"
    supervisor = subprocess.Popen(
        [sys.executable, "-c", call], env={**os.environ, "PYTHONPATH": python_path()}
    )
    deadline = time.monotonic() + LIMIT
    while len(left(tmp_path)) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(left(tmp_path)) >= 5
    supervisor.kill()
    supervisor.wait()
    assert left_in_the_end(tmp_path) == []


def test_a_process_that_nobody_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "WANTRN_SUPERVISOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MASTER_ADDR", "left from elsewhere")
    assert rank_of_environment() is None
    with pytest.raises(RuntimeError, match="RANK is not in its environment"), join_world():
        pass


def test_the_place_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANTRN_SUPERVISOR", raising=False)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    assert rank_of_environment() == LaunchedRank(rank=2, local_rank=1, world=4)
    monkeypatch.setenv("WANTRN_SUPERVISOR", "17")
    assert rank_of_environment() == LaunchedRank(2, 1, 4, supervisor=17)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("WORLD_SIZE", None, "needs the variables WORLD_SIZE in"),
        ("MASTER_PORT", "", "needs the variables MASTER_PORT in"),
        ("WORLD_SIZE", "0", "WORLD_SIZE must be 1 or more, got '0'"),
        ("RANK", "4", "RANK must be 0 to 3, got '4'"),
        ("RANK", "-1", "RANK must be 0 to 3, got '-1'"),
        ("LOCAL_RANK", "one", "LOCAL_RANK must be 0 to 3, got 'one'"),
        ("WANTRN_SUPERVISOR", "x", "WANTRN_SUPERVISOR must be 0 or more, got 'x'"),
    ],
)
def test_an_environment_that_is_no_ranks(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str | None, told: str
) -> None:
    monkeypatch.delenv("WANTRN_SUPERVISOR", raising=False)
    for other, good in VARIABLES.items():
        monkeypatch.setenv(other, good)
    if value is None:
        monkeypatch.delenv(name)
    else:
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=told):
        rank_of_environment()


def test_a_supervisor_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    with (tmp_path / "file").open("w") as file:
        monkeypatch.setenv("WANTRN_SUPERVISOR", str(file.fileno()))
        with pytest.raises(ValueError, match="supervisor's socket"), join_world():
            pass


def _dedent(body: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in body.splitlines())
