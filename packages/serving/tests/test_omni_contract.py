"""What we rely on of vLLM-Omni, which versions of it are taken, and what it is not asked for."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omni_environment import needs_omni, run_with_omni

from wantrn.model.info import ModelKind
from wantrn.model.tiny import write_tiny_checkpoint
from wantrn.serving.engines.omni import compatibility, hardware
from wantrn.serving.engines.omni.compatibility import NAMES, OmniUnavailableError, check_versions
from wantrn.serving.engines.omni.plugin import (
    model_class,
    omni_platform,
    register,
    vllm_platform,
)
from wantrn.serving.engines.omni.stage_options import StageOptionError, stage_arguments
from wantrn.serving.engines.options import EngineOptions
from wantrn.serving.rank_options import RankOptions


def pretend(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Let these be the packages that are installed, by their names with _ for -."""

    def version(package: str) -> str:
        try:
            return versions[package.replace("-", "_")]
        except KeyError as error:
            raise PackageNotFoundError(package) from error

    monkeypatch.setattr(compatibility, "version", version)
    check_versions.cache_clear()
    monkeypatch.setattr(compatibility, "check_versions", check_versions.__wrapped__)


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({}, "vllm is not installed; the engine omni needs vllm and vllm-omni 0.30.*"),
        ({"vllm": "0.30.0"}, "vllm-omni is not installed"),
        ({"vllm": "0.30.0", "vllm_omni": "0.32.0"}, "vllm-omni is 0.32.0; .* tested with 0.30.*"),
        ({"vllm": "0.29.1", "vllm_omni": "0.30.0"}, "vllm is 0.29.1; .* tested with 0.30.*"),
        ({"vllm": "0.30.0", "vllm_omni": "0.3.0"}, "vllm-omni is 0.3.0"),
    ],
)
def test_other_versions_are_refused(
    versions: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, **versions)
    with pytest.raises(OmniUnavailableError, match=said):
        _ = compatibility.OmniPlatform


def test_patch_versions_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, vllm="0.30.0", vllm_omni="0.30.7")
    assert compatibility.check_versions() == "0.30.7"


def test_only_names_that_are_checked_can_be_imported() -> None:
    assert "Omni" not in NAMES
    with pytest.raises(AttributeError, match="'Omni'"):
        _ = compatibility.Omni


def test_one_module_imports_from_it() -> None:
    folder = Path(compatibility.__file__).parents[2]
    for file in folder.rglob("*.py"):
        words = [line.split() for line in file.read_text().splitlines()]
        imported = [line[1] for line in words if line[:1] in (["from"], ["import"]) and line[1:]]
        assert not [name for name in imported if name.split(".")[0] in ("vllm", "vllm_omni")], file


def test_a_machine_without_an_accelerator_has_the_platform_cpu() -> None:
    assert omni_platform() == "wantrn.serving.engines.omni.cpu_platform.CpuOmniPlatform"
    assert vllm_platform() == "vllm.platforms.cpu.CpuPlatform"


def test_a_machine_with_trainium_has_the_platform_neuron(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "find_device", lambda name: SimpleNamespace(type=name))
    assert omni_platform() == "wantrn.serving.engines.omni.neuron_platform.NeuronOmniPlatform"


def test_another_accelerator_is_left_to_vllm_omni(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
    assert omni_platform() is None and vllm_platform() is None
    # does not look for vLLM-Omni, which is not here
    monkeypatch.setattr(compatibility, "check_versions", None)
    register()


def test_models_have_the_names_that_vllm_omni_reads_in_checkpoints() -> None:
    assert model_class(ModelKind.T2V) == model_class(ModelKind.TI2V) == "WanPipeline"
    assert model_class(ModelKind.I2V) == "WanImageToVideoPipeline"


def test_groups_that_it_cannot_make_are_refused() -> None:
    gathering = RankOptions(ring=2, ulysses=2, context="all_gather")
    with pytest.raises(StageOptionError, match="context is all_gather with ulysses of 2"):
        stage_arguments(EngineOptions(model=Path("model"), ranks=gathering))


@needs_omni
def test_all_that_is_relied_on_is_there(tmp_path: Path) -> None:
    answer = run_with_omni("omni_contract.py", None, tmp_path, seconds=240)
    assert answer["wrong"] == []
    looked_at = answer["looked at"]
    assert looked_at["names"] == len(NAMES)
    assert looked_at["calls"] > 20 and looked_at["overrides"] > 30 and looked_at["orders"] == 3


def warm(width: int) -> dict[str, int]:
    return {"width": width, "height": 64, "frames": 5}


# A stage's fields, and how the refusal begins.
STAGES: list[tuple[dict[str, Any], str | None]] = [
    ({}, None),
    ({"step_execution": False}, "step_execution is False"),
    ({"model_class_name": "WanVACEPipeline"}, "model_class_name is 'WanVACEPipeline'"),
    ({"cache_backend": "cache_dit"}, "cache_backend is 'cache_dit'"),
    ({"lora_path": "somewhere"}, "lora_path is 'somewhere'"),
    ({"enable_sleep_mode": True}, "enable_sleep_mode is True"),
    ({"enable_cpu_offload": True}, "enable_cpu_offload is True"),
    (
        {"enable_layerwise_offload": True, "parallel_config": {"ulysses_degree": 2}},
        "enable_layerwise_offload is True",
    ),
    (
        {"enable_distributed_layerwise_offload": True, "parallel_config": {"ring_degree": 2}},
        "enable_distributed_layerwise_offload is True",
    ),
    ({"vae_use_slicing": True}, "vae_use_slicing is True"),
    ({"streaming_output": True}, "streaming_output is True"),
    ({"quantization_config": "fp8"}, "quantization_config is given"),
    ({"boundary_ratio": 0.5}, "boundary_ratio is 0.5"),
    ({"boundary_ratio": 0.875}, None),
    ({"dtype": "float16"}, None),
    ({"custom_pipeline_args": {"wantrn": {"speed": 2}}}, "custom_pipeline_args has 'speed'"),
    ({"custom_pipeline_args": {"other": 1}}, "custom_pipeline_args has 'other'"),
    ({"custom_pipeline_args": {"wantrn": {"batch_guidance": True}}}, None),
    (
        {"custom_pipeline_args": {"wantrn": {"threads": 0}}},
        "custom_pipeline_args has wantrn.threads of 0: ",
    ),
    (
        {"custom_pipeline_args": {"wantrn": {"warm_up": [{"width": 64, "height": 64}]}}},
        "custom_pipeline_args has wantrn.warm_up.0.frames",
    ),
    ({"custom_pipeline_args": {"wantrn": {"warm_up": [warm(64)]}}}, None),
    ({"custom_pipeline_args": {"wantrn": {"warm_up": [warm(50)]}}}, "buckets: 50x64x5: size: "),
    ({"parallel_config": {"use_hsdp": True, "hsdp_shard_size": 2}}, "use_hsdp is True"),
    ({"parallel_config": {"pipeline_parallel_size": 2}}, "pipeline_parallel_size is 2"),
    ({"parallel_config": {"data_parallel_size": 2}}, "data_parallel_size is 2"),
    (
        {"parallel_config": {"ulysses_degree": 2, "mask_sp_padding": True}},
        "mask_sp_padding is True",
    ),
    ({"parallel_config": {"ulysses_degree": 2, "ulysses_mode": "advanced_uaa"}}, "ulysses_mode"),
    ({"parallel_config": {"text_encoder_tp_size": 2}}, "text_encoder_tp_size is 2"),
    (
        {"parallel_config": {"ring_degree": 2, "vae_parallel_mode": "spatial_shard_height"}},
        "vae_parallel_mode is 'spatial_shard_height'",
    ),
    (
        {"parallel_config": {"ring_degree": 2, "vae_patch_parallel_size": 4}},
        "vae_patch_parallel_size is 4; allowed are 1 and 2",
    ),
    ({"parallel_config": {"ring_degree": 2, "vae_patch_parallel_size": 2}}, None),
    ({"parallel_config": {"tensor_parallel_size": 4}}, "tp: "),
    ({"parallel_config": {"cfg_parallel_size": 3}}, "cfg_parallel_size is 3"),
    ({"parallel_config": {"allgather_degree": 2}}, None),
]
SMALL = {"prompt": "a cat", "width": 48, "height": 32, "num_inference_steps": 3, "seed": 1}
# A request's fields, and part of the refusal, or of the settings.
REQUESTS: list[tuple[dict[str, Any], str | dict[str, Any]]] = [
    (SMALL, {"size": "48x32", "frames": 17, "steps": 3, "seed": 1, "shift": 6.0, "guidance": 4.0}),
    ({**SMALL, "guidance_scale": 2.0}, {"guidance": 2.0, "guidance_2": 3.0}),
    ({**SMALL, "guidance_scale_2": 2.0}, {"guidance": 4.0, "guidance_2": 2.0}),
    ({**SMALL, "extra_args": {"flow_shift": 2.0}}, {"shift": 2.0}),
    ({**SMALL, "extra_args": {"step_cache": 0.25}}, {"step_cache": 0.25}),
    ({**SMALL, "extra_args": {"step_cache": 2.0}}, "400 step_cache: threshold must be above 0"),
    ({**SMALL, "num_frames": 9, "fps": 8.0}, {"frames": 9, "fps": 8}),
    ({**SMALL, "prompt": {"prompt": "a", "negative_prompt": "b"}}, {"negative_prompt": "b"}),
    ({**SMALL, "width": 50}, "400 size: 50x32 cannot be made"),
    ({**SMALL, "width": None}, "400 size: got width None and height 32"),
    ({**SMALL, "num_frames": 10}, "400 frames: 10 cannot be made"),
    ({**SMALL, "fps": 8.5}, "400 fps: got 8.5"),
    ({**SMALL, "guidance_scale": 0.0}, "400 guidance: "),
    ({**SMALL, "num_outputs_per_prompt": 2}, "400 num_outputs_per_prompt: got 2"),
    ({**SMALL, "true_cfg_scale": 2.0}, "400 true_cfg_scale: got 2.0"),
    ({**SMALL, "strength": 0.5}, "400 strength: got 0.5"),
    ({**SMALL, "latents": True}, "400 latents: "),
    ({**SMALL, "lora_scale": 0.5}, "400 lora_scale: got 0.5 without a lora_request"),
    ({**SMALL, "boundary_ratio": 0.5}, "400 boundary_ratio: got 0.5"),
    ({**SMALL, "extra_args": {"speed": 2}}, "400 extra_args: got 'speed'"),
    (
        {**SMALL, "prompt": {"prompt": "a", "multi_modal_data": {"image": 7}}},
        "400 image: got a int",
    ),
]


@needs_omni
def test_what_would_be_ignored_is_refused_by_name(tmp_path: Path) -> None:
    model = tmp_path / "model"
    write_tiny_checkpoint(model, ModelKind.T2V)
    question = {
        "model": str(model),
        "stages": [stage for stage, _ in STAGES],
        "requests": [request for request, _ in REQUESTS],
    }
    answer = run_with_omni("omni_refusals.py", question, tmp_path, seconds=240)
    for (stage, wanted), said in zip(STAGES, answer["stages"], strict=True):
        assert said == wanted if wanted is None else said and said.startswith(wanted), stage
    for (request, expected), got in zip(REQUESTS, answer["requests"], strict=True):
        if isinstance(expected, str):
            assert isinstance(got, str) and got.startswith(expected), (request, got)
        else:
            assert isinstance(got, dict) and expected.items() <= got.items(), (request, got)
