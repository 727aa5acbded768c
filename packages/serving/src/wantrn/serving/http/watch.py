"""Tells of every request that was answered: which route, with what status, how long it took."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wantrn.serving.jobs.job import is_id

_log = logging.getLogger("wantrn.access")

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30)

OTHER = "other"
"""What stands for all other paths, and for methods that HTTP does not have."""


MADE = "video"
"""The name in a request's ``state`` under which a route leaves the id of the video it has made."""


@dataclass(frozen=True)
class Answered:
    """A request, and its reply.

    Attributes:
        method: of HTTP's, or ``OTHER``.
        route: the path as the interface has it (``/v1/videos/{video_id}``), never as it was sent;
            ``OTHER`` if no route of the interface was reached, as with a wrong key.
        seconds: until the last byte was passed on.
        video: the id of the video that was made or asked for.
    """

    method: str
    route: str
    status: int
    seconds: float
    video: str | None = None


class Watch:
    """Passes requests on, and says what became of them to all who listen."""

    def __init__(self, app: ASGIApp, listeners: Sequence[Callable[[Answered], None]]) -> None:
        self._app = app
        self._listeners = listeners

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500  # also of what raises before a reply was begun
        begun = time.perf_counter()

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            self._tell(scope, status, time.perf_counter() - begun)

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else OTHER
        route = getattr(scope.get("route"), "path", OTHER)
        named = scope.get("path_params", {}).get("video_id", "")
        video = scope.get("state", {}).get(MADE) or (named if is_id(named) else None)
        answered = Answered(method, route, status, seconds, video)
        for listener in self._listeners:
            listener(answered)


def log_request(answered: Answered) -> None:
    """A line of the log. Paths, queries and headers are not in it: they may hold anything."""
    fields: dict[str, str | float] = {
        "method": answered.method,
        "route": answered.route,
        "status": answered.status,
        "ms": round(answered.seconds * 1000, 1),
    }
    if answered.video is not None:
        fields["job"] = answered.video
    _log.info("request", extra={"fields": fields})


class RequestMetrics:
    """Counts requests in ``registry``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ["method", "route"]
        self._count = Counter(
            "wantrn_http_requests", "Requests.", [*labels, "status"], registry=registry
        )
        self._seconds = Histogram(
            "wantrn_http_request_seconds",
            "Time of requests, to the last byte of the reply.",
            labels,
            buckets=_SECONDS,
            registry=registry,
        )

    def __call__(self, answered: Answered) -> None:
        labels = answered.method, answered.route
        self._count.labels(*labels, str(answered.status)).inc()
        self._seconds.labels(*labels).observe(answered.seconds)
