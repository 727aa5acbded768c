"""``wantrn serve``: the videos API over an engine, until a signal ends it."""

from __future__ import annotations

import asyncio
import socket
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import uvicorn

from wantrn.model.errors import RequestError
from wantrn.serving.deployment import Deployment, read_deployment
from wantrn.serving.engines.choose import make_engine
from wantrn.serving.engines.protocol import Engine, Event, Lost, Ready
from wantrn.serving.features import describe_features
from wantrn.serving.http.app import make_app
from wantrn.serving.http.offer import Offer
from wantrn.serving.jobs.job import Job
from wantrn.serving.jobs.log import JobLog
from wantrn.serving.jobs.manager import JobManager
from wantrn.serving.jobs.metrics import Metrics
from wantrn.serving.jobs.observer import Observer
from wantrn.serving.jobs.store import JobStore, StoreError
from wantrn.serving.logs import configure_logs
from wantrn.serving.model_folder import model_folder
from wantrn.serving.table import aligned
from wantrn.serving.tracing import follow_parents, start_traces

_GRACE_SECONDS = 5  # that open requests have to end


def serve(config: Path | None, given: dict[str, Any]) -> int:
    """Serve until SIGINT or SIGTERM; the exit status.

    Args:
        config: a deployment's file.
        given: what stands over it, by the names in ``Deployment``.

    Raises:
        RequestError: an option that cannot be, by name.
        CheckpointError: the model cannot be read.
    """
    deployment = read_deployment(config, given)
    keys = _api_keys(deployment.api_keys_file)
    folder = model_folder(deployment.model)
    engine = make_engine(deployment, folder)
    offer = Offer.of(
        engine.info, deployment.loras, deployment.buckets, deployment.limits.video_pixels
    )
    name = deployment.name or folder.resolve().name
    traces = None if deployment.trace is None else start_traces(deployment.trace.endpoint)
    listening = _listen(deployment)
    try:
        store = JobStore(deployment.store)
    except StoreError as error:
        listening.close()
        raise RequestError("store", str(error).removeprefix("store: ")) from error
    try:
        configure_logs(deployment.log)
        _announce(deployment, name, engine, listening)
        watch = _FirstStart()
        metrics = Metrics(store, warmed_up=deployment.buckets)
        observers: list[Observer] = [JobLog(), metrics, watch]
        if traces is not None:
            observers.append(traces)
        jobs = JobManager(store, engine, name, deployment.limits, observers)
        app = make_app(jobs, offer, deployment.limits.upload_bytes, keys, metrics)
        if traces is not None:
            follow_parents(app)
        http = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        server = uvicorn.Server(http)
        watch.server = server
        asyncio.run(server.serve(sockets=[listening]))
    finally:
        store.close()
        listening.close()
        if traces is not None:
            traces.close()
    if watch.reason is not None:
        print(f"wantrn serve: failed: {watch.reason}", file=sys.stderr)
        return 1
    return 0


class _FirstStart:
    """Ends the server if its engine never becomes ready: what is wrong then is its configuration.

    An engine that gives up later leaves a server that says so, and still has its videos.
    """

    def __init__(self) -> None:
        self.server: uvicorn.Server | None = None
        self.reason: str | None = None
        self._was_ready = False

    def engine_said(self, event: Event) -> None:
        if isinstance(event, Ready):
            self._was_ready = True
        elif isinstance(event, Lost) and event.broken and not self._was_ready:
            self.reason = event.reason
            if self.server is not None:
                self.server.should_exit = True

    def job_changed(self, job: Job) -> None:
        pass

    def job_removed(self, job: Job) -> None:
        pass


def _api_keys(file: Path | None) -> list[str]:
    if file is None:
        return []
    try:
        keys = file.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError("api_keys_file", f"{file} cannot be read: {error}") from error
    if not keys:
        raise RequestError("api_keys_file", f"{file} has no key")
    return keys


def _listen(deployment: Deployment) -> socket.socket:
    try:
        return socket.create_server((deployment.host, deployment.port))
    except OSError as error:
        raise RequestError(
            "port", f"{deployment.host}:{deployment.port} cannot be listened at: {error.strerror}"
        ) from error


def _announce(deployment: Deployment, name: str, engine: Engine, listening: socket.socket) -> None:
    """Standard error has the effective configuration, standard output the address."""
    if deployment.model is None:
        print(
            "No model is given: this is a tiny one, which knows coloured shapes that move.",
            file=sys.stderr,
        )
    described = {
        "name": name,
        **engine.describe(),
        **describe_features(deployment, engine.info),
        "slots": deployment.slots,
        "buckets": ", ".join(map(str, deployment.buckets)) or "none: all shapes",
        "loras": str(deployment.loras) if deployment.loras else "none",
        "threads": deployment.threads or "even share",
        "store": str(deployment.store),
        "api keys": "needed" if deployment.api_keys_file else "none",
        "traces": deployment.trace.endpoint if deployment.trace else "none",
        **{
            field.name.replace("_", " "): getattr(deployment.limits, field.name)
            for field in fields(deployment.limits)
        },
    }
    print(aligned(described), file=sys.stderr)
    host, port = listening.getsockname()[:2]
    print(f"http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
