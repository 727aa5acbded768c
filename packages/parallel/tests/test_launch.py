"""Ranks that need no torch: how they start, how they end, and what is seen of it."""

from __future__ import annotations

import os
import pty
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from launching import LIMIT, command, left, left_in_the_end, python_path, run

from wantrn.parallel.launch import run_local, threads_per_rank
from wantrn.parallel.supervisor import Supervisor


def test_every_rank_is_told_its_place(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    body = """
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR".split()
    (here / f"told-{rank}").write_text(" ".join(os.environ[name] for name in names))
    print("to output", rank)
    print("to errors", rank, file=sys.stderr)
    assert sys.stdin.read() == ""
    """
    assert run(3, command(tmp_path, body)) == 0
    told = [(tmp_path / f"told-{rank}").read_text() for rank in range(3)]
    assert told == [f"{rank} {rank} 3 3 127.0.0.1" for rank in range(3)]
    assert capfd.readouterr() == ("to output 0\n", "to errors 0\n")


@pytest.mark.parametrize("asked", [None, "7"])
def test_threads_are_shared_out_unless_the_user_says_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str | None
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    body = """(here / f"threads-{rank}").write_text(os.environ["OMP_NUM_THREADS"])"""
    assert run(2, command(tmp_path, body)) == 0
    told = [(tmp_path / f"threads-{rank}").read_text() for rank in range(2)]
    assert told == [asked or str(threads_per_rank(2))] * 2


def test_threads_of_all_ranks_are_no_more_than_the_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(9)), raising=False)
    assert [threads_per_rank(world) for world in (1, 2, 3, 4, 9, 10, 64)] == [9, 4, 3, 2, 1, 1, 1]
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert threads_per_rank(2) == 3


@pytest.mark.parametrize("dying", [0, 2])
@pytest.mark.parametrize(
    ("how", "status", "named", "trace"),
    [
        ("raise KeyError('mine')", 1, "ended with status 1", "KeyError: 'mine'"),
        ("sys.exit('no such file')", 1, "ended with status 1", "no such file"),
        ("os._exit(7)", 7, "ended with status 7", None),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was ended by SIGKILL", None),
        ("os.abort()", 134, "was ended by SIGABRT", None),
    ],
)
def test_a_rank_that_dies_ends_all_and_is_named_once(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    dying: int,
    how: str,
    status: int,
    named: str,
    trace: str | None,
) -> None:
    body = f"""
    started()
    all_started()
    print("chatter of", rank, file=sys.stderr, flush=True)
    if rank == {dying}:
        {how}
    time.sleep(1000)
    """
    assert run(3, command(tmp_path, body), grace=30) == status
    errors = capfd.readouterr().err
    assert errors.count(f"rank {dying} of 3 {named}") == errors.count(" of 3 ") == 1
    assert trace is None or errors.count(trace) == 1
    assert errors.count(f"chatter of {dying}") == 1
    assert all(f"chatter of {rank}" not in errors for rank in {1, 2} - {dying})
    assert left(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="needs to see an end without reaping it")
def test_of_ranks_that_fail_at_once_the_one_on_the_screen_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = command(tmp_path, "started(); sys.exit('no such checkpoint')")
    with Supervisor(world=3, grace=30) as supervisor:
        for _ in range(3):
            supervisor.start(program, os.environ, port=1)
        while len(list(tmp_path.glob("pid-*[!~]"))) < 3:
            time.sleep(0.005)
        for rank in range(3):
            process = int((tmp_path / f"pid-{rank}").read_text())
            os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
        assert supervisor.wait() == 1
    assert capfd.readouterr().err == "no such checkpoint\nrank 0 of 3 ended with status 1\n"


def test_a_rank_that_does_not_stop_is_killed_after_the_grace(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    body = """
    if rank != 1:
        signal.signal(signal.SIGTERM, lambda *_: (here / f"told-{rank}").touch())
    started()
    all_started()
    if rank == 1:
        sys.exit(5)
    while True:
        time.sleep(1000)
    """
    assert run(3, command(tmp_path, body), grace=0.5) == 5
    assert [path.name for path in sorted(tmp_path.glob("told-*"))] == ["told-0", "told-2"]
    assert "rank 1 of 3 ended with status 5" in capfd.readouterr().err
    assert left(tmp_path) == []


@pytest.mark.parametrize("ending", ["", "sys.exit(3)", "os.kill(os.getpid(), 9)"])
def test_children_of_a_rank_end_with_it(tmp_path: Path, ending: str) -> None:
    body = f"""
    started()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    started(child.pid, f"child-of-{{rank}}")
    all_started(4)
    if rank == 1:
        {ending or "pass"}
    elif {bool(ending)}:
        time.sleep(1000)
    """
    assert run(2, command(tmp_path, body)) == {"": 0, "sys.exit(3)": 3}.get(ending, 137)
    assert len(list(tmp_path.glob("pid-*"))) == 4
    assert left_in_the_end(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_all_ranks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    body = f"""
    def stop(got, frame):
        (here / f"got-{{rank}}").write_text(str(got))
        sys.exit(9)

    signal.signal({number.value}, stop)
    started()
    if rank == 0:
        all_started()
        os.kill(os.getppid(), {number.value})
    time.sleep(1000)
    """
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]
    assert run(3, command(tmp_path, body), grace=30) == 128 + number
    got = [int((tmp_path / f"got-{rank}").read_text()) for rank in range(3)]
    assert got == [number] * 3
    assert capfd.readouterr().err == ""
    after = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]
    assert before == after
    assert left(tmp_path) == []


def test_control_c_in_a_terminal_reaches_each_rank_once(tmp_path: Path) -> None:
    body = """
    def stop(got, frame):
        with open(here / f"got-{rank}", "a") as file:
            file.write(str(got) + " ")
        time.sleep(0.2)
        sys.exit(0)

    signal.signal(signal.SIGINT, stop)
    started()
    time.sleep(1000)
    """
    program = command(tmp_path, body)
    call = (
        f"from wantrn.parallel.launch import run_local; raise SystemExit(run_local(2, {program}))"
    )
    process, terminal = pty.fork()
    if process == 0:
        os.environ["PYTHONPATH"] = python_path()
        os.execv(sys.executable, [sys.executable, "-c", call])
    deadline = time.monotonic() + LIMIT
    while len(left(tmp_path)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.write(terminal, b"\x03")
    _, status = os.waitpid(process, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 130
    assert [(tmp_path / f"got-{rank}").read_text() for rank in range(2)] == ["2 ", "2 "]
    assert left(tmp_path) == []


def test_a_second_signal_kills_at_once(tmp_path: Path) -> None:
    body = """
    signal.signal(signal.SIGINT, lambda *_: os.kill(os.getppid(), signal.SIGINT))
    started()
    all_started()
    if rank == 0:
        os.kill(os.getppid(), signal.SIGINT)
    while True:
        time.sleep(1000)
    """
    assert run(2, command(tmp_path, body), grace=1000) == 130
    assert left(tmp_path) == []


def test_ranks_that_write_much_are_not_held_up(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    body = """
    for line in range(10_000):
        print("line", 10_000 + line, file=sys.stderr if line % 2 else sys.stdout)
    started()
    all_started()
    if rank == 1:
        sys.exit("the end")
    time.sleep(1000)
    """
    assert run(2, command(tmp_path, body)) == 1
    errors = capfd.readouterr().err.split("rank 1 of 2 ended with status 1; it wrote:\n")[1]
    assert 60_000 < len(errors) < 70_000
    cut, *lines, end = errors.splitlines()
    assert (cut, end) == ("[...]", "the end")
    # in the order in which they were written, though to both streams
    assert lines == [f"line {line}" for line in range(20_000 - len(lines), 20_000)]


@pytest.mark.parametrize("asked", [None, "", "1"])
def test_what_a_rank_printed_before_it_was_killed_is_told(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    asked: str | None,
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    if asked is not None:
        monkeypatch.setenv("PYTHONUNBUFFERED", asked)
    body = """
    print("loading")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)
    """
    assert run(2, command(tmp_path, body)) == 137
    errors = capfd.readouterr().err
    told = "rank 1 of 2 was ended by SIGKILL"
    # without a word from the user, or as the user says
    assert errors == (f"{told}\n" if asked == "" else f"{told}; it wrote:\nloading\n")


def test_nothing_is_left_open(tmp_path: Path) -> None:
    program = command(tmp_path, "sys.exit(rank)")
    assert run(2, program) == 1  # what the first run opens for good
    opened, threads = os.listdir("/dev/fd"), threading.active_count()
    for _ in range(3):
        assert run(2, program) == 1
    assert len(os.listdir("/dev/fd")) == len(opened)
    assert threading.active_count() == threads


def test_ranks_have_the_descriptors_that_are_passed_to_them(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    body = f"""
    os.write({writer}, str(rank).encode())
    """
    try:
        assert run(3, command(tmp_path, body), pass_fds=[writer]) == 0
        assert sorted(os.read(reader, 100)) == sorted(b"012")
    finally:
        os.close(reader)
        os.close(writer)


def test_the_rank_that_failed_first_is_reported(tmp_path: Path) -> None:
    body = """
    started()
    all_started()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)
    """
    told: list[str] = []
    assert run(2, command(tmp_path, body), report=told.append) == 137
    assert told == ["rank 1 of 2 was ended by SIGKILL"]


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        run(2, [str(tmp_path / "no-such-program")])


@pytest.mark.parametrize(
    ("world", "program", "grace", "told"),
    [
        (0, ["true"], 1.0, "world must be at least 1, got 0"),
        (1, [], 1.0, "command must have a program"),
        (1, ["true"], 0.0, "grace must be more than 0 seconds, got 0"),
        (1, ["true"], float("nan"), "grace must be more than 0 seconds, got nan"),
    ],
)
def test_arguments_are_checked(world: int, program: list[str], grace: float, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        run_local(world, program, grace=grace)


def test_signals_need_the_main_thread() -> None:
    errors: list[BaseException] = []

    def call() -> None:
        try:
            run_local(1, [sys.executable, "-c", ""])
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])
