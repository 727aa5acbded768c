"""What a server does in the cases of a list: each act is done, and what is seen is told as text.

All acts go through HTTP, or end processes of the server's own, and are the same for every server.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from served_video import Asked
from video_frames import max_difference, read_frames
from video_servers import (
    LAYOUTS,
    Launch,
    Layout,
    Place,
    Server,
    create,
    download,
    post,
    run_job,
    running,
    wait_for,
)

LONG_STEPS = 80
SHORT_STEPS = 6
ODD_TOKENS = "48x48"  # with 9 frames: 3 x 3 x 3 tokens
AFTER_KILL = 60.0
"""Seconds that a server has to make videos again after one of its ranks was killed."""
_SHOWN = 160  # characters of a message


@dataclass(frozen=True)
class Subject:
    """A server whose acts are seen: ``launch`` says how it is started, by name and layout."""

    place: Place
    asked: Asked
    launch: Callable[[str, Layout], Launch]
    name: str

    def running(self, layout: str, use: str = "") -> AbstractContextManager[Server]:
        """A server of this kind; those of one ``use`` have the same store."""
        name = f"{self.name}_{use or layout}"
        return running(self.launch(name, LAYOUTS[layout]), self.place.folder / name)

    def form(self, **changed: object) -> dict[str, object]:
        """The fields of a request, some of them changed; those that are None are left out."""
        fields = self.asked.form() | changed
        return {name: value for name, value in fields.items() if value is not None}


Seen = dict[str, str]
"""By act: what was seen."""


def see(subject: Subject) -> Seen:
    """All acts."""
    seen: Seen = {}
    with subject.running("one") as server:
        for act, do in ACTS.items():
            tell(f"  {subject.name}: {act}")
            seen[act] = do(subject, server)
        odd_alone = _frames(subject, server, size=ODD_TOKENS, num_frames=9)
    with subject.running("ulysses2") as server:
        odd_shared = _frames(subject, server, size=ODD_TOKENS, num_frames=9)
        seen["27 tokens on 2 ranks (Ulysses) against 1 rank, in the files"] = (
            f"{(odd_alone != odd_shared).mean():.1%} of all values differ, by up to "
            f"{max_difference(odd_alone, odd_shared)} levels of 255"
        )
        tell(f"  {subject.name}: kill -9")
        seen |= kill_rank(subject, server)
    tell(f"  {subject.name}: restart")
    seen["`kill -9` of the whole server, and a new start: a video that was finished"] = restart(
        subject
    )
    return seen


def progress(subject: Subject, server: Server) -> str:
    """Of a job of 20 steps, asked for closely."""
    values = run_job(server, subject.form(num_inference_steps=20)).progress
    shown = ", ".join(map(str, values[:3]))
    return shown if len(values) <= 3 else f"{shown}, ... {values[-1]}: {len(values)} values"


def delete_running(subject: Subject, server: Server) -> str:
    """How soon the next job ends, once a running one is deleted."""
    short = subject.form(num_inference_steps=SHORT_STEPS)
    alone = run_job(server, short).total
    long = _begin_long(subject, server)
    next_one = create(server, short)
    begun = time.perf_counter()
    status = server.http.delete(f"/v1/videos/{long}").status_code
    wait_for(lambda: _video(server, next_one).get("status") == "completed", 300, "the next job")
    after = time.perf_counter() - begun
    return f"{status}; the next job is done {after / alone:.1f} times as late as one alone"


def short_behind_long(subject: Subject, server: Server) -> str:
    """Which of two jobs ends first."""
    long = _begin_long(subject, server)
    short = create(server, subject.form(num_inference_steps=SHORT_STEPS))
    done = ("completed", "failed")
    wait_for(lambda: _video(server, short).get("status") in done, 300, "the short job")
    first = "the long one" if _video(server, long).get("status") in done else "the short one"
    wait_for(lambda: _video(server, long).get("status") in done, 300, "the long job")
    return f"{first} is ready first"


def odd_size(subject: Subject, server: Server) -> str:
    return _accepted(subject, server, size="100x70")


def odd_frames(subject: Subject, server: Server) -> str:
    return _accepted(subject, server, num_frames=10)


def tiny_size(subject: Subject, server: Server) -> str:
    return _accepted(subject, server, size="8x8")


def unknown_model(subject: Subject, server: Server) -> str:
    return _accepted(subject, server, model="nobody")


def unknown_field(subject: Subject, server: Server) -> str:
    return _accepted(subject, server, num_inference_step=3)


def thumbnail(subject: Subject, server: Server) -> str:
    """Of a video that is ready."""
    id = run_job(server, subject.form(num_inference_steps=2)).video["id"]
    reply = server.http.get(f"/v1/videos/{id}/content", params={"variant": "thumbnail"})
    return f"{reply.status_code}, {reply.headers.get('content-type', 'no type')}"


def own_shift(subject: Subject, server: Server) -> str:
    """Which shift is used if none is asked for, where the checkpoint has 3.0."""
    steps: dict[str, object] = {"num_inference_steps": SHORT_STEPS}
    without = _frames(subject, server, flow_shift=None, **steps)
    for shift in (3.0, 5.0):
        if max_difference(without, _frames(subject, server, flow_shift=shift, **steps)) == 0:
            return f"the video is that of {shift}"
    return "the video is neither that of 3.0 nor that of 5.0"


ACTS: dict[str, Callable[[Subject, Server], str]] = {
    "`progress` of a job of 20 steps": progress,
    f"DELETE of a running job of {LONG_STEPS} steps, another of {SHORT_STEPS} waits": (
        delete_running
    ),
    f"a job of {SHORT_STEPS} steps sent behind one of {LONG_STEPS}": short_behind_long,
    "`size` 100x70": odd_size,
    "`num_frames` 10": odd_frames,
    "`size` 8x8": tiny_size,
    "`model` of another name": unknown_model,
    "a field that there is not, `num_inference_step`": unknown_field,
    "content with `variant=thumbnail`": thumbnail,
    "no `flow_shift`; the checkpoint's is 3.0": own_shift,
}


def kill_rank(subject: Subject, server: Server) -> Seen:
    """What becomes of the jobs, and of later ones, once the last rank is killed."""
    run_job(server, subject.form(num_inference_steps=2))
    lost = _begin_long(subject, server)
    begun = time.perf_counter()
    os.kill(ranks(server)[-1], signal.SIGKILL)
    replies = [server.http.get(f"/v1/videos/{lost}")]

    def failed() -> bool:
        replies[0] = server.http.get(f"/v1/videos/{lost}")
        return _error(replies[0]) is not None

    wait_for(failed, 120, "the end of the job whose rank was killed")
    seconds = time.perf_counter() - begun
    error = _error(replies[0])
    code = error.get("code") if isinstance(error, dict) else None
    return {
        "`kill -9` of a rank: the job that ran": f"failed after {seconds:.0f} s",
        "GET of a failed job: status of HTTP": str(replies[0].status_code),
        "its `error.code`": f"{type(code).__name__} {code!r}",
        f"later jobs, for {AFTER_KILL:.0f} s": _later(subject, server),
    }


def _later(subject: Subject, server: Server) -> str:
    """What becomes of jobs that are sent until one succeeds."""
    begun, tries = time.perf_counter(), list[str]()
    while (seconds := time.perf_counter() - begun) < AFTER_KILL:
        reply = post(server, subject.form(num_inference_steps=2))
        if reply.status_code == 200:
            id = reply.json()["id"]
            wait_for(lambda id=id: _ended(server, id), 120, f"the end of {id}")  # type: ignore[misc]
            if _video(server, id).get("status") == "completed":
                return f"completed, {seconds:.0f} s after the failure was seen"
            tries.append("accepted, then failed")
        else:
            tries.append(f"refused with {reply.status_code}")
        time.sleep(1)
    return f"none completed; {', '.join(dict.fromkeys(tries))}"


def ranks(server: Server) -> list[int]:
    """The process numbers of its ranks."""
    marks = ("engines.local.rank ", "DiffusionWorker")
    return sorted(
        pid for pid, what in server.descendants().items() if any(mark in what for mark in marks)
    )


def restart(subject: Subject) -> str:
    """Whether a finished video is there after the server was killed and started again."""
    with subject.running("one", "restart") as server:
        id = run_job(server, subject.form(num_inference_steps=2)).video["id"]
        server.stop(signal.SIGKILL)
    with subject.running("one", "restart") as server:
        status = server.http.get(f"/v1/videos/{id}/content").status_code
    return "is served" if status == 200 else f"is lost: {status}"


def _begin_long(subject: Subject, server: Server) -> str:
    """A long job that runs; its id."""
    id = create(server, subject.form(num_inference_steps=LONG_STEPS))
    wait_for(lambda: _video(server, id).get("status") == "in_progress", 60, "a job in progress")
    time.sleep(0.5)  # the first step at least has begun
    return id


def _accepted(subject: Subject, server: Server, **changed: object) -> str:
    """What becomes of a request with these fields."""
    reply = post(server, subject.form(num_inference_steps=2, **changed))
    if reply.status_code != 200:
        return f"refused with {reply.status_code}: {_message(reply)}"
    id = reply.json()["id"]
    wait_for(lambda: _ended(server, id), 120, f"the end of {id}")
    last = server.http.get(f"/v1/videos/{id}")
    if (error := _error(last)) is not None:
        return f"accepted, then failed: {_short(str(error.get('message')))}"
    with tempfile.TemporaryDirectory() as folder:
        frames, height, width, _ = read_frames(download(server, id, Path(folder))).shape
    video = last.json()
    return (
        f"accepted; reports {video['size']}, {video['num_frames']} frames, {video['seconds']} s; "
        f"the file has {width}x{height}, {frames} frames"
    )


def _frames(subject: Subject, server: Server, **changed: object) -> Any:
    job = run_job(server, subject.form(**({"num_inference_steps": 4} | changed)))
    with tempfile.TemporaryDirectory() as folder:
        return read_frames(download(server, job.video["id"], Path(folder)))


def _video(server: Server, id: str) -> dict[str, Any]:
    found: dict[str, Any] = server.http.get(f"/v1/videos/{id}").json()
    return found


def _ended(server: Server, id: str) -> bool:
    """Whether a job has: a server may answer for a failed one with another status than 200."""
    reply = server.http.get(f"/v1/videos/{id}")
    return _error(reply) is not None or reply.json().get("status") == "completed"


def _error(reply: httpx.Response) -> dict[str, Any] | None:
    """The error of a failed job, or of the reply."""
    error: dict[str, Any] | None = reply.json().get("error")
    return error


def _message(reply: httpx.Response) -> str:
    error = _error(reply)
    return _short(reply.text if error is None else str(error.get("message")))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[:_SHOWN] + "..."


def tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
