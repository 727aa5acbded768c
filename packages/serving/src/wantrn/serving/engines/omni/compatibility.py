"""All that is used of vLLM and vLLM-Omni, and from nowhere else.

``from wantrn.serving.engines.omni.compatibility import OmniPlatform`` imports vLLM-Omni when it is
executed, not before, and refuses versions that were never tested: each minor version of vLLM-Omni
has broken plugins. ``test_omni_contract.py`` checks all names, signatures and orders of arguments
that are relied on against the installed wheels.

Nothing of either package is patched. Of the two places where vLLM-Omni 0.30 fails on a CPU, the
thread of its deferred outputs never starts with step execution, which is the only kind that our
pipelines have, and its ring attention is not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

TESTED = "0.30"
PACKAGES = ("vllm", "vllm-omni")

NAMES: Mapping[str, str] = {
    # platforms
    "CpuPlatform": "vllm.platforms.cpu",
    "OmniPlatform": "vllm_omni.platforms.interface",
    "OmniPlatformEnum": "vllm_omni.platforms.interface",
    "register_diffusion_model": "vllm_omni.diffusion.registry",
    "load_omni_general_plugins": "vllm_omni.plugins",
    # ranks
    "DiffusionWorker": "vllm_omni.diffusion.worker.diffusion_worker",
    "WorkerWrapperBase": "vllm_omni.diffusion.worker.diffusion_worker",
    "DiffusionModelRunner": "vllm_omni.diffusion.worker.diffusion_model_runner",
    "DiffusionModelRegistry": "vllm_omni.diffusion.registry",
    "BatchRunnerOutput": "vllm_omni.diffusion.worker.utils",
    "get_tp_group": "vllm.distributed.parallel_state",
    "get_sp_group": "vllm_omni.diffusion.distributed.parallel_state",
    "get_cfg_group": "vllm_omni.diffusion.distributed.parallel_state",
    # the engine and its executors
    "DiffusionEngine": "vllm_omni.diffusion.diffusion_engine",
    "DiffusionExecutor": "vllm_omni.diffusion.executor.abstract",
    "EngineDeadError": "vllm.v1.engine.exceptions",
    # what goes through it
    "DiffusionOutput": "vllm_omni.diffusion.data",
    "DiffusionParallelConfig": "vllm_omni.diffusion.data",
    "DiffusionRequestAbortedError": "vllm_omni.diffusion.data",
    "OmniClientError": "vllm_omni.errors",
    "OmniDiffusionConfig": "vllm_omni.diffusion.data",
    "OmniDiffusionRequest": "vllm_omni.diffusion.request",
    "OmniDiffusionSamplingParams": "vllm_omni.inputs.data",
}
"""What may be imported from this module: the name, and the module that it is of."""


class OmniUnavailableError(RuntimeError):
    """vLLM-Omni is not installed, or is of a version that was never tested."""


@cache
def check_versions() -> str:
    """The version of vLLM-Omni.

    Raises:
        OmniUnavailableError: naming what was found and what is tested.
    """
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError as error:
            raise OmniUnavailableError(
                f"{package} is not installed; the engine omni needs vllm and vllm-omni {TESTED}.*"
            ) from error
    for package, number in found.items():
        if number.split(".")[:2] != TESTED.split("."):
            raise OmniUnavailableError(
                f"{package} is {number}; the engine omni is tested with {TESTED}.* of "
                f"{' and '.join(PACKAGES)}, and other minor versions break it"
            )
    return found["vllm-omni"]


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_versions()
    return getattr(import_module(NAMES[name]), name)
