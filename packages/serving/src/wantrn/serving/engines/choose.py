"""The engine that a deployment names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wantrn.model.errors import RequestError
from wantrn.serving.deployment import Deployment
from wantrn.serving.engines.local.engine import LocalEngine
from wantrn.serving.engines.local.options import LocalOptions
from wantrn.serving.engines.options import EngineOptions
from wantrn.serving.engines.protocol import Engine, EngineError


def make_engine(deployment: Deployment, model: Path) -> Engine:
    """The engine, not started, over the checkpoint folder ``model``.

    Raises:
        RequestError: an option that the engine, the model or this machine does not have, by name.
        CheckpointError: the folder holds no checkpoint.
    """
    if deployment.engine == "omni":
        return _omni(deployment, model)
    return LocalEngine(
        LocalOptions(**_shared(deployment, model), device=deployment.device or "cpu")
    )


def _shared(deployment: Deployment, model: Path) -> dict[str, Any]:
    """The fields of ``EngineOptions``."""
    return {
        "model": model,
        "slots": deployment.slots,
        "dtype": deployment.dtype,
        "threads": deployment.threads,
        "ranks": deployment.ranks,
        "warm_up": deployment.buckets,
    }


def _omni(deployment: Deployment, model: Path) -> Engine:
    from wantrn.serving.engines.omni.engine import OmniEngine

    if deployment.device is not None:
        raise RequestError(
            "device", f"got {deployment.device}, but the engine omni takes what the machine has"
        )
    try:
        return OmniEngine(EngineOptions(**_shared(deployment, model)))
    except EngineError as error:
        raise RequestError("engine", str(error)) from error
