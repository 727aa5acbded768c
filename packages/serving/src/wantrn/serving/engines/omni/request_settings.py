"""Requests that come to vLLM-Omni from outside of this project, as settings of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from wantrn.model.errors import RequestError
from wantrn.model.info import ModelKind
from wantrn.model.lora import LoraChoice
from wantrn.model.media import read_image
from wantrn.model.settings import Settings, VideoRequest, resolve
from wantrn.serving.engines.omni.stage_options import StageOptions, unusual

# Sampling parameters that settings have room for.
_READ = {
    *("height", "width", "num_frames", "fps", "num_inference_steps", "seed"),
    *("guidance_scale", "guidance_scale_2", "boundary_ratio", "extra_args"),
    *("lora_request", "lora_scale"),
}
# What vLLM-Omni fills in or uses by itself.
_ITS_OWN = {
    *("guidance_scale_provided", "guidance_scale_2_provided", "do_classifier_free_guidance"),
    *("height_not_provided", "width_not_provided", "step_index", "emit_request_lifecycle"),
    *("modules", "save_output", "need_kv_receive", "generator_device", "output_type"),
}
_EXTRA = {"flow_shift", "sample_solver", "step_cache"}


@dataclass(frozen=True, eq=False)
class Prepared:
    """What goes to the ranks with a request.

    ``exact`` asks for the video as fp32 in [0, 1], which takes four times the memory; otherwise it
    is uint8.
    """

    settings: Settings
    exact: bool


def prepare_request(request: Any, options: StageOptions) -> Prepared:
    """The effective settings of an ``OmniDiffusionRequest``.

    Raises:
        RequestError: something that cannot be carried out as asked.
    """
    if request.is_dummy_run():
        return Prepared(_smallest(options), exact=False)
    params = request.sampling_params
    for name, value, _ in unusual(params):
        if name not in _READ | _ITS_OWN:
            raise RequestError(name, f"got {value!r}, which is not carried out")
    prompt: Mapping[str, Any] = (
        {"prompt": request.prompt} if isinstance(request.prompt, str) else request.prompt
    )
    extra = dict(params.extra_args or {})
    for name in sorted(extra.keys() - _EXTRA):
        raise RequestError("extra_args", f"got {name!r}; allowed are {', '.join(sorted(_EXTRA))}")
    if params.boundary_ratio not in (None, options.info.boundary_ratio):
        raise RequestError(
            "boundary_ratio",
            f"got {params.boundary_ratio}; allowed is the checkpoint's, "
            f"{options.info.boundary_ratio}",
        )
    asked = VideoRequest(
        prompt=prompt.get("prompt") or "",
        negative_prompt=prompt.get("negative_prompt"),
        image=_image((prompt.get("multi_modal_data") or {}).get("image")),
        size=_size(params.width, params.height),
        # 1 is how vLLM-Omni says that nothing was asked for
        frames=None if params.num_frames in (None, 1) else params.num_frames,
        fps=None if params.fps is None else _whole("fps", params.fps),
        steps=params.num_inference_steps,
        guidance=params.guidance_scale if params.guidance_scale_provided else None,
        guidance_2=params.guidance_scale_2 if params.guidance_scale_2_provided else None,
        shift=extra.get("flow_shift", options.shift),
        scheduler=extra.get("sample_solver"),
        seed=params.seed,
        loras=_loras(params),
        step_cache=extra.get("step_cache"),
    )
    settings = resolve(asked, options.info)
    options.ranks.check(options.info, settings)
    return Prepared(settings, exact=True)


def _smallest(options: StageOptions) -> Settings:
    """The least that goes through all parts of the pipeline, for vLLM-Omni's own first run: a
    token, or one for each rank where they must be shared evenly."""
    info, side, ranks = options.info, options.info.size_multiple, options.ranks
    size = (side * ranks.degrees().cp if ranks.strict_tokens else side, side)
    image = Image.new("RGB", size) if info.kind is ModelKind.I2V else None
    return resolve(VideoRequest("", image=image, size=size, frames=1, steps=1, seed=0), info)


def _loras(params: Any) -> tuple[LoraChoice, ...]:
    """vLLM's one LoRA, for all experts."""
    asked = params.lora_request
    if asked is None:
        if params.lora_scale != 1.0:
            raise RequestError("lora_scale", f"got {params.lora_scale} without a lora_request")
        return ()
    return (LoraChoice.of(Path(asked.lora_path), params.lora_scale, asked.lora_name),)


def _size(width: int | None, height: int | None) -> tuple[int, int] | None:
    if width is None and height is None:
        return None
    if width is None or height is None:
        raise RequestError("size", f"got width {width} and height {height}; both are needed")
    return width, height


def _whole(field: str, value: float) -> int:
    if value != int(value):
        raise RequestError(field, f"got {value}; allowed are whole numbers")
    return int(value)


def _image(given: Any) -> Image.Image | None:
    if isinstance(given, list):
        if len(given) > 1:
            raise RequestError("image", f"got {len(given)} pictures; allowed is one")
        given = given[0] if given else None
    if given is None or isinstance(given, Image.Image):
        return given
    if isinstance(given, str | Path):
        return read_image(Path(given))
    raise RequestError("image", f"got a {type(given).__name__}; allowed are a picture or its path")
