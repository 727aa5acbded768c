"""The log: a line an entry, in both forms, with the job's id and without prompts and keys."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine, settings_of, settle, tiny_info

from wantrn.model.info import ModelInfo
from wantrn.serving.engines.protocol import Finished, Lost, Ready, Started, Stepped
from wantrn.serving.http.app import make_app
from wantrn.serving.http.offer import Offer
from wantrn.serving.jobs.job import Job, JobError, Status, new_id
from wantrn.serving.jobs.log import JobLog
from wantrn.serving.jobs.manager import JobManager
from wantrn.serving.jobs.store import JobStore
from wantrn.serving.logs import configure_logs

SECRET = "swordfish"
PROMPT = "an unmistakable walrus"


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    return tiny_info(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    root, client = logging.getLogger(), logging.getLogger("httpx")
    handlers, level = list(root.handlers), root.level
    client.setLevel(logging.WARNING)  # it logs its requests, and is no part of the server
    yield
    client.setLevel(logging.NOTSET)
    root.handlers = handlers
    root.setLevel(level)


def parse(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_json_is_an_object_a_line_with_time_level_and_fields(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logs("json")
    log = logging.getLogger("wantrn.test")
    log.info("two\nlines of %s", "é", extra={"fields": {"job": "video_1", "took_s": 1.5}})
    log.debug("not shown")
    try:
        raise ValueError("bad\nvalue")
    except ValueError:
        log.exception("it failed")
    one, two = parse(capsys.readouterr().err)
    assert datetime.fromisoformat(one.pop("time")).tzinfo is not None
    assert one == {
        "level": "info",
        "logger": "wantrn.test",
        "message": "two\nlines of é",
        "job": "video_1",
        "took_s": 1.5,
    }
    assert (two["level"], two["message"]) == ("error", "it failed")
    assert two["traceback"].startswith("Traceback") and "ValueError: bad" in two["traceback"]


def test_text_is_a_line_with_its_fields_and_tracebacks_stay_readable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logs("text")
    log = logging.getLogger("wantrn.test")
    log.warning("it is so", extra={"fields": {"job": "video_1", "took_s": 1.5}})
    try:
        raise ValueError("bad")
    except ValueError:
        log.exception("it failed")
    first, second, *trace = capsys.readouterr().err.splitlines()
    assert first.endswith("WARNING wantrn.test: it is so job=video_1 took_s=1.5")
    assert second.endswith("ERROR wantrn.test: it failed")
    assert trace[0].startswith("Traceback") and trace[-1] == "ValueError: bad"


@settings(max_examples=100, deadline=None, database=None)
@given(message=st.text(), value=st.text(), form=st.sampled_from(["text", "json"]))
def test_an_entry_is_one_line_whatever_is_in_it(message: str, value: str, form: str) -> None:
    root = logging.getLogger()
    before = list(root.handlers)
    configure_logs(form)
    (handler,) = root.handlers
    root.handlers = before
    record = logging.LogRecord("wantrn.test", logging.INFO, "", 0, "%s", (message,), None)
    record.fields = {"code": value}
    line = handler.format(record)
    assert len(line.splitlines()) == 1 and line.isprintable()
    if form == "json":
        assert (json.loads(line)["message"], json.loads(line)["code"]) == (message, value)


def test_every_change_of_a_job_is_a_line_with_its_id(
    info: ModelInfo, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logs("json")
    log, id = JobLog(), new_id()
    job = Job(id, "tiny", settings_of(info, PROMPT), created_at=100.0)
    log.job_changed(job)
    running = replace(job, status=Status.IN_PROGRESS, started_at=101.25)
    log.job_changed(running)
    log.job_changed(replace(running, status=Status.COMPLETED, ended_at=104.0))
    error = JobError("not_finite", "step 2 is not finite")
    log.job_changed(replace(running, status=Status.FAILED, ended_at=103.0, error=error))
    log.job_removed(running)
    log.engine_said(Ready())
    log.engine_said(Lost("rank 1 died"))
    log.engine_said(Lost("rank 1 died again", broken=True))
    log.engine_said(Stepped(id, 1, 4, 1.0, 0))  # one a step would be too many
    said = capsys.readouterr().err
    lines = parse(said)
    queued, began, completed, failed, removed, ready, lost, broken = lines
    assert [line.get("job") for line in lines] == [id] * 5 + [None] * 3
    assert (queued["status"], queued["size"]) == ("queued", "64x64")
    assert (queued["frames"], queued["steps"]) == (5, 4)
    assert (began["status"], began["waited_s"]) == ("in_progress", 1.25)
    assert (completed["status"], completed["took_s"]) == ("completed", 2.75)
    assert (failed["level"], failed["code"]) == ("warning", "not_finite")
    assert "step 2 is not finite" in failed["message"]
    assert removed["message"] == "video removed"
    assert ready["level"] == "info" and lost["level"] == broken["level"] == "error"
    assert "rank 1 died" in lost["message"] and "starts again" in lost["message"]
    assert "has given up" in broken["message"]
    assert "walrus" not in said


def ask(folder: Path, info: ModelInfo, requests: list[tuple[str, str, dict[str, Any]]]) -> str:
    """Send requests to an application, have the one video of them made, and return its id."""

    async def main() -> str:
        store, engine = JobStore(folder), ScriptedEngine(info)
        jobs = JobManager(store, engine, "tiny", observers=(JobLog(),))
        app = make_app(jobs, Offer.of(info), 1_000_000, [SECRET])
        await jobs.start()
        await engine.say(Ready())
        transport = httpx.ASGITransport(app)
        headers = {"Authorization": f"Bearer {SECRET}"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://server", headers=headers
        ) as client:
            body = {"prompt": PROMPT, "size": "64x64", "num_frames": 5}
            id: str = (await client.post("/v1/videos", json=body)).json()["id"]
            await settle()
            await engine.say(Started(id))
            await engine.say(Finished(id, {}))
            for method, path, options in requests:
                await client.request(method, path.replace("ID", id), **options)
        await jobs.stop()
        store.close()
        return id

    return asyncio.run(main())


def access(text: str) -> list[dict[str, Any]]:
    return [line for line in parse(text) if line["logger"] == "wantrn.access"]


def test_every_request_is_a_line_with_the_video_that_it_made_or_asked_for(
    tmp_path: Path, info: ModelInfo, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logs("json")
    id = ask(
        tmp_path,
        info,
        [
            ("GET", "/v1/videos/ID", {}),
            ("GET", "/v1/videos", {}),
            ("POST", "/v1/videos/ID/cancel", {}),
            ("DELETE", "/v1/videos/ID", {}),
            ("GET", "/health", {}),
            ("GET", "/nowhere", {}),
        ],
    )
    lines = access(capsys.readouterr().err)
    one = "/v1/videos/{video_id}"
    shown = [tuple(line.get(key) for key in ("method", "route", "status", "job")) for line in lines]
    assert shown == [
        ("POST", "/v1/videos", 200, id),
        ("GET", one, 200, id),
        ("GET", "/v1/videos", 200, None),
        ("POST", f"{one}/cancel", 409, id),
        ("DELETE", one, 200, id),
        ("GET", "/health", 200, None),
        ("GET", "other", 404, None),
    ]
    assert all(isinstance(line["ms"], float) and line["ms"] >= 0 for line in lines)


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_prompt_no_key_and_no_path_of_a_client_is_in_the_log(
    tmp_path: Path, info: ModelInfo, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    configure_logs(form)
    forged = "/v1/videos/x%0A2026-01-01%20INFO%20forged"
    ask(
        tmp_path,
        info,
        [
            ("GET", forged, {}),
            ("GET", "/forged", {}),
            ("GET", "/v1/videos?after=forged", {}),
            ("POST", "/v1/videos", {"json": {"prompt": PROMPT, "size": PROMPT}}),
            ("POST", "/v1/videos", {"json": {"prompt": PROMPT, PROMPT: 1}}),
            ("GET", "/v1/models", {"headers": {"Authorization": f"Bearer {SECRET}2"}}),
        ],
    )
    said = capsys.readouterr().err
    assert len(said.splitlines()) >= 7
    assert not any(word in said for word in ("walrus", SECRET, "forged"))
