"""How the embedded engine computes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wantrn.serving.engines.options import EngineOptions
from wantrn.serving.rank_options import RankOptions
from wantrn.serving.shapes import Shape


@dataclass(frozen=True, kw_only=True)
class LocalOptions(EngineOptions):
    """See ``EngineOptions``.

    Attributes:
        device: ``"cpu"`` or ``"neuron"``.
    """

    device: str = "cpu"

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> LocalOptions:
        values: dict[str, Any] = json.loads(text)
        ranks = RankOptions(**values.pop("ranks"))
        warm_up = tuple(Shape(**shape) for shape in values.pop("warm_up"))
        return cls(**{**values, "model": Path(values["model"])}, ranks=ranks, warm_up=warm_up)
