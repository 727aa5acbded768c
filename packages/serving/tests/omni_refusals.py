"""What stages and requests of vLLM-Omni are refused, and what settings other requests come to.

A program for the environment with vLLM-Omni; see ``omni_environment``. The question is a folder of
a T2V checkpoint, stages (fields of ``OmniDiffusionConfig``) and requests (a prompt and fields of
``OmniDiffusionSamplingParams``); the answer is what each was refused with, or None, or settings.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from wantrn.serving.engines.omni.compatibility import (
    OmniClientError,
    OmniDiffusionConfig,
    OmniDiffusionRequest,
    OmniDiffusionSamplingParams,
)
from wantrn.serving.engines.omni.pipeline import get_pre_process_func
from wantrn.serving.engines.omni.stage_options import StageOptionError


def config(model: str, stage: dict[str, Any]) -> Any:
    plain = {"model_class_name": "WanPipeline", "dtype": "float32", "step_execution": True}
    return OmniDiffusionConfig(**{"model": model, **plain, **stage})


def of_stage(model: str, stage: dict[str, Any]) -> str | None:
    try:
        get_pre_process_func(config(model, stage))
    except StageOptionError as error:
        return str(error)
    return None


def of_request(prepare: Any, request: dict[str, Any]) -> Any:
    fields = dict(request)
    prompt = fields.pop("prompt")
    if fields.pop("latents", False):
        fields["latents"] = torch.zeros(1)
    params = OmniDiffusionSamplingParams(**fields)
    made = OmniDiffusionRequest(prompt=prompt, sampling_params=params, request_id="x")
    try:
        return prepare(made).prepared_layout.settings.describe()
    except OmniClientError as error:
        return f"{error.status_code} {error}"


def main() -> None:
    question = json.loads(Path(sys.argv[1]).read_text())
    model = question["model"]
    prepare = get_pre_process_func(config(model, {"flow_shift": 6.0}))
    answer = {
        "stages": [of_stage(model, stage) for stage in question["stages"]],
        "requests": [of_request(prepare, request) for request in question["requests"]],
    }
    Path(sys.argv[2]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
