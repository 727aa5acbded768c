"""What a server's log looks like: lines for people, or a JSON object a line."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def configure_logs(form: str) -> None:
    """Send all logs to standard error, as ``"text"`` or ``"json"``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.INFO)


class _Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """One line, whatever is in it: a client's text must not look like a line of ours."""
        extra = " ".join(f"{name}={value}" for name, value in _extra(record).items())
        line = f"{super().formatMessage(record)} {extra}".rstrip()
        return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        values = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            values["traceback"] = self.formatException(record.exc_info)
        return json.dumps(values, default=str)


def _extra(record: logging.LogRecord) -> Mapping[str, Any]:
    """What the log's caller put under ``extra={"fields": {...}}``."""
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return fields
