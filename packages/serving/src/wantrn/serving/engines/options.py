"""How an engine computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from wantrn.serving.rank_options import RankOptions


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What ranks are started, and with what.

    Attributes:
        model: a checkpoint folder.
        slots: how many videos are made at once, a step of each in turn; each takes the memory of
            its latents and of its text's keys and values.
        dtype: of the weights; None is the checkpoint's.
        threads: CPU threads of each rank; None is an even share of the processors.
        ranks: how many there are, and how they share the work.
    """

    model: Path
    slots: int = 2
    dtype: str | None = None
    threads: int | None = None
    ranks: RankOptions = field(default_factory=RankOptions)

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ValueError(f"slots must be at least 1, got {self.slots}")
