"""Traces of videos: what reaches a collector, and whose parts they are."""

from __future__ import annotations

import asyncio
import builtins
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from collector import collecting
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from scripted_engine import ScriptedEngine, settings_of, settle, tiny_info

from wantrn.model.errors import RequestError
from wantrn.model.info import ModelInfo
from wantrn.serving.engines.protocol import Decoding, Event, Finished, Ready, Started, Stepped
from wantrn.serving.http.app import make_app
from wantrn.serving.http.offer import Offer
from wantrn.serving.jobs.job import Job, JobError, Status
from wantrn.serving.jobs.manager import JobManager
from wantrn.serving.jobs.store import JobStore
from wantrn.serving.jobs.traces import Traces
from wantrn.serving.tracing import follow_parents, start_traces

PROMPT = "a secret red ball"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    return tiny_info(tmp_path_factory.mktemp("tiny"))


class Told:
    """Traces at the hand of a test: its events, at its times."""

    def __init__(self, info: ModelInfo) -> None:
        self.now = 1000.0
        self.exporter = InMemorySpanExporter()
        self.traces = Traces(SimpleSpanProcessor(self.exporter), clock=lambda: self.now)
        self.job = Job("video_1", "tiny", settings_of(info, PROMPT, steps=3), created_at=1000.0)
        self.traces.job_changed(self.job)

    def change(self, status: Status, at: float, error: JobError | None = None) -> None:
        self.now = at
        times = {"started_at": at} if status is Status.IN_PROGRESS else {"ended_at": at}
        self.job = replace(self.job, status=status, error=error, **times)  # type: ignore[arg-type]
        self.traces.job_changed(self.job)

    def say(self, event: Event, at: float) -> None:
        self.now = at
        self.traces.engine_said(event)

    def spans(self) -> dict[str, ReadableSpan]:
        found = {span.name: span for span in self.exporter.get_finished_spans()}
        assert len(found) == len(self.exporter.get_finished_spans())
        return found


def seconds(span: ReadableSpan) -> tuple[float, float]:
    assert span.start_time is not None and span.end_time is not None
    return span.start_time / 1e9, span.end_time / 1e9


def attributes(span: ReadableSpan) -> Mapping[str, Any]:
    assert span.attributes is not None
    return span.attributes


def test_a_video_s_span_has_its_parts_as_children_each_at_its_time(info: ModelInfo) -> None:
    told = Told(info)
    told.change(Status.IN_PROGRESS, 1010.0)
    told.say(Stepped("video_1", 1, 3, 2.0, 0), 1013.0)
    told.say(Stepped("video_1", 2, 3, 2.0, 0), 1018.0)  # another video's step lay between
    told.say(Stepped("video_1", 3, 3, 4.0, 1), 1022.0)
    told.say(Decoding("video_1"), 1023.0)
    stages = {"text and noise": 1.0, "denoise": 8.0, "decode": 2.0, "write": 0.5}
    told.say(Finished("video_1", stages), 1026.0)
    told.change(Status.COMPLETED, 1026.0)
    spans = told.spans()
    assert {name: seconds(span) for name, span in spans.items()} == {
        "video": (1000.0, 1026.0),
        "queued": (1000.0, 1010.0),
        "text and noise": (1010.0, 1011.0),
        "steps of transformer": (1011.0, 1018.0),
        "steps of transformer_2": (1018.0, 1023.0),
        "decode": (1023.0, 1025.5),
        "write": (1025.5, 1026.0),
    }
    root = spans.pop("video")
    assert root.parent is None
    for span in spans.values():
        assert span.parent is not None and root.context is not None
        assert span.parent.span_id == root.context.span_id
    one, two = spans["steps of transformer"], spans["steps of transformer_2"]
    assert attributes(one) == {"wantrn.steps": 2, "wantrn.seconds": 4.0}
    assert attributes(two) == {"wantrn.steps": 1, "wantrn.seconds": 4.0}
    assert attributes(root) == {
        "wantrn.video.id": "video_1",
        "wantrn.model": "tiny",
        "wantrn.size": "64x64",
        "wantrn.frames": 5,
        "wantrn.steps": 3,
        "wantrn.seed": 1,
        "wantrn.status": "completed",
        "wantrn.seconds.text_and_noise": 1.0,
        "wantrn.seconds.denoise": 8.0,
        "wantrn.seconds.decode": 2.0,
        "wantrn.seconds.write": 0.5,
    }


def test_a_video_that_failed_is_an_error_and_one_that_was_cancelled_is_none(
    info: ModelInfo,
) -> None:
    failed, cancelled = Told(info), Told(info)
    failed.change(Status.IN_PROGRESS, 1001.0)
    failed.say(Stepped("video_1", 1, 3, 1.0, 0), 1003.0)
    failed.change(Status.FAILED, 1004.0, JobError("not_finite", "step 2 is not finite"))
    cancelled.change(Status.FAILED, 1002.0, JobError("cancelled", "cancelled by request"))
    root = failed.spans()["video"]
    assert (root.status.status_code, root.status.description) == (
        StatusCode.ERROR,
        "step 2 is not finite",
    )
    assert attributes(root)["wantrn.error.code"] == "not_finite"
    assert seconds(failed.spans()["steps of transformer"]) == (1002.0, 1004.0)
    root = cancelled.spans()["video"]
    assert root.status.status_code is StatusCode.UNSET
    assert attributes(root)["wantrn.error.code"] == "cancelled"
    assert set(cancelled.spans()) == {"video", "queued"}


def test_a_video_that_is_deleted_while_it_runs_has_ended_and_nothing_follows(
    info: ModelInfo,
) -> None:
    told = Told(info)
    told.change(Status.IN_PROGRESS, 1001.0)
    told.now = 1002.0
    told.traces.job_removed(told.job)
    told.say(Stepped("video_1", 1, 3, 1.0, 0), 1003.0)
    told.traces.job_removed(told.job)
    root = told.spans()["video"]
    assert attributes(root)["wantrn.status"] == "deleted"
    assert seconds(root) == (1000.0, 1002.0)
    assert set(told.spans()) == {"video", "queued", "text and noise"}


def test_a_video_that_waited_for_this_server_has_its_trace_from_its_beginning(
    info: ModelInfo,
) -> None:
    """After a restart, a waiting job is first heard of when it begins."""
    told = Told(info)
    other = replace(told.job, id="video_2", status=Status.IN_PROGRESS, started_at=1005.0)
    told.traces.job_changed(other)
    told.traces.job_changed(replace(other, status=Status.COMPLETED, ended_at=1006.0))
    assert seconds(told.spans()["video"]) == (1000.0, 1006.0)
    assert seconds(told.spans()["queued"]) == (1000.0, 1005.0)


def ask(folder: Path, info: ModelInfo, traces: Traces, headers: Sequence[dict[str, str]]) -> None:
    """Have a video made for a request with each of ``headers``."""

    async def main() -> None:
        store, engine = JobStore(folder), ScriptedEngine(info)
        jobs = JobManager(store, engine, "tiny", observers=(traces,))
        app = make_app(jobs, Offer.of(info), 1_000_000)
        follow_parents(app)
        await jobs.start()
        await engine.say(Ready())
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            for each in headers:
                body = {"prompt": PROMPT, "size": "64x64", "num_frames": 5}
                reply = await client.post("/v1/videos", json=body, headers=each)
                id = reply.json()["id"]
                await settle()
                await engine.say(Started(id))
                await engine.say(Stepped(id, 1, 1, 0.01, 0))
                await engine.say(Decoding(id))
                await engine.say(Finished(id, {"decode": 0.0, "write": 0.0}))
        await jobs.stop()
        store.close()

    asyncio.run(main())


@pytest.mark.parametrize("path", ["", "/", "/v1/traces"])
def test_a_collector_gets_the_whole_trace_and_no_prompt(
    tmp_path: Path, info: ModelInfo, path: str
) -> None:
    with collecting() as (url, collector):
        traces = start_traces(url + path)
        ask(tmp_path, info, traces, [{}])
        traces.close()
    assert {(where, kind) for where, kind, _ in collector.requests} == {
        ("/v1/traces", "application/x-protobuf")
    }
    spans = collector.spans()
    names = ["video", "queued", "text and noise", "steps of transformer", "decode", "write"]
    assert sorted(span.name for span in spans) == sorted(names)
    assert len({span.trace_id for span in spans}) == 1
    resource = collector.messages()[0].resource_spans[0]
    service = {item.key: item.value.string_value for item in resource.resource.attributes}
    assert service["service.name"] == "wantrn"
    assert not any(b"secret" in body for _, _, body in collector.requests)


def test_a_request_s_traceparent_is_the_video_s_parent_and_another_request_s_is_not(
    tmp_path: Path, info: ModelInfo
) -> None:
    headers = [{"traceparent": PARENT}, {}, {"traceparent": "00-nonsense-01"}]
    with collecting() as (url, collector):
        traces = start_traces(url)
        ask(tmp_path, info, traces, headers)
        traces.close()
    roots = [span for span in collector.spans() if span.name == "video"]
    assert len(roots) == 3
    followed = [span for span in roots if span.parent_span_id]
    assert len(followed) == 1
    assert followed[0].trace_id.hex() == PARENT.split("-")[1]
    assert followed[0].parent_span_id.hex() == PARENT.split("-")[2]
    assert len({span.trace_id for span in roots}) == 3


def test_a_request_that_is_not_to_be_sampled_leaves_no_trace(
    tmp_path: Path, info: ModelInfo
) -> None:
    with collecting() as (url, collector):
        traces = start_traces(url)
        ask(tmp_path, info, traces, [{"traceparent": PARENT.removesuffix("01") + "00"}])
        traces.close()
    assert collector.spans() == []


def test_a_collector_that_is_gone_stops_nothing(tmp_path: Path, info: ModelInfo) -> None:
    with collecting() as (url, _):
        pass  # nobody listens there any more
    traces = start_traces(url)
    ask(tmp_path, info, traces, [{}])
    traces.close()


def test_without_opentelemetry_traces_are_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real: Callable[..., Any] = builtins.__import__

    def absent(name: str, *others: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *others)

    monkeypatch.delitem(sys.modules, "wantrn.serving.jobs.traces")
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(RequestError, match=r"wantrn-serving\[trace\]") as caught:
        start_traces("http://localhost:4318")
    assert caught.value.field == "trace_endpoint"
