"""Effective settings as JSON and back, for records and for processes. The picture stays a file."""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Any

from wantrn.model.lora import LoraChoice
from wantrn.model.settings import Settings


def settings_to_json(settings: Settings) -> str:
    """All of ``settings`` but the picture, which has its own file."""
    values = asdict(replace(settings, image=None))
    return json.dumps(values, sort_keys=True, default=str)  # paths are strings


def settings_from_json(text: str) -> Settings:
    """What ``settings_to_json`` wrote; a field that an older version did not have has its default.

    Raises:
        ValueError: it is of a newer version, or no settings at all; the text names the field.
    """
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError(f"settings must be an object, got {text[:40]!r}")
    known = fields(Settings)
    unknown = set(values) - {field.name for field in known}
    needed = {field.name for field in known if field.default is MISSING}
    for name in sorted(unknown | (needed - set(values))):
        raise ValueError(f"settings must have the fields of this version; {name!r} differs")
    return Settings(**{**values, "loras": tuple(map(_choice, values.get("loras", ())))})


def _choice(values: dict[str, Any]) -> LoraChoice:
    high, low = (None if values[key] is None else Path(values[key]) for key in ("high", "low"))
    return LoraChoice(**{**values, "high": high, "low": low})
