"""Reading and writing the JSON files of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wantrn.model.errors import CheckpointError


def read_json(path: Path) -> dict[str, Any]:
    """The object in ``path``; ``CheckpointError`` names the file if there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: file not found") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must hold a JSON object, holds {type(value).__name__}")
    return value


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """``value`` as the object in ``path``, whose folder is made if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
