"""Servers of videos as processes of their own, ours and vLLM-Omni's, and how long they take.

All speak OpenAI's videos API. What is compared is what a client sees: the time from sending a
request until the server first says that its video is completed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import stock_omni
from omni_cpu import write_plugin

from wantrn.serving.modules import MODULES, source_roots

STARTS_WITHIN = 600.0
"""Seconds for a server to be ready."""
ENDS_WITHIN = 300.0
"""Seconds for a job to end."""
_POLL = 0.02


class ServerError(Exception):
    """A server does not do what is asked of it, for the reason given."""


@dataclass(frozen=True)
class Layout:
    """How ranks share a video: how many there are, and the options of ours and of vLLM-Omni."""

    ranks: int
    ours: tuple[str, ...]
    stock: tuple[str, ...]


LAYOUTS = {
    "one": Layout(1, (), ()),
    "tp2": Layout(2, ("--tp", "2"), ("--tensor-parallel-size", "2")),
    "ulysses2": Layout(2, ("--ulysses", "2"), ("--usp", "2")),
    "cfg2": Layout(2, ("--cfg-parallel",), ("--cfg-parallel-size", "2")),
}


@dataclass(frozen=True)
class Launch:
    """How a server is started. One that has no ``url`` prints it as its first line."""

    command: list[str]
    variables: Mapping[str, str]
    url: str | None = None


@dataclass(frozen=True)
class Place:
    """What all servers of a run share: the checkpoint, and the folder for what they write."""

    model: Path
    folder: Path

    def ours(self, name: str, layout: Layout, threads: int) -> Launch:
        """``wantrn serve`` with the embedded engine; ``threads`` of each rank."""
        command = [sys.executable, *self._serve(name, layout, threads)]
        return Launch(
            command, os.environ | {"PYTHONPATH": MODULES, "OMP_NUM_THREADS": str(threads)}
        )

    def ours_on_omni(self, name: str, python: Path, layout: Layout, threads: int) -> Launch:
        """``wantrn serve`` with vLLM-Omni's engine, where ``python`` has it and our plugin."""
        command = [str(python), *self._serve(name, layout, threads), "--engine", "omni"]
        variables = {
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONPATH": source_roots(),
            "HOME": str(self.folder),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": str(threads),
            "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_NO_USAGE_STATS": "1",
        }
        return Launch(command, variables)

    def stock(self, name: str, python: Path, layout: Layout, threads: int) -> Launch:
        """vLLM-Omni's own server."""
        plugin, home = self.folder / "plugin", self.folder / name
        if not plugin.exists():
            write_plugin(plugin)
        port = free_port()
        command = stock_omni.command(python, self.model, port, *layout.stock)
        variables = stock_omni.variables(plugin, home, threads)
        return Launch(command, variables, f"http://127.0.0.1:{port}")

    def _serve(self, name: str, layout: Layout, threads: int) -> list[str]:
        options = ["--model", str(self.model), "--store", str(self.folder / name / "store")]
        options += ["--port", "0", "--threads", str(threads), *layout.ours]
        return ["-m", "wantrn.serving.cli", "serve", *options]


def free_port() -> int:
    """A port of the loopback address that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class Server:
    """A running server, in a process group of its own; what it says is in ``log``."""

    def __init__(self, launch: Launch, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.log, self._output = folder / "log", folder / "output"
        with self.log.open("ab") as log, self._output.open("wb") as output:
            self.process = subprocess.Popen(
                launch.command,
                env=dict(launch.variables),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log if launch.url else output,
                stderr=log,
                start_new_session=True,
            )
        try:
            self.url = launch.url or self._first_line()
        except BaseException:
            self._kill_group()
            raise
        limits = httpx.Limits(keepalive_expiry=2.0)  # the servers close theirs after 5 s
        self.http = httpx.Client(base_url=self.url, timeout=60, limits=limits)

    def _first_line(self) -> str:
        """What it says of its address."""

        def said() -> bool:
            self._check_alive()
            return "\n" in self._output.read_text()

        wait_for(said, STARTS_WITHIN, f"an address, {self.log}")
        return self._output.read_text().partition("\n")[0]

    def _check_alive(self) -> None:
        if self.process.poll() is not None:
            raise ServerError(f"it ended with status {self.process.returncode}: {self.said()}")

    def wait_ready(self) -> None:
        """Until it says that it is healthy; ``ServerError`` if that does not come."""

        def ready() -> bool:
            self._check_alive()
            with suppress(httpx.TransportError):
                return self.http.get("/health").status_code == 200
            return False

        wait_for(ready, STARTS_WITHIN, f"ready, {self.log}", 0.25)

    def said(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-2000:]

    def descendants(self) -> dict[int, str]:
        """Its living processes but the first: number to command."""
        return descendants(self.process.pid)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Meanwhile none of its processes runs, so that others have the machine."""
        self._signal_all(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal_all(signal.SIGCONT)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """While it is stopped: it runs meanwhile."""
        self._signal_all(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal_all(signal.SIGSTOP)

    def _signal_all(self, number: int) -> None:
        for pid in [self.process.pid, *self.descendants()]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it by a signal, with all processes that it started."""
        self.http.close()
        others = self.descendants()
        if self.process.poll() is None:
            self.process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        for pid in others:
            if pid in processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._kill_group()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def running(launch: Launch, folder: Path) -> Iterator[Server]:
    """A server that is ready, and gone afterwards."""
    server = Server(launch, folder)
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


def processes() -> dict[int, tuple[int, str]]:
    """All that live: process number to its parent's and its command. No zombies."""
    line = ["ps", "-axo", "pid=,ppid=,stat=,command="]
    table = {}
    for row in subprocess.run(line, capture_output=True, text=True, check=True).stdout.splitlines():
        pid, parent, state, what = row.split(maxsplit=3)
        if not state.startswith("Z"):
            table[int(pid)] = (int(parent), what)
    return table


def descendants(root: int) -> dict[int, str]:
    """The living processes below ``root``."""
    table, found, parents = processes(), dict[int, str](), {root}
    while parents:
        children = {pid: what for pid, (parent, what) in table.items() if parent in parents}
        found |= children
        parents = set(children)
    return found


def wait_for(true: Callable[[], bool], seconds: float, what: str, interval: float = _POLL) -> None:
    """Until ``true()``; ``ServerError`` says ``what`` did not come."""
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            raise ServerError(f"not within {seconds:.0f} s: {what}")
        time.sleep(interval)


@dataclass(frozen=True)
class Job:
    """A job that has ended, as a client saw it; times in seconds.

    Attributes:
        video: the last object that the server gave.
        total: from before the request was sent.
        running: from when it was first seen in progress; ``total`` if it never was.
        progress: the values that were seen, each once.
    """

    video: dict[str, Any]
    total: float
    running: float
    progress: tuple[int, ...] = field(default=())


def post(server: Server, fields: Mapping[str, object]) -> httpx.Response:
    """Ask for a video, by a form."""
    parts = {name: (None, str(value)) for name, value in fields.items()}
    return server.http.post("/v1/videos", files=parts)


def create(server: Server, fields: Mapping[str, object]) -> str:
    """Ask for a video; its id."""
    reply = post(server, fields)
    if reply.status_code != 200:
        raise ServerError(f"{server.url}: {reply.status_code} {reply.text[:500]}")
    id: str = reply.json()["id"]
    return id


def run_job(server: Server, fields: Mapping[str, object], fastest: float = 0.0) -> Job:
    """Ask for a video and wait for its end.

    Questions take processors from the ranks, so they come at intervals of 2 % of the time so far,
    and none comes while the job runs in less than nine tenths of ``fastest``: seconds of the
    fastest job like this one, if known.
    """
    begun = time.perf_counter()
    id = create(server, fields)
    started = begun
    seen: list[int] = []
    while True:
        reply = server.http.get(f"/v1/videos/{id}")
        elapsed = time.perf_counter() - begun
        video = reply.json()
        if "status" not in video:
            raise ServerError(f"{server.url}: {reply.status_code} {reply.text[:500]}")
        if not seen or seen[-1] != video["progress"]:
            seen.append(video["progress"])
        if started == begun and video["status"] != "queued":
            started = begun + elapsed
        if video["status"] in ("completed", "failed"):
            return Job(video, elapsed, begun + elapsed - started, tuple(seen))
        if elapsed > ENDS_WITHIN:
            raise ServerError(f"{server.url}: no end of {video}")
        interval = max(_POLL, elapsed / 50)
        rest = 0.9 * fastest - elapsed
        time.sleep(max(rest, interval) if video["status"] == "in_progress" else interval)


def download(server: Server, id: str, folder: Path) -> Path:
    """A video's file."""
    reply = server.http.get(f"/v1/videos/{id}/content")
    if reply.status_code != 200:
        raise ServerError(f"{server.url}: {reply.status_code} {reply.text[:500]}")
    path = folder / f"{id}.mp4"
    path.write_bytes(reply.content)
    return path
