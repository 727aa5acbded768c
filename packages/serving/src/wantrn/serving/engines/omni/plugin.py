"""The entry points by which vLLM and vLLM-Omni find us; see the package's BUILD file."""

from __future__ import annotations

from wantrn.model.info import ModelKind
from wantrn.serving.engines.omni.hardware import CPU, NEURON, find_platform

_HERE = "wantrn.serving.engines.omni"
_PLATFORMS = {
    CPU: f"{_HERE}.cpu_platform.CpuOmniPlatform",
    NEURON: f"{_HERE}.neuron_platform.NeuronOmniPlatform",
}
_PIPELINES = ("WanPipeline", "WanImageToVideoPipeline")


def model_class(kind: ModelKind) -> str:
    """The name by which vLLM-Omni knows a model of this kind."""
    return _PIPELINES[kind is ModelKind.I2V]


def omni_platform() -> str | None:
    """``vllm_omni.platform_plugins``: the class of our platform, None where it is not ours."""
    found = find_platform()
    return None if found is None else _PLATFORMS[found]


def vllm_platform() -> str | None:
    """``vllm.platform_plugins``: vLLM's own platform below ours."""
    return None if find_platform() is None else "vllm.platforms.cpu.CpuPlatform"


def register() -> None:
    """``vllm_omni.general_plugins``: our pipelines in place of vLLM-Omni's, on our platforms."""
    if find_platform() is None:
        return
    from wantrn.serving.engines.omni.compatibility import register_diffusion_model

    for name in _PIPELINES:
        register_diffusion_model(
            model_arch=name,
            module_name=f"{_HERE}.pipeline",
            class_name=f"Step{name}",
            pre_process_func_name="get_pre_process_func",
            post_process_func_name="get_post_process_func",
        )
