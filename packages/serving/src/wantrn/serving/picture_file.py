"""Where a picture is written that a command was asked to draw."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from wantrn.model.errors import RequestError
from wantrn.model.media.atomic import draft_of


def check_picture(field: str, path: Path) -> None:
    """Find out before a long run whether a picture could be written to ``path``, as far as can be
    told. Raises ``RequestError`` on ``field``."""
    if path.suffix.lower() != ".png":
        raise RequestError(field, f"{path} is not allowed; it must be a name that ends in .png")
    if not path.parent.is_dir():
        raise RequestError(field, f"{path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise RequestError(field, f"{path}: the folder {path.parent} cannot be written to")
    if path.exists() and not path.is_file():
        raise RequestError(field, f"{path} exists and is no file")


def write_picture(field: str, path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` draw a file, which becomes ``path`` when it is whole. Raises ``RequestError``
    on ``field``; an older file is then as it was."""
    try:
        with draft_of(path) as draft:
            write(draft)
    except OSError as error:
        reason = error.strerror or error
        raise RequestError(field, f"cannot write {path}: {reason}") from error
