"""What is asked for, and the effective settings of a run."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass

from PIL.Image import Image

from wantrn.model.errors import RequestError
from wantrn.model.info import ModelInfo, ModelKind
from wantrn.model.lora import LoraChoice, check_choices
from wantrn.model.nearest import frames_around, largest_side, most_frames, sizes_around
from wantrn.model.schedulers import (
    MAX_SHIFT,
    SCHEDULER_NAMES,
    checkpoint_shift,
    scheduler_name,
)
from wantrn.model.step_cache import StepCache

_MAX_STEPS = 1000  # the models know 1000 timesteps
_MAX_SEED = 2**63 - 1


@dataclass(frozen=True)
class VideoRequest:
    """What a caller asks for; None means the checkpoint's default, where nothing else is said."""

    prompt: str
    negative_prompt: str | None = None
    image: Image | None = None
    size: tuple[int, int] | None = None  # (width, height), pixels
    frames: int | None = None
    fps: int | None = None
    steps: int | None = None
    guidance: float | None = None
    guidance_2: float | None = None
    shift: float | None = None
    scheduler: str | None = None
    seed: int | None = None
    loras: tuple[LoraChoice, ...] = ()
    step_cache: float | None = None  # the threshold of ``StepCache``; None means no step cache


@dataclass(frozen=True)
class Settings:
    """The effective settings of one run: nothing is left to be decided. Made by ``resolve``."""

    prompt: str
    negative_prompt: str
    image: Image | None
    width: int
    height: int
    frames: int
    fps: int
    steps: int
    guidance: float
    guidance_2: float | None
    boundary_ratio: float | None
    shift: float
    scheduler: str
    seed: int
    loras: tuple[LoraChoice, ...] = ()
    step_cache: float | None = None

    def describe(self) -> dict[str, str | int | float]:
        """The settings by name, for printing and for a video's metadata; no picture, no None."""
        values: dict[str, str | int | float | None] = {
            "prompt": self.prompt,
            "negative_prompt": self.negative_prompt or None,
            "image": None if self.image is None else f"{self.image.width}x{self.image.height}",
            "size": f"{self.width}x{self.height}",
            "frames": self.frames,
            "fps": self.fps,
            "steps": self.steps,
            "guidance": self.guidance,
            "guidance_2": self.guidance_2,
            "boundary_ratio": self.boundary_ratio,
            "shift": self.shift,
            "scheduler": self.scheduler,
            "seed": self.seed,
            "lora": ", ".join(choice.describe() for choice in self.loras) or None,
            "step_cache": self.step_cache,
        }
        return {name: value for name, value in values.items() if value is not None}


def token_count(settings: Settings, info: ModelInfo) -> int:
    """``S``, the tokens of a video with these settings."""
    frames, height, width = info.config.patch_size
    return (
        ((settings.frames - 1) // info.temporal_stride + 1)
        // frames
        * (settings.height // info.spatial_stride // height)
        * (settings.width // info.spatial_stride // width)
    )


def resolve(request: VideoRequest, info: ModelInfo) -> Settings:
    """Fill in what the request leaves open and check all of it against the model.

    Without a size, a given image's aspect ratio is kept, at about the default number of pixels.
    Without a seed, one is drawn here, once.

    Raises:
        RequestError: a value that cannot be carried out as asked, with the nearest that can.
    """
    defaults = info.defaults
    _check_image(request, info)
    width, height = request.size or _default_size(request.image, info)
    _check_size(width, height, info)
    frames = defaults.frames if request.frames is None else request.frames
    _check_frames(frames, info)
    seed = secrets.randbelow(2**32) if request.seed is None else request.seed
    _check_range("seed", seed, 0, _MAX_SEED)
    fps = defaults.fps if request.fps is None else request.fps
    _check_range("fps", fps, 1, 240)
    steps = defaults.steps if request.steps is None else request.steps
    _check_range("steps", steps, 1, _MAX_STEPS)
    guidance = defaults.guidance if request.guidance is None else request.guidance
    _check_guidance("guidance", guidance)
    if request.guidance_2 is not None and len(info.experts) == 1:
        raise RequestError("guidance_2", f"got {request.guidance_2}, but the model has one expert")
    guidance_2 = defaults.guidance_2 if request.guidance_2 is None else request.guidance_2
    if guidance_2 is not None:
        _check_guidance("guidance_2", guidance_2)
    shift = checkpoint_shift(info.scheduler_config) if request.shift is None else request.shift
    if not 0 < shift <= MAX_SHIFT:
        raise RequestError("shift", f"must be above 0 and at most {MAX_SHIFT:g}, got {shift}")
    scheduler = request.scheduler or scheduler_name(info.scheduler_config)
    if scheduler not in SCHEDULER_NAMES:
        raise RequestError(
            "scheduler", f"{scheduler!r} is unknown; allowed are {' and '.join(SCHEDULER_NAMES)}"
        )
    check_choices(request.loras, info.config, len(info.experts))
    if request.step_cache is not None:
        _check_step_cache(request.step_cache)
    return Settings(
        prompt=request.prompt,
        negative_prompt=request.negative_prompt or "",
        image=request.image,
        width=width,
        height=height,
        frames=frames,
        fps=fps,
        steps=steps,
        guidance=guidance,
        guidance_2=guidance_2,
        boundary_ratio=info.boundary_ratio,
        shift=shift,
        scheduler=scheduler,
        seed=seed,
        loras=request.loras,
        step_cache=request.step_cache,
    )


def _check_image(request: VideoRequest, info: ModelInfo) -> None:
    if info.kind is ModelKind.I2V and request.image is None:
        raise RequestError("image", "this model makes videos from an image, and none was given")
    if info.kind is ModelKind.T2V and request.image is not None:
        raise RequestError("image", "this model makes videos from text alone and takes no image")


def _default_size(image: Image | None, info: ModelInfo) -> tuple[int, int]:
    """The default size, or one of about its area with the image's aspect ratio."""
    width, height = info.defaults.size
    if image is None:
        return width, height
    multiple, area = info.size_multiple, width * height
    aspect = image.height / image.width
    fitted_height = max(1, round(math.sqrt(area * aspect) / multiple)) * multiple
    fitted_width = max(1, round(math.sqrt(area / aspect) / multiple)) * multiple
    limit = largest_side(info)
    return min(fitted_width, limit), min(fitted_height, limit)


def _check_size(width: int, height: int, info: ModelInfo) -> None:
    below, above = sizes_around((width, height), info)
    if (width, height) != below:
        raise RequestError(
            "size",
            f"{width}x{height} cannot be made: width and height must be multiples of "
            f"{info.size_multiple} up to {largest_side(info)}; the nearest are "
            f"{below[0]}x{below[1]} and {above[0]}x{above[1]}",
        )


def _check_frames(frames: int, info: ModelInfo) -> None:
    below, above = frames_around(frames, info)
    if frames != below:
        raise RequestError(
            "frames",
            f"{frames} cannot be made: the number must be {info.temporal_stride}k + 1, up to "
            f"{most_frames(info)}; the nearest are {below} and {above}",
        )


def _check_range(field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        near = (low, low + 1) if value < low else (high - 1, high)
        raise RequestError(
            field,
            f"{value} is not in {low}..{high}; the nearest allowed are {near[0]} and {near[1]}",
        )


def _check_guidance(field: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 1):
        raise RequestError(field, f"must be a number from 1 (no guidance) up, got {value}")


def _check_step_cache(threshold: float) -> None:
    try:
        StepCache(threshold)
    except ValueError as error:
        raise RequestError("step_cache", str(error)) from error
