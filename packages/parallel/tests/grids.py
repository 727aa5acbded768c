"""All degrees up to a number of ranks."""

from __future__ import annotations

from collections.abc import Iterator

from wantrn.parallel import Degrees


def all_degrees(most: int) -> Iterator[Degrees]:
    """Every way to make a world of up to ``most`` ranks."""
    for tp in range(1, most + 1):
        for ulysses in range(1, most // tp + 1):
            for ring in range(1, most // (tp * ulysses) + 1):
                for cfg in (1, 2):
                    for dp in range(1, most // (tp * ulysses * ring * cfg) + 1):
                        yield Degrees(tp=tp, ulysses=ulysses, ring=ring, cfg=cfg, dp=dp)
