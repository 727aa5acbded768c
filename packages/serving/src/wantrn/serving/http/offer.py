"""What the clients of a server may ask for, beside what its model can make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wantrn.model.errors import RequestError
from wantrn.model.info import ModelInfo
from wantrn.model.settings import Settings
from wantrn.serving.http.loras import LoraFolder
from wantrn.serving.shapes import Shape, Shapes

_USUAL_TIMES = 4


@dataclass(frozen=True)
class Offer:
    """``loras`` that videos may be made with, the ``shapes`` that they may have, and the most
    ``pixels``: width times height times frames."""

    loras: LoraFolder
    shapes: Shapes
    pixels: int

    @classmethod
    def of(
        cls,
        info: ModelInfo,
        loras: Path | None = None,
        buckets: Sequence[Shape] = (),
        pixels: int | None = None,
    ) -> Offer:
        """With the LoRAs of a folder, if there is one, and certain shapes, if there are any. The
        most pixels are by default as many as four of the checkpoint's default videos have.

        Raises:
            RequestError: on ``loras``, which is no folder, or ``buckets``.
        """
        width, height = info.defaults.size
        usual = width * height * info.defaults.frames
        return cls(LoraFolder(loras), Shapes(buckets, info), pixels or _USUAL_TIMES * usual)

    def check(self, settings: Settings) -> None:
        """Raise ``RequestError`` on ``size`` for a shape that the server does not make.

        A video that is too large would not fail alone: it takes memory that the others need, and
        the ranks with them.
        """
        pixels = settings.width * settings.height * settings.frames
        if pixels > self.pixels:
            raise RequestError(
                "size",
                f"{settings.width}x{settings.height} with {settings.frames} frames has {pixels} "
                f"pixels; the most here are {self.pixels}",
            )
        self.shapes.check(settings)
