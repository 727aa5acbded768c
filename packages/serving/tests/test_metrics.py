"""Metrics, by what Prometheus reads: after events, after real jobs, and after any requests."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from scripted_engine import ScriptedEngine, settings_of, settle, tiny_info

from wantrn.model.info import ModelInfo
from wantrn.serving.engines.protocol import (
    Cancelled,
    Failed,
    Finished,
    Lost,
    Ready,
    Started,
    Stepped,
)
from wantrn.serving.http.app import make_app
from wantrn.serving.http.offer import Offer
from wantrn.serving.jobs.job import Job, JobError, Status
from wantrn.serving.jobs.manager import JobManager
from wantrn.serving.jobs.metrics import CONTENT_TYPE, Metrics
from wantrn.serving.jobs.store import JobStore
from wantrn.serving.shapes import Shape

Values = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parse(text: bytes) -> Values:
    """Every sample by its name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def value(values: Values, name: str, **labels: str) -> float | None:
    return values.get((name, frozenset(labels.items())))


@dataclass
class House:
    """Jobs of a scripted engine, and the application over them."""

    engine: ScriptedEngine
    jobs: JobManager
    metrics: Metrics
    client: httpx.AsyncClient

    async def scrape(self) -> Values:
        reply = await self.client.get("/metrics")
        assert reply.status_code == 200
        assert reply.headers["content-type"] == CONTENT_TYPE
        return parse(reply.content)

    async def submit(self) -> Job:
        job = self.jobs.submit(settings_of(self.engine.info))
        await settle()
        return job


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    return tiny_info(tmp_path_factory.mktemp("tiny"))


@asynccontextmanager
async def house(folder: Path, info: ModelInfo) -> AsyncIterator[House]:
    store, engine = JobStore(folder), ScriptedEngine(info, slots=1)
    metrics = Metrics(store)
    jobs = JobManager(store, engine, "tiny", observers=(metrics,))
    app = make_app(jobs, Offer.of(info), 1_000_000, ["secret"], metrics)
    transport = httpx.ASGITransport(app)
    key = {"Authorization": "Bearer secret"}
    try:
        async with httpx.AsyncClient(
            transport=transport, base_url="http://server", headers=key
        ) as client:
            await jobs.start()
            await engine.say(Ready())
            yield House(engine, jobs, metrics, client)
            await jobs.stop()
    finally:
        store.close()


def run(folder: Path, info: ModelInfo, script: Callable[[House], Awaitable[None]]) -> None:
    async def main() -> None:
        async with house(folder, info) as made:
            await script(made)

    asyncio.run(main())


def test_jobs_are_counted_as_they_wait_run_and_end(tmp_path: Path, info: ModelInfo) -> None:
    async def script(house: House) -> None:
        one, two, three = [await house.submit() for _ in range(3)]
        values = await house.scrape()
        assert value(values, "wantrn_queue_depth") == 2  # one has the only slot
        assert value(values, "wantrn_jobs", status="queued") == 3
        assert value(values, "wantrn_engine_slots") == 1

        await house.engine.say(Started(one.id))
        for step, expert in ((1, 0), (2, 0), (3, 0), (4, 1)):
            await house.engine.say(Stepped(one.id, step, 4, 2.0, expert, reused=step == 3))
        values = await house.scrape()
        assert value(values, "wantrn_jobs", status="in_progress") == 1
        assert value(values, "wantrn_queue_wait_seconds_count") == 1
        assert value(values, "wantrn_steps_total", expert="transformer") == 3
        assert value(values, "wantrn_steps_total", expert="transformer_2") == 1
        assert value(values, "wantrn_steps_reused_total", expert="transformer") == 1
        assert value(values, "wantrn_steps_reused_total", expert="transformer_2") == 0
        name = "wantrn_step_seconds"
        assert value(values, f"{name}_sum", expert="transformer") == 6
        assert value(values, f"{name}_bucket", expert="transformer", le="1.0") == 0
        assert value(values, f"{name}_bucket", expert="transformer", le="2.5") == 3

        await house.engine.say(Finished(one.id, {"denoise": 8.0, "decode": 0.25}))
        await house.engine.say(Started(two.id))
        await house.engine.say(Failed(two.id, "not_finite", "step 1 has no finite values"))
        await house.engine.say(Started(three.id))
        await house.jobs.cancel(three)
        await house.engine.say(Cancelled(three.id))
        values = await house.scrape()
        assert value(values, "wantrn_jobs", status="completed") == 1
        assert value(values, "wantrn_jobs", status="failed") == 2
        ended = "wantrn_jobs_ended_total"
        assert value(values, ended, status="completed", code="none") == 1
        assert value(values, ended, status="failed", code="not_finite") == 1
        assert value(values, ended, status="failed", code="cancelled") == 1
        assert value(values, "wantrn_jobs_cancelled_total", status="in_progress") == 1
        assert value(values, "wantrn_stage_seconds_sum", stage="denoise") == 8
        assert value(values, "wantrn_stage_seconds_sum", stage="decode") == 0.25

    run(tmp_path, info, script)


def test_the_engine_s_losses_are_counted_and_its_health_is_one_of_four(
    tmp_path: Path, info: ModelInfo
) -> None:
    async def script(house: House) -> None:
        async def healths() -> dict[str, float]:
            values = await house.scrape()
            return {
                state: value(values, "wantrn_engine_health", state=state) or 0.0
                for state in ("starting", "ready", "restarting", "broken")
            }

        assert await healths() == {"starting": 0, "ready": 1, "restarting": 0, "broken": 0}
        running, waiting = await house.submit(), await house.submit()
        await house.engine.say(Started(running.id))
        await house.engine.say(Lost("rank 1 died"))
        assert await healths() == {"starting": 0, "ready": 0, "restarting": 1, "broken": 0}
        await house.engine.say(Ready())
        await house.engine.say(Lost("rank 1 died again", broken=True))
        assert await healths() == {"starting": 0, "ready": 0, "restarting": 0, "broken": 1}
        values = await house.scrape()
        # the second time it did not start again
        assert value(values, "wantrn_engine_restarts_total") == 1
        ended = "wantrn_jobs_ended_total"
        assert value(values, ended, status="failed", code="ranks_lost") == 1
        assert value(values, ended, status="failed", code="engine_broken") == 1
        assert waiting.id != running.id

    run(tmp_path, info, script)


def test_what_is_deleted_counts_once_and_as_cancelled_only_before_its_end(
    tmp_path: Path, info: ModelInfo
) -> None:
    async def script(house: House) -> None:
        done, running, waiting = [await house.submit() for _ in range(3)]
        await house.engine.say(Started(done.id))
        await house.engine.say(Finished(done.id, {}))
        await house.engine.say(Started(running.id))
        for job in (done, running, waiting):
            now = house.jobs.get(job.id)
            assert now is not None
            await house.jobs.delete(now)
        await house.engine.say(Cancelled(running.id))
        values = await house.scrape()
        assert value(values, "wantrn_videos_removed_total", reason="deleted") == 3
        assert value(values, "wantrn_videos_removed_total", reason="expired") is None
        assert value(values, "wantrn_jobs_cancelled_total", status="in_progress") == 1
        assert value(values, "wantrn_jobs_cancelled_total", status="queued") == 1
        ended = {key for key in values if key[0] == "wantrn_jobs_ended_total"}
        assert ended == {
            ("wantrn_jobs_ended_total", frozenset({("status", "completed"), ("code", "none")}))
        }

    run(tmp_path, info, script)


def test_a_video_whose_time_is_over_is_expired(tmp_path: Path, info: ModelInfo) -> None:
    store = JobStore(tmp_path)
    metrics = Metrics(store, clock=lambda: 1000.0)
    job = Job("video_1", "tiny", settings_of(info), 0.0, Status.COMPLETED, 1.0, 2.0, 999.0)
    metrics.job_removed(job)
    metrics.job_removed(replace(job, expires_at=1001.0))
    values = parse(asyncio.run(metrics.text(0, ScriptedEngine(info))))
    store.close()
    assert value(values, "wantrn_videos_removed_total", reason="expired") == 1
    assert value(values, "wantrn_videos_removed_total", reason="deleted") == 1


def test_a_job_that_waited_waited_as_long_as_its_record_says(
    tmp_path: Path, info: ModelInfo
) -> None:
    store = JobStore(tmp_path)
    metrics = Metrics(store)
    job = Job("video_1", "tiny", settings_of(info), created_at=100.0)
    metrics.job_changed(job)
    metrics.job_changed(replace(job, status=Status.IN_PROGRESS, started_at=130.0))
    error = JobError("cancelled", "cancelled by request")
    metrics.job_changed(replace(job, id="video_2", status=Status.FAILED, error=error))
    values = parse(asyncio.run(metrics.text(0, ScriptedEngine(info))))
    store.close()
    assert value(values, "wantrn_queue_wait_seconds_sum") == 30
    assert value(values, "wantrn_queue_wait_seconds_bucket", le="15.0") == 0
    assert value(values, "wantrn_queue_wait_seconds_bucket", le="60.0") == 1
    assert value(values, "wantrn_jobs_cancelled_total", status="queued") == 1


def test_a_shape_is_new_until_these_ranks_have_made_it(tmp_path: Path, info: ModelInfo) -> None:
    store = JobStore(tmp_path)
    metrics = Metrics(store, warmed_up=[Shape(64, 32, 5)])

    def make(width: int, frames: int, end: Status = Status.COMPLETED) -> None:
        chosen = replace(settings_of(info), width=width, height=32, frames=frames)
        job = Job("video_1", "tiny", chosen, created_at=100.0)
        metrics.job_changed(job)
        metrics.job_changed(replace(job, status=Status.IN_PROGRESS, started_at=101.0))
        error = JobError("not_finite", "step 1") if end is Status.FAILED else None
        metrics.job_changed(replace(job, status=end, error=error, started_at=101.0))

    def begun() -> tuple[float | None, ...]:
        values = parse(asyncio.run(metrics.text(0, ScriptedEngine(info))))
        name = "wantrn_jobs_begun_total"
        return tuple(value(values, name, shape=shape) for shape in ("known", "new"))

    assert begun() == (0, 0)
    make(64, 5)  # warmed up
    assert begun() == (1, 0)
    make(64, 9, Status.FAILED)
    make(64, 9)  # the first of it was not made to its end
    assert begun() == (1, 2)
    make(64, 9)
    assert begun() == (2, 2)
    metrics.engine_said(Lost("rank 0 died"))  # the next ranks have made what they warm up
    make(64, 9)
    make(64, 5)
    assert begun() == (3, 3)
    store.close()


def test_the_bytes_are_those_of_the_store_s_files(tmp_path: Path, info: ModelInfo) -> None:
    async def script(house: House) -> None:
        before = value(await house.scrape(), "wantrn_store_bytes")
        assert before is not None and before > 0  # the records
        job = await house.submit()
        house.jobs.video(job).write_bytes(bytes(5_000_000))
        after = value(await house.scrape(), "wantrn_store_bytes")
        assert after is not None and after - before >= 5_000_000

    run(tmp_path, info, script)


def test_two_servers_of_one_process_count_apart_and_nothing_is_global(
    tmp_path: Path, info: ModelInfo
) -> None:
    stores = [JobStore(tmp_path / name) for name in ("a", "b")]
    one, two = [Metrics(store) for store in stores]
    one.engine_said(Stepped("video_1", 1, 4, 1.0, 0))
    engine = ScriptedEngine(info)
    first, second = [parse(asyncio.run(each.text(0, engine))) for each in (one, two)]
    for store in stores:
        store.close()
    assert value(first, "wantrn_steps_total", expert="transformer") == 1
    assert value(second, "wantrn_steps_total", expert="transformer") is None
    assert b"wantrn_" not in generate_latest(REGISTRY)


def test_requests_are_counted_by_route_whatever_paths_and_methods_are_sent(
    tmp_path: Path, info: ModelInfo
) -> None:
    """Anybody may send any path: none of it may become a label, of which there would be no end."""
    word = st.text("abcxyz0123456789_-.~%", min_size=1, max_size=12)
    path = st.lists(word, max_size=4).map("/".join)
    known = st.sampled_from(["/v1/videos/", "/v1/videos", "/health", "/v1/models", "/metrics", "/"])
    method = st.sampled_from(["GET", "POST", "DELETE", "PUT", "PURGE", "BREW"])

    async def script(house: House) -> None:
        async def send(requests: list[tuple[str, str, str]]) -> None:
            for verb, start, rest in requests:
                await house.client.request(verb, start + rest)

        loop = asyncio.get_running_loop()

        @settings(max_examples=60, deadline=None, database=None)
        @given(st.lists(st.tuples(method, known, path), min_size=1, max_size=3))
        def send_any(requests: list[tuple[str, str, str]]) -> None:
            asyncio.run_coroutine_threadsafe(send(requests), loop).result(30)

        await asyncio.to_thread(send_any)
        await send([("GET", "/v1/videos/", "abc"), ("BREW", "/health", "")])
        document = (await house.client.get("/openapi.json")).json()
        values = await house.scrape()
        labels = [dict(key[1]) for key in values if key[0] == "wantrn_http_requests_total"]
        page = {"/", "/web/{name}"}  # which is no part of the interface
        assert {each["route"] for each in labels} <= {*document["paths"], *page, "other"}
        assert {each["method"] for each in labels} <= {"GET", "POST", "DELETE", "PUT", "other"}
        brewed = {"route": "/health", "method": "other", "status": "405"}
        assert brewed in labels
        assert {"route": "/v1/videos/{video_id}", "method": "GET", "status": "404"} in labels

    run(tmp_path, info, script)


def test_a_request_has_its_route_its_status_and_its_time(tmp_path: Path, info: ModelInfo) -> None:
    async def script(house: House) -> None:
        job = await house.submit()
        for _ in range(3):
            assert (await house.client.get(f"/v1/videos/{job.id}")).status_code == 200
        assert (await house.client.get("/v1/videos/none")).status_code == 404
        assert (await house.client.post("/v1/videos", json={})).status_code == 400
        stranger = {"Authorization": "Bearer other"}
        assert (await house.client.get("/v1/models", headers=stranger)).status_code == 401
        values = await house.scrape()
        one, name = "/v1/videos/{video_id}", "wantrn_http_requests_total"
        assert value(values, name, method="GET", route=one, status="200") == 3
        assert value(values, name, method="GET", route=one, status="404") == 1
        assert value(values, name, method="POST", route="/v1/videos", status="400") == 1
        assert value(values, name, method="GET", route="other", status="401") == 1
        time = "wantrn_http_request_seconds"
        assert value(values, f"{time}_count", method="GET", route=one) == 4
        assert (value(values, f"{time}_sum", method="GET", route=one) or 0) > 0

    run(tmp_path, info, script)


DASHBOARD = json.loads(
    (Path(__file__).resolve().parents[3] / "docs" / "grafana-dashboard.json").read_text()
)
QUERIES = [target for panel in DASHBOARD["panels"] for target in panel["targets"]]
WORD = r"[A-Za-z_:][A-Za-z0-9_:]*"


@dataclass(frozen=True)
class Query:
    """What a PromQL expression names: metrics, with the labels that it selects by, and groups."""

    metrics: dict[str, set[str]]
    groups: set[str]

    @classmethod
    def parse(cls, text: str) -> Query:
        groups = set()

        def group(match: re.Match[str]) -> str:
            groups.update(re.findall(WORD, match[1]))
            return " "

        text = re.sub(r'"[^"]*"', '""', text)
        text = re.sub(r"\[[^]]*\]", "", text)
        text = re.sub(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", group, text)
        metrics: dict[str, set[str]] = {}
        for name, labels in re.findall(rf"({WORD})(?:\s*\{{([^}}]*)\}})?(?!\s*\(|\w)", text):
            metrics.setdefault(name, set()).update(
                re.findall(rf"({WORD})\s*(?:=~|!~|!=|=)", labels)
            )
        return cls(metrics, groups)


def labels_of(values: Values) -> dict[str, set[str]]:
    """The labels of every sample, by its name."""
    found: dict[str, set[str]] = {}
    for name, labels in values:
        found.setdefault(name, set()).update(label for label, _ in labels)
    return found


def test_a_query_s_metrics_and_labels_are_found() -> None:
    text = 'histogram_quantile(0.5, sum by (le, a) (rate(x_bucket{i=~"$i (y)", c!="d"}[5m]))) / y_z'
    query = Query.parse(text)
    assert query.metrics == {"x_bucket": {"i", "c"}, "y_z": set()}
    assert query.groups == {"le", "a"}


def test_the_dashboard_asks_for_metrics_and_labels_that_there_are(
    tmp_path: Path, info: ModelInfo
) -> None:
    """After a server has done a little of everything, so that each metric has a sample."""

    async def script(house: House) -> None:
        one, two = await house.submit(), await house.submit()
        await house.engine.say(Started(one.id))
        await house.engine.say(Stepped(one.id, 1, 1, 1.0, 0))
        await house.engine.say(Finished(one.id, {"decode": 1.0}))
        await house.jobs.cancel(two)
        await house.engine.say(Cancelled(two.id))
        await house.jobs.delete(two)
        await house.engine.say(Lost("a rank died"))
        await house.client.get("/health")
        there = labels_of(await house.scrape())
        for target in QUERIES:
            query = Query.parse(target["expr"])
            assert query.metrics, target["expr"]
            for name, selected in query.metrics.items():
                assert name in there, name
                known = there[name] | {"instance"}  # which Prometheus adds
                assert selected | query.groups <= known, target["expr"]
            shown = set(re.findall(r"\{\{\s*(\w+)\s*\}\}", target["legendFormat"]))
            assert shown <= query.groups, target["expr"]
        asked = {name for target in QUERIES for name in Query.parse(target["expr"]).metrics}
        families = {re.sub("_(total|bucket|sum|count|created)$", "", name) for name in there}
        shown = {re.sub("_(total|bucket|sum|count)$", "", name) for name in asked}
        assert shown == families, "every metric is on the dashboard"

    run(tmp_path, info, script)


def test_the_dashboard_s_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + right, place["y"] + down)
            for right in range(place["w"])
            for down in range(place["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
