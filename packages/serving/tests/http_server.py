"""The web application over a scripted engine, in a thread, at a real port."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from scripted_engine import ScriptedEngine, settle

from wantrn.model.info import ModelInfo
from wantrn.serving.engines.protocol import Event, Finished, Ready, Started, Stepped
from wantrn.serving.http.app import make_app
from wantrn.serving.http.offer import Offer
from wantrn.serving.jobs.limits import Limits
from wantrn.serving.jobs.manager import JobManager
from wantrn.serving.jobs.store import JobStore
from wantrn.serving.shapes import Shape

SECONDS = 30.0


@dataclass
class HttpServer:
    """A server, and the engine's side of it."""

    url: str
    engine: ScriptedEngine
    jobs: JobManager
    store: JobStore
    loop: asyncio.AbstractEventLoop

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=SECONDS, **options)

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run ``work`` in the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(SECONDS)

    def say(self, *events: Event) -> None:
        for event in events:
            self.call(self.engine.say(event))

    def work_of(self, id: str) -> str:
        """Wait until the engine has a job; its id."""
        until = time.monotonic() + SECONDS
        while id not in self.engine.has:
            self.call(settle())
            assert time.monotonic() < until, f"the engine was never given {id}"
        return id

    def run_to(self, id: str, step: int, steps: int) -> None:
        """Begin a job and make its first steps."""
        self.say(Started(self.work_of(id)))
        for done in range(1, step + 1):
            self.say(Stepped(id, done, steps, 0.01, 0))

    def finish(self, id: str, video: bytes) -> None:
        self.engine.has[id].output.write_bytes(video)
        self.say(Finished(id, {"denoise": 1.0}))


@contextmanager
def serving(
    folder: Path,
    info: ModelInfo,
    *,
    slots: int = 2,
    limits: Limits | None = None,
    api_keys: Sequence[str] = (),
    loras: Path | None = None,
    buckets: Sequence[Shape] = (),
    ready: bool = True,
) -> Iterator[HttpServer]:
    """A server while it is used."""
    limits = Limits() if limits is None else limits
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    made: list[tuple[HttpServer, uvicorn.Server]] = []

    async def main() -> None:
        store, engine = JobStore(folder), ScriptedEngine(info, slots)
        jobs = JobManager(store, engine, "tiny", limits)
        offer = Offer.of(info, loras, buckets)
        config = uvicorn.Config(
            make_app(jobs, offer, limits.upload_bytes, api_keys),
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=2,
        )
        server = uvicorn.Server(config)
        made.append((HttpServer(url, engine, jobs, store, asyncio.get_running_loop()), server))
        await server.serve(sockets=[listening])
        store.close()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        until = time.monotonic() + SECONDS
        while not (made and made[0][1].started):
            assert thread.is_alive() and time.monotonic() < until
            time.sleep(0.01)
        if ready:
            made[0][0].say(Ready())
        yield made[0][0]
    finally:
        for _, server in made:
            server.should_exit = True
        thread.join(SECONDS)
        listening.close()
        assert not thread.is_alive()
