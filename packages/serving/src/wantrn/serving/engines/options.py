"""How an engine computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from wantrn.model.info import ModelInfo
from wantrn.model.settings import resolve
from wantrn.serving.rank_options import RankOptions
from wantrn.serving.shapes import Shape, Shapes, trial_request


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
        warm_up: the shapes of which a video is made before the engine is ready.
    """

    model: Path
    slots: int = 2
    dtype: str | None = None
    threads: int | None = None
    ranks: RankOptions = field(default_factory=RankOptions)
    warm_up: tuple[Shape, ...] = ()

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ValueError(f"slots must be at least 1, got {self.slots}")


def check_ranks(ranks: RankOptions, warm_up: Sequence[Shape], info: ModelInfo) -> None:
    """Raise ``RequestError`` if the model cannot be spread over these ranks, or a shape that they
    are to be ready for cannot be made, or not by them."""
    ranks.check_model(info)
    Shapes(warm_up, info)
    for shape in warm_up:
        ranks.check(info, resolve(trial_request(shape, info), info))
