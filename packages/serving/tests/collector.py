"""A collector of traces, at a port of its own: OTLP over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# what the exporter itself needs
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2  # pants: no-infer-dep


class Collector:
    """``requests`` are the path, the kind of content and the content of all that came."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, bytes]] = []

    def messages(self) -> list[trace_service_pb2.ExportTraceServiceRequest]:
        found = []
        for _, _, body in list(self.requests):
            message = trace_service_pb2.ExportTraceServiceRequest()
            message.ParseFromString(body)
            found.append(message)
        return found

    def spans(self) -> list[Any]:
        return [
            span
            for message in self.messages()
            for resource in message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@contextmanager
def collecting() -> Iterator[tuple[str, Collector]]:
    """A collector's address, and what came to it."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kind = self.headers["Content-Type"]
            collector.requests.append((self.path, kind, body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *values: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", collector
        finally:
            server.shutdown()
            thread.join()
