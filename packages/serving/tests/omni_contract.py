"""What is relied on of vLLM and vLLM-Omni, looked up in the installed wheels.

A program for the environment with vLLM-Omni; see ``omni_environment``. The answer is how many
things were looked at, and what is not as it was.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

from wantrn.parallel import Degrees, Layout
from wantrn.serving.engines.omni import compatibility, request_settings, stage_options

# How functions are called: positional arguments, then keywords.
CALLS: dict[str, tuple[int, tuple[str, ...]]] = {
    "register_diffusion_model": (
        0,
        (
            *("model_arch", "module_name", "class_name"),
            *("pre_process_func_name", "post_process_func_name"),
        ),
    ),
    "load_omni_general_plugins": (0, ()),
    "get_tp_group": (0, ()),
    "get_sp_group": (0, ()),
    "get_cfg_group": (0, ()),
    "WorkerWrapperBase": (0, ("gpu_id", "od_config", "base_worker_class")),
    "WorkerWrapperBase.execute_method": (2, ()),
    "WorkerWrapperBase.shutdown": (1, ()),
    "DiffusionModelRegistry._try_load_model_cls": (1, ()),
    "DiffusionEngine": (1, ()),
    "DiffusionEngine.step_streaming": (2, ()),
    "DiffusionEngine.abort": (2, ()),
    "DiffusionEngine.close": (1, ()),
    "DiffusionOutput": (0, ("output",)),
    "OmniClientError": (1, ()),
    "EngineDeadError": (0, ()),
    "OmniDiffusionRequest": (0, ("prompt", "sampling_params", "request_id", "prepared_layout")),
    "OmniDiffusionRequest.is_dummy_run": (1, ()),
    "OmniDiffusionSamplingParams": (0, ("seed", "guidance_scale", "num_inference_steps")),
    "DiffusionWorker": (0, ("local_rank", "rank", "od_config", "skip_load_model")),
    "DiffusionModelRunner": (0, ("vllm_config", "od_config", "device")),
    # the four parts of a pipeline
    "SupportsStepExecution.prepare_encode": (2, ()),
    "SupportsStepExecution.denoise_step": (2, ("states",)),
    "SupportsStepExecution.step_scheduler": (3, ()),
    "SupportsStepExecution.post_decode": (2, ()),
}
# What is read or set of objects.
FIELDS: dict[str, set[str]] = {
    "OmniDiffusionConfig": stage_options._READ | stage_options._ITS_OWN,
    "DiffusionParallelConfig": stage_options._PARALLEL_READ,
    "OmniDiffusionSamplingParams": request_settings._READ | request_settings._ITS_OWN,
    "OmniDiffusionRequest": {"prompt", "sampling_params", "request_id", "prepared_layout"},
    "DiffusionOutput": {"output", "error", "stage_durations"},
    "BatchRunnerOutput": {"runner_outputs"},
    "RunnerOutput": {"request_id", "step_index", "finished", "result"},
    "StepRequestState": {
        *("request_id", "prepared_layout", "extra", "scheduler", "timesteps", "latents"),
        *("step_index", "stage_durations"),
    },
    "DiffusionSchedulerOutput": {"scheduled_new_reqs", "scheduled_cached_reqs"},
}
# Where names are of that this program alone looks at.
ELSEWHERE = {
    "SupportsStepExecution": "vllm_omni.diffusion.models.interface",
    "RunnerOutput": "vllm_omni.diffusion.worker.utils",
    "StepRequestState": "vllm_omni.diffusion.worker.utils",
    "DiffusionSchedulerOutput": "vllm_omni.diffusion.sched.interface",
    "RankGenerator": "vllm_omni.diffusion.distributed.parallel_state",
}
# Ours, and what they stand in for.
OVERRIDING = {
    "worker.WanWorker": "DiffusionWorker",
    "runner.WanRunner": "DiffusionModelRunner",
    "executor.RankExecutor": "DiffusionExecutor",
    "cpu_platform.CpuOmniPlatform": "OmniPlatform",
    "neuron_platform.NeuronOmniPlatform": "OmniPlatform",
}


def find(path: str) -> Any:
    name, *rest = path.split(".")
    found = (
        getattr(import_module(ELSEWHERE[name]), name)
        if name in ELSEWHERE
        else getattr(compatibility, name)
    )
    for attribute in rest:
        found = getattr(found, attribute)
    return found


def names() -> Iterator[str | None]:
    for name in compatibility.NAMES:
        try:
            find(name)
        except (ImportError, AttributeError) as error:
            yield f"{name}: {error}"
        else:
            yield None


def calls() -> Iterator[str | None]:
    for path, (positional, keywords) in CALLS.items():
        try:
            inspect.signature(find(path)).bind(*range(positional), **dict.fromkeys(keywords))
        except (TypeError, AttributeError) as error:
            yield f"{path}: {error}"
        else:
            yield None


def known_fields() -> Iterator[str | None]:
    for name, wanted in FIELDS.items():
        missing = wanted - {field.name for field in fields(find(name))}
        yield f"{name}: no {sorted(missing)}" if missing else None


def overrides() -> Iterator[str | None]:
    """A method that stands in for another takes what that one takes, by the same names."""
    for path, base_name in OVERRIDING.items():
        module, name = path.split(".")
        ours = getattr(import_module(f"wantrn.serving.engines.omni.{module}"), name)
        base = find(base_name)
        yield f"{path}: abstract" if getattr(ours, "__abstractmethods__", None) else None
        for method, function in vars(ours).items():
            theirs = inspect.getattr_static(base, method, None)
            if theirs is None or method.startswith("__"):
                continue
            wanted, have = parameters(theirs), parameters(function)
            yield None if wanted == have else f"{path}.{method}: {wanted}, ours {have}"


def parameters(function: Any) -> list[str] | str:
    function = getattr(function, "__func__", function)
    if isinstance(function, property):
        return "property"
    return list(inspect.signature(function).parameters) if callable(function) else "attribute"


def orders() -> Iterator[str | None]:
    """Ranks stand in vLLM-Omni's groups where they stand in ours."""
    degrees = Degrees(tp=2, ring=2, ulysses=2, cfg=2)
    layout = Layout.arithmetic(degrees)
    generator = find("RankGenerator")(tp=2, sp=4, pp=1, cfg=2, dp=1, order="tp-sp-pp-cfg-dp")
    for theirs, ours in (("tp", layout.tp), ("sp", layout.cp), ("cfg", layout.cfg)):
        groups = {tuple(sorted(group)) for group in generator.get_ranks(theirs)}
        wanted = {tuple(sorted(group)) for group in ours}
        yield None if groups == wanted else f"ranks of {theirs}: {groups}, ours {wanted}"


def main() -> None:
    checks: list[Callable[[], Iterator[str | None]]] = [
        *(names, calls, known_fields, overrides, orders)
    ]
    found = {check.__name__: list(check()) for check in checks}
    answer = {
        "looked at": {name: len(results) for name, results in found.items()},
        "wrong": [result for results in found.values() for result in results if result],
    }
    Path(sys.argv[2]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
