"""Traces where they are asked for. OpenTelemetry, an extra, is imported only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI

from wantrn.model.errors import RequestError

if TYPE_CHECKING:
    from wantrn.serving.jobs.traces import Traces


def start_traces(endpoint: str) -> Traces:
    """The observer that sends traces to ``endpoint``; see ``otlp_traces``.

    Raises:
        RequestError: OpenTelemetry is not installed.
    """
    try:
        from wantrn.serving.jobs.traces import otlp_traces
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise RequestError(
            "trace_endpoint",
            f"got {endpoint}, but OpenTelemetry is not installed: "
            "pip install 'wantrn-serving[trace]'",
        ) from error
    return otlp_traces(endpoint)


def follow_parents(app: FastAPI) -> None:
    """Let traces be part of those that requests name in their header ``traceparent``."""
    from wantrn.serving.http.trace_parent import TraceParent

    app.add_middleware(TraceParent)
