"""Videos by vLLM-Omni's own offline API, with our plugin, beside our own pipeline on one rank.

A program for the environment with vLLM-Omni; see ``omni_environment``. The question is a list of
cases: ``{"model": folder, "dtype": ..., "tiled": ..., "stage": options, "requests": [...]}``.
The answer has what came of each request, in their order.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from wantrn.model.execution import Execution
from wantrn.model.info import read_model_info
from wantrn.model.lora import LoraChoice
from wantrn.model.pipeline import WanPipeline
from wantrn.model.settings import Settings, VideoRequest, resolve
from wantrn.model.vae_tiles import Tiling
from wantrn.serving.engines.omni.compatibility import OmniDiffusionSamplingParams


def by_omni(case: dict[str, Any]) -> list[Any]:
    # by name, as it is not installed where types are checked
    omni: Any = import_module("vllm_omni.entrypoints.omni").Omni(
        model=case["model"],
        dtype=case["dtype"],
        step_execution=True,
        stage_init_timeout=300,
        init_timeout=300,
        **{"custom_pipeline_args": {"wantrn": {"threads": 1}}, **case["stage"]},
    )
    try:
        return [one_of(omni, request) for request in case["requests"]]
    finally:
        omni.close()


def one_of(omni: Any, request: dict[str, Any]) -> Any:
    prompt: dict[str, Any] = {"prompt": "a cat", "negative_prompt": "a dog"}
    if "picture" in request:
        prompt["multi_modal_data"] = {"image": picture(request["picture"])}
    extra = {"flow_shift": request["shift"]}
    if "step_cache" in request:
        extra["step_cache"] = request["step_cache"]
    params = OmniDiffusionSamplingParams(
        width=request["size"][0],
        height=request["size"][1],
        num_frames=request["frames"],
        num_inference_steps=request["steps"],
        guidance_scale=3.0,
        seed=5,
        extra_args=extra,
        **lora_of(request),
    )
    (output,) = omni.generate(prompt, params)
    ((video,),) = output.images
    return np.asarray(video)


def lora_of(request: dict[str, Any]) -> dict[str, Any]:
    if "lora" not in request:
        return {}
    lora = import_module("vllm_omni.lora.request").LoRARequest("a lora", 1, request["lora"])
    return {"lora_request": lora, "lora_scale": 0.5}


def alone(case: dict[str, Any], request: dict[str, Any]) -> Any:
    execution = Execution(tiling=Tiling() if case["tiled"] else None)
    model = Path(case["model"])
    pipeline = WanPipeline.load(model, getattr(torch, case["dtype"]), execution)
    run = pipeline.prepare(settings(model, request))
    while not run.done:
        pipeline.step(run)
    if "step_cache" in request:
        assert run.cached is not None and run.cached.steps_reused > 0
    return pipeline.decode(run).numpy()


def settings(model: Path, request: dict[str, Any]) -> Settings:
    return resolve(
        VideoRequest(
            prompt="a cat",
            negative_prompt="a dog",
            image=picture(request["picture"]) if "picture" in request else None,
            size=tuple(request["size"]),
            frames=request["frames"],
            steps=request["steps"],
            guidance=3.0,
            shift=request["shift"],
            seed=5,
            loras=(LoraChoice.of(Path(request["lora"]), 0.5),) if "lora" in request else (),
            step_cache=request.get("step_cache"),
        ),
        read_model_info(model),
    )


def picture(side: int) -> Image.Image:
    ramp = np.linspace(0, 255, side * side * 3).reshape(side, side, 3)
    return Image.fromarray(ramp.astype(np.uint8))


def main() -> None:
    question = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    answers = []
    for case in question["cases"]:
        for request, made in zip(case["requests"], by_omni(case), strict=True):
            wanted = alone(case, request)
            found = {"shape": made.shape, "dtype": str(made.dtype)}
            if made.shape == wanted.shape:
                difference = np.abs(made - wanted)
                found["difference"] = float(difference.max())
                found["rms"] = float(np.sqrt(np.square(difference).mean()))
            answers.append(found)
    Path(sys.argv[2]).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
