"""The web application: routes, limits and the jobs' beginning and end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from wantrn.model.schedulers import SCHEDULER_NAMES, checkpoint_shift, scheduler_name
from wantrn.serving import __version__
from wantrn.serving.engines.protocol import Health
from wantrn.serving.http.errors import add_error_handlers
from wantrn.serving.http.limits import ApiKeys, BodyLimit
from wantrn.serving.http.offer import Offer
from wantrn.serving.http.videos import VideoRoutes
from wantrn.serving.http.watch import Answered, RequestMetrics, Watch, log_request
from wantrn.serving.jobs.manager import JobManager
from wantrn.serving.jobs.metrics import CONTENT_TYPE, Metrics
from wantrn.serving.web.routes import web_router


def make_app(
    jobs: JobManager,
    offer: Offer,
    upload_bytes: int,
    api_keys: Sequence[str] = (),
    metrics: Metrics | None = None,
) -> FastAPI:
    """The application over ``jobs``, which it starts and stops.

    ``upload_bytes`` is the most that a request may send. ``api_keys`` are those that may use
    ``/v1/``; everybody may if there are none. ``metrics``, which also observe ``jobs``, are at
    ``/metrics``.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await jobs.start()
        try:
            yield
        finally:
            await jobs.stop()

    app = FastAPI(
        title="wantrn",
        version=__version__,
        description="Videos from text and pictures.",
        lifespan=lifespan,
        docs_url=None,  # these load scripts from elsewhere
        redoc_url=None,
    )
    add_error_handlers(app)
    app.include_router(VideoRoutes(jobs, offer).router())
    app.include_router(web_router())
    _add_state(app, jobs, offer)
    app.add_middleware(BodyLimit, most=upload_bytes)
    if api_keys:
        app.add_middleware(ApiKeys, keys=api_keys)
    listeners: list[Callable[[Answered], None]] = [log_request]
    if metrics is not None:
        _add_metrics(app, jobs, metrics)
        listeners.append(RequestMetrics(metrics.registry))
    app.add_middleware(Watch, listeners=listeners)  # the last is the first to see a request
    return app


def _add_metrics(app: FastAPI, jobs: JobManager, metrics: Metrics) -> None:
    @app.get("/metrics", response_class=PlainTextResponse)
    async def show() -> Response:
        """What Prometheus collects."""
        return Response(await metrics.text(jobs.waiting, jobs.engine), media_type=CONTENT_TYPE)


def _add_state(app: FastAPI, jobs: JobManager, offer: Offer) -> None:
    @app.get("/health", responses={503: {"description": "no job is taken now"}})
    async def health() -> JSONResponse:
        """200 while jobs are taken."""
        now = jobs.engine.health
        body = {"status": now.value}
        return JSONResponse(body, 200 if now is Health.READY else 503)

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @app.get("/v1/models")
    async def models() -> dict[str, object]:
        """The model of this server, with the defaults of its videos."""
        return {"object": "list", "data": [_model(jobs, offer)]}


def _model(jobs: JobManager, offer: Offer) -> dict[str, object]:
    info = jobs.engine.info
    defaults = info.defaults
    return {
        "id": jobs.model,
        "object": "model",
        "created": 0,
        "owned_by": "wantrn",
        "kind": info.kind.value,
        "experts": len(info.experts),
        "size_multiple": info.size_multiple,
        "frames_multiple": info.temporal_stride,
        "schedulers": list(SCHEDULER_NAMES),
        "loras": offer.loras.names(),
        "buckets": offer.shapes.names(),
        "defaults": {
            "size": f"{defaults.size[0]}x{defaults.size[1]}",
            "num_frames": defaults.frames,
            "fps": defaults.fps,
            "num_inference_steps": defaults.steps,
            "guidance_scale": defaults.guidance,
            "guidance_scale_2": defaults.guidance_2,
            "flow_shift": checkpoint_shift(info.scheduler_config),
            "scheduler": scheduler_name(info.scheduler_config),
        },
    }
