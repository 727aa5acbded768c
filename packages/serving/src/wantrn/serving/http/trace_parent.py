"""The trace that a client says its request is part of. Importing this needs the extra ``trace``."""

from __future__ import annotations

from opentelemetry.trace import get_current_span, use_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send


class TraceParent:
    """Carries out each request in the context of its header ``traceparent``, where it has one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._propagator = TraceContextTextMapPropagator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        parent = get_current_span(self._propagator.extract(Headers(scope=scope)))
        with use_span(parent, record_exception=False, set_status_on_exception=False):
            await self._app(scope, receive, send)
