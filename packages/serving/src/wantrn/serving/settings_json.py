"""Effective settings as JSON and back, for records and for processes. The picture stays a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path
from typing import Any

from wantrn.model.lora import LoraChoice
from wantrn.model.settings import Settings


def settings_to_json(settings: Settings) -> str:
    """All of ``settings`` but the picture, which has its own file."""
    return json.dumps(asdict(replace(settings, image=None)), sort_keys=True, default=str)


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
    loras = tuple(_lora(choice) for choice in values.pop("loras", ()))
    return Settings(**values, loras=loras)


def _lora(values: Mapping[str, Any]) -> LoraChoice:
    files = {name: None if values[name] is None else Path(values[name]) for name in ("high", "low")}
    return LoraChoice(**{**values, **files})
