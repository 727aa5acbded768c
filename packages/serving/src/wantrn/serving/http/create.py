"""What a client asks for, and what the model is asked for in its place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated, Literal

from PIL.Image import Image
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wantrn.model.errors import RequestError
from wantrn.model.info import ModelInfo
from wantrn.model.nearest import frames_around, nearest_frames, nearest_size
from wantrn.model.settings import VideoRequest
from wantrn.serving.api_names import API_NAMES
from wantrn.serving.http.errors import ApiError
from wantrn.serving.http.loras import LoraUse
from wantrn.serving.http.offer import Offer

MAX_PROMPT = 20_000
"""Characters. The text encoder reads the first 512 tokens."""


class ImageReference(BaseModel):
    """A picture in place of a file."""

    model_config = ConfigDict(extra="forbid")

    image_url: Annotated[str, Field(description="a data URL: data:image/png;base64,...")]


class CreateVideo(BaseModel):
    """The fields of a request for a video. What is not given is the checkpoint's default."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, regex_engine="python-re")

    prompt: Annotated[str, Field(min_length=1, max_length=MAX_PROMPT)]
    model: Annotated[str | None, Field(description="the name that GET /v1/models tells")] = None
    size: Annotated[
        str | None,
        Field(pattern=r"^[0-9]{1,6}x[0-9]{1,6}\Z", description="width and height, pixels"),
    ] = None
    seconds: Annotated[
        str | None,
        Field(
            pattern=r"^[0-9]{1,6}(\.[0-9]{1,6})?\Z",
            coerce_numbers_to_str=True,
            description="from the first frame to the last: (num_frames - 1) / fps",
        ),
    ] = None
    num_frames: int | None = None
    fps: int | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    guidance_scale_2: float | None = None
    flow_shift: float | None = None
    scheduler: str | None = None
    seed: int | None = None
    step_cache: Annotated[
        float | None,
        Field(description="the change up to which steps reuse what earlier ones have computed"),
    ] = None
    negative_prompt: Annotated[str | None, Field(max_length=MAX_PROMPT)] = None
    lora: Annotated[
        list[LoraUse], Field(max_length=16, description="in a form, the same as JSON")
    ] = []
    fit: Annotated[
        Literal["exact", "nearest"],
        Field(description="nearest makes the nearest size and length, where exact refuses"),
    ] = "exact"
    input_reference: Annotated[
        ImageReference | None, Field(description="the first frame; a file in a form")
    ] = None


@dataclass(frozen=True)
class Asked:
    """A request for the model, and what ``fit=nearest`` changed: field to what was asked for."""

    request: VideoRequest
    adjusted: Mapping[str, str]


def parse_fields(values: Mapping[str, object]) -> CreateVideo:
    """The fields of a form or of a JSON object; ``ApiError`` names the one that is wrong."""
    try:
        return CreateVideo.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        param = ".".join(str(part) for part in first["loc"]) or None
        message = first["msg"]
        if first["type"] == "extra_forbidden":
            allowed = ", ".join(CreateVideo.model_fields)
            message = f"is no field of this interface; allowed are {allowed}"
            raise ApiError(400, f"{param} {message}", param=param, code="unknown_field") from None
        raise ApiError(400, f"{param}: {message}", param=param, code="invalid_value") from None


def ask(fields: CreateVideo, image: Image | None, offer: Offer, info: ModelInfo) -> Asked:
    """The request for the model; ``ApiError`` where it cannot be made from the fields."""
    request = VideoRequest(
        prompt=fields.prompt,
        negative_prompt=fields.negative_prompt,
        image=image,
        size=None if fields.size is None else _size(fields.size),
        frames=fields.num_frames,
        fps=fields.fps,
        steps=fields.num_inference_steps,
        guidance=fields.guidance_scale,
        guidance_2=fields.guidance_scale_2,
        shift=fields.flow_shift,
        scheduler=fields.scheduler,
        seed=fields.seed,
        step_cache=fields.step_cache,
        loras=offer.loras.choices(fields.lora),
    )
    adjusted: dict[str, str] = {}
    if fields.seconds is not None:
        request, adjusted = _with_seconds(request, fields, info)
    if fields.fit == "nearest":
        request = _nearest(request, info)
    request = offer.shapes.choose(request)
    if fields.fit == "nearest":
        request = offer.shapes.nearest(request)
    return Asked(request, {**adjusted, **_changes(fields, request)})


def as_api_error(error: RequestError) -> ApiError:
    """An error of the model's about a request, with this interface's name of the field."""
    param = API_NAMES.get(error.field, error.field)
    message = param + str(error).removeprefix(error.field)
    return ApiError(400, message, param=param, code="invalid_value")


def _with_seconds(
    request: VideoRequest, fields: CreateVideo, info: ModelInfo
) -> tuple[VideoRequest, dict[str, str]]:
    """``request`` with the frames that make up ``seconds``, and what that changes, if anything."""
    assert fields.seconds is not None
    if fields.num_frames is not None:
        raise ApiError(
            400,
            f"seconds: got {fields.seconds} beside num_frames {fields.num_frames}; give one",
            param="seconds",
            code="invalid_value",
        )
    fps = info.defaults.fps if fields.fps is None else fields.fps
    exact = Fraction(fields.seconds) * fps + 1
    frames = round(exact)
    below, above = frames_around(frames, info)
    if exact == below:
        return replace(request, frames=below), {}
    if fields.fit == "nearest":
        nearest = replace(request, frames=nearest_frames(frames, info))
        return nearest, {"seconds": fields.seconds}
    shorter, longer = (as_seconds(count, fps) for count in (below, above))
    raise ApiError(
        400,
        f"seconds: {fields.seconds} cannot be made at {fps} frames a second: the number of frames "
        f"must be {info.temporal_stride}k + 1; the nearest are {shorter} ({below} frames) and "
        f"{longer} ({above} frames)",
        param="seconds",
        code="invalid_value",
    )


def _nearest(request: VideoRequest, info: ModelInfo) -> VideoRequest:
    """``request`` with the nearest size and number of frames that can be made."""
    size = None if request.size is None else nearest_size(request.size, info)
    frames = None if request.frames is None else nearest_frames(request.frames, info)
    return replace(request, size=size, frames=frames)


def _changes(fields: CreateVideo, request: VideoRequest) -> dict[str, str]:
    """What was asked for in the fields that ``request`` has otherwise."""
    changes: dict[str, str] = {}
    if fields.size is not None and request.size != _size(fields.size):
        changes["size"] = fields.size
    if fields.num_frames is not None and request.frames != fields.num_frames:
        changes["num_frames"] = str(fields.num_frames)
    return changes


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    return int(width), int(height)


def as_seconds(frames: int, fps: int) -> str:
    """From the first frame to the last, as a decimal number without needless zeros."""
    return f"{(frames - 1) / fps:.3f}".rstrip("0").rstrip(".")
