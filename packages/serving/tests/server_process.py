"""A real ``wantrn serve`` with its ranks, and what is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

PYTHON_PATH = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
SECONDS = 180.0
"""That a server may take to be ready. It takes about ten, and more where others are at work."""


class ServerProcess:
    """A server that was started with ``options``; ``url`` is its address, ``folder`` its home.

    ``python`` is the interpreter that it runs in, with the modules of ``path``.
    """

    def __init__(
        self, folder: Path, *options: str, python: str = sys.executable, path: str = PYTHON_PATH
    ) -> None:
        self.log = folder / "server.log"
        command = [python, "-m", "wantrn.serving.cli", "serve", "--port", "0"]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*command, "--store", str(folder / "store"), *options],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": path, "HOME": str(folder)},
            )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.seen: set[int] = set()
        """All processes that were ever seen to be its."""

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60)

    def wait_ready(self) -> None:
        with self.client() as client:
            wait(lambda: client.get("/health").status_code == 200, self.explain)
        self.tree()

    def explain(self) -> str:
        return self.log.read_text()[-4000:]

    def tree(self) -> dict[int, str]:
        """Its living descendants: process number to command."""
        found: dict[int, str] = {}
        parents = {self.process.pid}
        table = processes()
        while parents:
            children = {pid: what for pid, (parent, what) in table.items() if parent in parents}
            found |= children
            parents = set(children)
        self.seen |= set(found)
        return found

    def ranks(self) -> list[int]:
        """The process numbers of the embedded engine's ranks, the first's first."""
        return sorted(pid for pid, what in self.tree().items() if "engines.local.rank " in what)

    def left(self) -> list[str]:
        """Processes that were its, and live still."""
        table = processes()
        return [what for pid, (_, what) in table.items() if pid in self.seen]

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it by a signal; its status."""
        self.tree()
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        wait(lambda: not self.left(), lambda: f"left: {self.left()}\n{self.explain()}")
        return status


@contextmanager
def server_process(folder: Path, *options: str, **where: str) -> Iterator[ServerProcess]:
    """A server that is ready, and gone afterwards."""
    made = ServerProcess(folder, *options, **where)
    try:
        made.wait_ready()
        yield made
    finally:
        made.stop()


def wait(
    true: Callable[[], bool], explain: Callable[[], str] = str, seconds: float = SECONDS
) -> None:
    """Until ``true()``; an assertion fails if that takes too long."""
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, explain()
        time.sleep(0.02)


def processes() -> dict[int, tuple[int, str]]:
    """All that live: process number to its parent's and its command. No zombies."""
    command = ["ps", "-axwwo", "pid=,ppid=,stat=,command="]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    table = {}
    for line in lines:
        pid, parent, state, what = line.split(maxsplit=3)
        if not state.startswith("Z"):
            table[int(pid)] = (int(parent), what)
    return table


SMALL: dict[str, Any] = {"size": "64x64", "num_frames": 5, "seed": 7}
LARGER: dict[str, Any] = {"size": "128x128", "num_frames": 17}
"""Of steps that take long enough for a client to see each of them."""


def create(client: httpx.Client, steps: int = 4, **values: Any) -> str:
    """Ask for a small video; its id."""
    fields = {"prompt": "a red ball", "num_inference_steps": steps, **SMALL, **values}
    reply = client.post("/v1/videos", json=fields)
    assert reply.status_code == 200, reply.text
    id: str = reply.json()["id"]
    return id


def video(client: httpx.Client, id: str) -> dict[str, Any]:
    reply = client.get(f"/v1/videos/{id}")
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def wait_status(
    client: httpx.Client, id: str, *statuses: str, seconds: float = SECONDS
) -> dict[str, Any]:
    """Wait until a video is in one of these states; the video."""
    wait(lambda: video(client, id)["status"] in statuses, lambda: str(video(client, id)), seconds)
    return video(client, id)
