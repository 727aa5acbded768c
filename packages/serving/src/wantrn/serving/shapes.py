"""The shapes of videos that a server is ready for, where it is not ready for all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from PIL import Image
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from wantrn.model.errors import RequestError
from wantrn.model.info import ModelInfo, ModelKind
from wantrn.model.settings import Settings, VideoRequest, resolve


@dataclass(frozen=True, config=ConfigDict(extra="forbid", use_attribute_docstrings=True))
class Shape:
    """A size and a length of videos."""

    width: int = Field(ge=1)
    """Pixels."""
    height: int = Field(ge=1)
    """Pixels."""
    frames: int = Field(ge=1)

    def __str__(self) -> str:
        return f"{self.width}x{self.height}x{self.frames}"


class Shapes:
    """The shapes that a server makes; all of them if none is named.

    Raises:
        RequestError: a shape that the model cannot make, on ``buckets``.
    """

    def __init__(self, shapes: Sequence[Shape], info: ModelInfo) -> None:
        self._shapes = tuple(shapes)
        for shape in shapes:
            try:
                resolve(trial_request(shape, info), info)
            except RequestError as error:
                raise RequestError("buckets", f"{shape}: {error}") from error

    def names(self) -> list[str]:
        return [str(shape) for shape in self._shapes]

    def choose(self, request: VideoRequest) -> VideoRequest:
        """``request`` with a size and a length where it leaves them open: of the shapes that have
        what it says, the one that is most like its picture, or else the first."""
        fitting = [
            shape
            for shape in self._shapes
            if request.size in (None, (shape.width, shape.height))
            and request.frames in (None, shape.frames)
        ]
        if not fitting:
            return request
        chosen = fitting[0]
        if request.image is not None:
            aspect = request.image.width / request.image.height
            chosen = min(fitting, key=lambda one: abs(math.log(one.width / one.height / aspect)))
        return _with(request, chosen)

    def nearest(self, request: VideoRequest) -> VideoRequest:
        """``request`` with the nearest of the shapes: the one with the least ratios of width,
        height and frames to those that are asked for."""
        if not self._shapes or request.size is None or request.frames is None:
            return request
        asked = (*request.size, request.frames)

        def distance(shape: Shape) -> float:
            made = (shape.width, shape.height, shape.frames)
            return sum(abs(math.log(max(1, a) / b)) for a, b in zip(asked, made, strict=True))

        return _with(request, min(self._shapes, key=distance))

    def check(self, settings: Settings) -> None:
        """Raise ``RequestError`` unless the server is ready for the shape of ``settings``."""
        shape = Shape(settings.width, settings.height, settings.frames)
        if self._shapes and shape not in self._shapes:
            allowed = ", ".join(map(str, self._shapes))
            raise RequestError(
                "size",
                f"{shape} (with the number of frames) is not made here; allowed are {allowed}",
            )


def trial_request(shape: Shape, info: ModelInfo, steps: int = 1) -> VideoRequest:
    """A video of ``shape`` that nobody asked for, of a model that may need a picture."""
    grey = Image.new("RGB", (shape.width, shape.height), (128, 128, 128))
    return VideoRequest(
        prompt="a trial",
        image=grey if info.kind is ModelKind.I2V else None,
        size=(shape.width, shape.height),
        frames=shape.frames,
        steps=steps,
        seed=0,
    )


def _with(request: VideoRequest, shape: Shape) -> VideoRequest:
    return replace(request, size=(shape.width, shape.height), frames=shape.frames)
