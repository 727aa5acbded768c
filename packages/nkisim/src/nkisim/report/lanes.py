"""Side by side what overlaps in time."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush


def assign(spans: Sequence[tuple[float, float]]) -> list[int]:
    """For each (start, end) the lowest lane in which nothing else lies at that time."""
    lanes = [0] * len(spans)
    free: list[int] = []
    in_use: list[tuple[float, int]] = []
    opened = 0
    for k in sorted(range(len(spans)), key=lambda k: (spans[k][0], k)):
        start, end = spans[k]
        while in_use and in_use[0][0] <= start:
            heappush(free, heappop(in_use)[1])
        if not free:
            heappush(free, opened)
            opened += 1
        lanes[k] = heappop(free)
        heappush(in_use, (end, lanes[k]))
    return lanes
