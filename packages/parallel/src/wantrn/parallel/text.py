"""Numbers and tables as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def brief(numbers: Sequence[int]) -> str:
    """The numbers in their order: ``0-3`` is 0, 1, 2, 3, and ``0-8/4`` is 0, 4, 8."""
    parts = []
    start = 0
    while start < len(numbers):
        end = _end_of_steps(numbers, start)
        if end - start < 3:  # two numbers are no pattern
            parts.append(str(numbers[start]))
            start += 1
            continue
        step = numbers[start + 1] - numbers[start]
        parts.append(f"{numbers[start]}-{numbers[end - 1]}" + (f"/{step}" if step > 1 else ""))
        start = end
    return ",".join(parts)


def _end_of_steps(numbers: Sequence[int], start: int) -> int:
    """Behind the last number that goes up from ``start`` in equal steps."""
    steps = [after - before for before, after in pairwise(numbers[start:])]
    count = 0
    while count < len(steps) and steps[count] == steps[0] > 0:
        count += 1
    return start + 1 + count


def span(numbers: range) -> str:
    """Neighbouring numbers: the first and the last."""
    if not numbers:
        return "none"
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows in columns, with two spaces between; numbers stand to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if cell.strip("[]").isdecimal() else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    )
