"""Names and values, one pair a line."""

from __future__ import annotations

from collections.abc import Mapping


def aligned(rows: Mapping[str, object]) -> str:
    """The values in one column; white space within a value is shortened to single spaces."""
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}}  {' '.join(str(rows[name]).split())}" for name in rows)
