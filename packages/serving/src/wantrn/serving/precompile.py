"""``wantrn precompile``: what a server's first start would wait for, done before."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from wantrn.model.errors import RequestError
from wantrn.serving.deployment import read_deployment
from wantrn.serving.engines.choose import make_engine
from wantrn.serving.engines.protocol import Engine, Lost, Ready
from wantrn.serving.logs import configure_logs
from wantrn.serving.model_folder import model_folder


def precompile(config: Path | None, given: dict[str, Any]) -> int:
    """Make a video of each bucket on the deployment's ranks, and end; the exit status.

    Raises:
        RequestError: an option that cannot be, by name; there are no buckets.
        CheckpointError: the model cannot be read.
    """
    deployment = read_deployment(config, given)
    if not deployment.buckets:
        raise RequestError("buckets", "there must be at least one, got none")
    engine = make_engine(deployment, model_folder(deployment.model))
    configure_logs(deployment.log)
    begun = time.monotonic()
    failure = asyncio.run(_until_ready(engine))
    if failure is not None:
        print(f"wantrn precompile: failed: {failure}", file=sys.stderr)
        return 1
    count, seconds = len(deployment.buckets), time.monotonic() - begun
    print(f"{count} shapes were made in {seconds:.1f} s", file=sys.stderr)
    return 0


async def _until_ready(engine: Engine) -> str | None:
    """Start the engine and end it once it is ready; why it did not become so, else None."""
    await engine.start()
    failure: str | None = None
    try:
        async for event in engine.events():
            if isinstance(event, Ready):
                break
            if isinstance(event, Lost) and event.broken:
                failure = event.reason
                break
    finally:
        await engine.stop()
    return failure
