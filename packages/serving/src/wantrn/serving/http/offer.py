"""What the clients of a server may ask for, beside what its model can make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wantrn.model.info import ModelInfo
from wantrn.serving.http.loras import LoraFolder
from wantrn.serving.shapes import Shape, Shapes


@dataclass(frozen=True)
class Offer:
    """``loras`` that videos may be made with, and the ``shapes`` that they may have."""

    loras: LoraFolder
    shapes: Shapes

    @classmethod
    def of(cls, info: ModelInfo, loras: Path | None = None, buckets: Sequence[Shape] = ()) -> Offer:
        """With the LoRAs of a folder, if there is one, and certain shapes, if there are any.

        Raises:
            RequestError: on ``loras``, which is no folder, or ``buckets``.
        """
        return cls(LoraFolder(loras), Shapes(buckets, info))
