"""Many clients, many shapes, cancellations and dead ranks: every job ends once, nothing is left.

``pytest -s`` prints what was seen.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from server_process import ServerProcess, server_process, video, wait

from wantrn.model.info import ModelKind
from wantrn.model.tiny import write_tiny_checkpoint

REQUESTS, CLIENTS, KILLS = 200, 16, 3
SHAPES = (("64x64", 5), ("32x96", 1), ("48x48", 9), ("64x32", 5))


@dataclass
class Seen:
    """What all clients saw. Threads add to it under the lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    ends: Counter[str] = field(default_factory=Counter)
    kept: dict[str, str] = field(default_factory=dict)
    """Id to final state, of jobs that were not deleted."""
    deleted: list[str] = field(default_factory=list)
    refused: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def one_client(url: str, number: int, seen: Seen) -> None:
    draw = random.Random(number)
    try:
        with httpx.Client(base_url=url, timeout=120) as client:
            for _ in range(number, REQUESTS, CLIENTS):
                one_job(client, draw, seen)
    except Exception as error:
        with seen.lock:
            seen.faults.append(f"client {number}: {error!r}")


def one_job(client: httpx.Client, draw: random.Random, seen: Seen) -> None:
    id = submit(client, draw, seen)
    cancels = draw.random() < 0.2
    after, deletes = draw.random() * 0.5, draw.random() < 0.5
    begun, progress = time.monotonic(), 0
    while True:
        found = video(client, id)
        assert found["progress"] >= progress, "progress fell"
        progress = found["progress"]
        if found["status"] in ("completed", "failed"):
            break
        if cancels and time.monotonic() - begun > after:
            cancels = False
            if deletes:
                assert client.delete(f"/v1/videos/{id}").status_code == 200
                assert client.get(f"/v1/videos/{id}").status_code == 404
                with seen.lock:
                    seen.ends["deleted"] += 1
                    seen.deleted.append(id)
                return
            assert client.post(f"/v1/videos/{id}/cancel").status_code in (200, 409)
        time.sleep(0.1)
    content = client.get(f"/v1/videos/{id}/content")
    assert content.status_code == (200 if found["status"] == "completed" else 422)
    error = "" if found["error"] is None else found["error"]["code"]
    assert error in ("", "cancelled", "ranks_lost"), found
    with seen.lock:
        seen.ends[error or "completed"] += 1
        seen.kept[id] = found["status"]


def submit(client: httpx.Client, draw: random.Random, seen: Seen) -> str:
    """Ask until the server takes it, as its replies say one should."""
    size, frames = draw.choice(SHAPES)
    body = {"prompt": "a", "size": size, "num_frames": frames, "seed": 1}
    while True:
        fields = {**body, "num_inference_steps": draw.randint(1, 8)}
        reply = client.post("/v1/videos", json=fields)
        if reply.status_code == 200:
            id: str = reply.json()["id"]
            return id
        assert reply.status_code in (429, 503), reply.text
        with seen.lock:
            seen.refused[reply.status_code] += 1
        time.sleep(min(1.0, float(reply.headers["retry-after"])))


def kill_ranks(server: ServerProcess, seen: Seen, ended: threading.Event) -> None:
    """Kill a rank each time a quarter of the jobs have ended and all is well again."""
    with server.client() as client:
        for kill in range(1, KILLS + 1):
            while len(seen.kept) + len(seen.deleted) < kill * REQUESTS // (KILLS + 1):
                if ended.wait(0.05):
                    return
            wait(lambda: client.get("/health").status_code == 200, server.explain)
            os.kill(server.ranks()[0], signal.SIGKILL)
            with seen.lock:
                seen.ends["kills"] += 1


def kilobytes(pid: int) -> int:
    """Memory of a process."""
    command = ["ps", "-o", "rss=", "-p", str(pid)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def run(server: ServerProcess) -> Seen:
    seen, ended = Seen(), threading.Event()
    killer = threading.Thread(target=kill_ranks, args=(server, seen, ended))
    clients = [
        threading.Thread(target=one_client, args=(server.url, number, seen))
        for number in range(CLIENTS)
    ]
    for thread in (killer, *clients):
        thread.start()
    for thread in clients:
        thread.join()
    ended.set()
    killer.join()
    return seen


def test_many_clients_and_dead_ranks(tmp_path: Path) -> None:
    checkpoint = write_tiny_checkpoint(tmp_path / "tiny", ModelKind.T2V)
    options = ["--model", str(checkpoint), "--threads", "1", "--queued", "12"]
    with server_process(tmp_path, *options) as server:
        warm = Seen()
        one_client(server.url, REQUESTS - 5 * CLIENTS, warm)
        before = kilobytes(server.process.pid), kilobytes(server.ranks()[0])
        seen = run(server)
        assert seen.faults == []
        assert seen.ends["kills"] == KILLS
        with server.client() as client:
            wait(lambda: client.get("/health").status_code == 200, server.explain)
            check(server, client, seen, warm)
        after = kilobytes(server.process.pid), kilobytes(server.ranks()[0])
        print(dict(seen.ends), "refused", dict(seen.refused), "memory kB", before, after)
        # of the server, which has lived through all of it, and of a rank of the same age
        assert after[0] < before[0] * 1.15 + 10_000, (before, after)
    assert server.left() == []
    names = {path.name for path in (tmp_path / "store").iterdir()}
    assert names == {"jobs", "lock", "jobs.sqlite3"}


def check(server: ServerProcess, client: httpx.Client, seen: Seen, warm: Seen) -> None:
    """All jobs are told once, in the state that their clients saw; all files are of jobs."""
    assert len(seen.kept) + len(seen.deleted) == REQUESTS
    listed: list[tuple[str, str]] = []
    after: dict[str, str] = {}
    while True:
        page = client.get("/v1/videos", params={"limit": 100, **after}).json()
        listed += [(one["id"], one["status"]) for one in page["data"]]
        if not page["has_more"]:
            break
        after = {"after": page["last_id"]}
    assert len(listed) == len(dict(listed))
    assert dict(listed) == {**seen.kept, **warm.kept}
    folder = server.log.parent / "store" / "jobs"
    wait(lambda: {path.name for path in folder.iterdir()} == set(dict(listed)), server.explain)
    for id, status in listed:
        assert (folder / id / "video.mp4").exists() is (status == "completed")
