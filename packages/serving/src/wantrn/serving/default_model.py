"""The checkpoint of who names none: a tiny one, made once in the user's cache."""

from __future__ import annotations

import os
from pathlib import Path

from wantrn.model.errors import CheckpointError
from wantrn.model.info import ModelKind


def tiny_checkpoint(kind: ModelKind) -> Path:
    """The folder of a tiny checkpoint, which is made at its first use."""
    # brings diffusers and transformers along, which take seconds; a server needs neither
    from wantrn.model.tiny import cached_tiny_checkpoint

    cache = _cache_folder()
    try:
        return cached_tiny_checkpoint(cache, kind)
    except OSError as error:
        raise CheckpointError(
            f"{cache}: a tiny checkpoint cannot be kept there: {error.strerror or error}"
        ) from error


def _cache_folder() -> Path:
    """The user's, by the XDG base directory specification (relative paths do not count)."""
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (chosen if chosen.is_absolute() else Path.home() / ".cache") / "wantrn"
