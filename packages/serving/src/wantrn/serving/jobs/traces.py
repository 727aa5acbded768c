"""A trace of every video, for OpenTelemetry. Importing this needs the extra ``trace``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, StatusCode, set_span_in_context

from wantrn.serving import __version__
from wantrn.serving.engines.protocol import Decoding, Event, Finished, Stepped
from wantrn.serving.jobs.job import Job, Status
from wantrn.serving.jobs.manager import CANCELLED
from wantrn.serving.jobs.metrics import EXPERTS

_PATH = "/v1/traces"
_SEND_SECONDS = 5  # that a batch may take to be sent; also bounds the end of the server


@dataclass
class _Trace:
    """A video that has not ended.

    ``phase`` is the one span of its children that is open, since ``begun``, seconds since 1970.
    """

    root: Span
    phase: Span
    begun: float
    expert: int | None = None
    steps: int = 0
    seconds: float = 0.0


class Traces:
    """An ``Observer``. A video's span has one child for each of: the wait, the text and noise, the
    steps of each expert, the decoding, the writing.

    With several slots, steps of other videos lie between those of one: a span of steps is the time
    that passed, and its attribute ``wantrn.seconds`` what the video's own steps took. No prompt is
    in a trace. A video that waits while the server is restarted has its trace from the second
    server alone.

    Args:
        processor: takes the spans that have ended.
        clock: seconds since 1970.
    """

    def __init__(self, processor: SpanProcessor, clock: Callable[[], float] = time.time) -> None:
        resource = Resource.create({"service.name": "wantrn", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("wantrn.serving", __version__)
        self._clock = clock
        self._open: dict[str, _Trace] = {}

    def close(self) -> None:
        """Send what is left, for some seconds at most."""
        self._provider.shutdown()

    def job_changed(self, job: Job) -> None:
        trace = self._open.get(job.id)
        if trace is None:
            trace = self._open[job.id] = self._begin(job)
        if job.status is Status.IN_PROGRESS:
            assert job.started_at is not None, "a job that runs has begun"
            self._next(trace, "text and noise", job.started_at)
        elif job.status.final:
            assert job.ended_at is not None, "a job in a final state has ended"
            self._end(job, job.status.value, job.ended_at)

    def job_removed(self, job: Job) -> None:
        if job.id in self._open:
            self._end(job, "deleted", self._clock())

    def engine_said(self, event: Event) -> None:
        if not isinstance(event, Stepped | Decoding | Finished) or event.id not in self._open:
            return
        trace = self._open[event.id]
        if isinstance(event, Stepped):
            self._stepped(trace, event)
        elif isinstance(event, Decoding):
            self._next(trace, "decode", self._clock())
        else:
            self._finished(trace, event)

    def _begin(self, job: Job) -> _Trace:
        settings = job.settings
        begun = job.created_at
        # in the context of the request: what it says about a trace of the client's is the parent
        root = self._tracer.start_span(
            "video",
            start_time=_ns(begun),
            attributes={
                "wantrn.video.id": job.id,
                "wantrn.model": job.model,
                "wantrn.size": f"{settings.width}x{settings.height}",
                "wantrn.frames": settings.frames,
                "wantrn.steps": settings.steps,
                "wantrn.seed": settings.seed,
            },
        )
        return _Trace(root, self._child(root, "queued", begun), begun)

    def _child(self, root: Span, name: str, at: float) -> Span:
        return self._tracer.start_span(name, set_span_in_context(root), start_time=_ns(at))

    def _next(self, trace: _Trace, name: str, at: float) -> None:
        """End the open phase, and begin another."""
        at = max(at, trace.begun)
        self._close_phase(trace, at)
        trace.phase, trace.begun = self._child(trace.root, name, at), at

    def _close_phase(self, trace: _Trace, at: float) -> None:
        if trace.steps:
            trace.phase.set_attribute("wantrn.steps", trace.steps)
            trace.phase.set_attribute("wantrn.seconds", trace.seconds)
            trace.steps, trace.seconds = 0, 0.0
        trace.phase.end(_ns(max(at, trace.begun)))

    def _stepped(self, trace: _Trace, event: Stepped) -> None:
        if trace.expert != event.expert:
            name = f"steps of {EXPERTS[event.expert]}"
            self._next(trace, name, self._clock() - event.seconds)
            trace.expert = event.expert
        trace.steps += 1
        trace.seconds += event.seconds

    def _finished(self, trace: _Trace, event: Finished) -> None:
        for stage, seconds in event.seconds.items():
            trace.root.set_attribute(f"wantrn.seconds.{stage.replace(' ', '_')}", seconds)
        if "write" in event.seconds:
            self._next(trace, "write", self._clock() - event.seconds["write"])

    def _end(self, job: Job, status: str, at: float) -> None:
        trace = self._open.pop(job.id)
        self._close_phase(trace, at)
        trace.root.set_attribute("wantrn.status", status)
        if job.error is not None:
            trace.root.set_attribute("wantrn.error.code", job.error.code)
            if job.error.code != CANCELLED.code:
                trace.root.set_status(StatusCode.ERROR, job.error.message)
        trace.root.end(_ns(max(at, trace.begun)))


def otlp_traces(endpoint: str) -> Traces:
    """Traces that go, in batches and from a thread, to a collector: OTLP over HTTP.

    ``endpoint`` is the collector's address, to which ``/v1/traces`` is added if it does not end so.
    """
    url = endpoint.rstrip("/")
    url = url if url.endswith(_PATH) else url + _PATH
    return Traces(BatchSpanProcessor(OTLPSpanExporter(endpoint=url, timeout=_SEND_SECONDS)))


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
