"""Programs for ranks, and runs of them that cannot last for ever."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

from wantrn.parallel.launch import run_local

LIMIT = 200.0
"""Seconds that a run may take. Those here take one or two, and fifty where eight are at work."""

PREAMBLE = """
import os, pathlib, signal, subprocess, sys, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
here = pathlib.Path(__file__).parent

def started(pid=os.getpid(), name=rank):
    path = here / f"pid-{name}"
    path.with_name(path.name + "~").write_text(str(pid))
    path.with_name(path.name + "~").rename(path)

def all_started(count=world):
    while len(list(here.glob("pid-*[!~]"))) < count:
        time.sleep(0.005)

"""
"""``started()`` leaves the process's number beside the program; ``all_started()`` waits for all."""


def command(folder: Path, body: str) -> list[str]:
    """A command that runs ``body``, which has the names of the preamble."""
    path = folder / "rank.py"
    path.write_text(PREAMBLE + textwrap.dedent(body))
    return [sys.executable, str(path)]


def run(world: int, program: list[str], **settings: Any) -> int:
    """``run_local``'s status; 143 if it took too long."""
    timer = threading.Timer(LIMIT, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    try:
        return run_local(world, program, environment={"PYTHONPATH": python_path()}, **settings)
    finally:
        timer.cancel()
        timer.join()


def python_path() -> str:
    """Where this process finds its modules, for others."""
    return os.pathsep.join(filter(None, sys.path))


def left(folder: Path) -> list[str]:
    """The processes that started there and run still, zombies of other processes aside."""
    return [path.name for path in sorted(folder.glob("pid-*[!~]")) if _runs(int(path.read_text()))]


def left_in_the_end(folder: Path) -> list[str]:
    """The same, once they had the time to end."""
    deadline = time.monotonic() + LIMIT
    while left(folder) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left(folder)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return not _is_zombie(process)


def _is_zombie(process: int) -> bool:
    """An orphan that was killed stays one until its new parent looks, which may be never here."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "Z"
