"""Requests that nobody would think of, drawn from the document of the interface."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from http_server import HttpServer, serving
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.strategies import SearchStrategy
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from scripted_engine import tiny_info

from wantrn.serving.jobs.limits import Limits

CHECKS = [
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
    response_headers_conformance,
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    info = tiny_info(tmp_path_factory.mktemp("tiny"))
    store = tmp_path_factory.mktemp("store")
    with serving(store, info, limits=Limits(queued=10**6)) as made:
        yield made


def test_no_request_is_more_than_the_server_can_take(server: HttpServer) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations: list[Any] = [found.ok() for found in list[Any](schema.get_all_operations())]
    assert {operation.label for operation in operations} >= {
        "POST /v1/videos",
        "GET /v1/videos/{video_id}",
        "DELETE /v1/videos/{video_id}",
    }
    for operation in operations:
        for mode in GenerationMode:
            _try(server, operation.as_strategy(generation_mode=mode))


def _try(server: HttpServer, cases: SearchStrategy[schemathesis.Case[Any]]) -> None:
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=cases)
    def each(case: schemathesis.Case[Any]) -> None:
        response = case.call(base_url=server.url, timeout=30)
        case.validate_response(response, checks=CHECKS)
        assert "Traceback" not in response.text

    with contextlib.suppress(Unsatisfiable):  # nothing about the operation can be wrong
        each()


def test_nothing_was_written_but_for_jobs(server: HttpServer) -> None:
    """After all of the above."""
    known = {job.id for job in server.call(all_jobs(server))}
    assert {path.name for path in (server.store.folder / "jobs").iterdir()} == known
    assert {path.name for path in server.store.folder.iterdir()} <= {
        "jobs",
        "lock",
        "jobs.sqlite3",
        "jobs.sqlite3-wal",
        "jobs.sqlite3-shm",
    }


async def all_jobs(server: HttpServer) -> list[object]:
    return list(server.jobs.page(10**6, None, True))
