"""How the embedded engine computes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from wantrn.serving.rank_options import RankOptions
from wantrn.serving.shapes import Shape


@dataclass(frozen=True)
class LocalOptions:
    """What ranks are started, and with what.

    Attributes:
        model: a checkpoint folder.
        slots: how many videos are made at once, a step of each in turn; each takes the memory of
            its latents and of its text's keys and values.
        dtype: of the weights; None is the checkpoint's.
        device: ``"cpu"`` or ``"neuron"``.
        threads: CPU threads of each rank; None is an even share of the processors.
        ranks: how many there are, and how they share the work.
        warm_up: the shapes of which a video is made before the engine is ready.
    """

    model: Path
    slots: int = 2
    dtype: str | None = None
    device: str = "cpu"
    threads: int | None = None
    ranks: RankOptions = field(default_factory=RankOptions)
    warm_up: tuple[Shape, ...] = ()

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ValueError(f"slots must be at least 1, got {self.slots}")

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> LocalOptions:
        values: dict[str, Any] = json.loads(text)
        ranks = RankOptions(**values.pop("ranks"))
        warm_up = tuple(Shape(**shape) for shape in values.pop("warm_up"))
        return cls(**{**values, "model": Path(values["model"])}, ranks=ranks, warm_up=warm_up)
