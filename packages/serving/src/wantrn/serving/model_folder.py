"""The checkpoint folder that commands work with."""

from __future__ import annotations

from pathlib import Path

from wantrn.model.errors import RequestError
from wantrn.tiny import CHECKPOINT


def model_folder(chosen: Path | None) -> Path:
    """``chosen``, or that of the tiny checkpoint for None; ``RequestError`` on ``model`` if it is
    not there."""
    if chosen is None:
        return CHECKPOINT
    if not chosen.is_dir():
        raise RequestError("model", f"there is no folder {chosen}")
    return chosen
