"""``wantrn inspect``: what a checkpoint is, and what would be missing."""

from __future__ import annotations

from pathlib import Path

from wantrn.model.errors import RequestError
from wantrn.model.info import ModelInfo, read_model_info
from wantrn.model.inspection import inspect_checkpoint
from wantrn.model.schedulers import checkpoint_shift, scheduler_name
from wantrn.serving.table import aligned


def inspect(path: Path) -> int:
    """Print a report; return 1 if the checkpoint could not be used as it is, else 0.

    Reads configurations and headers only. Raises ``RequestError`` if there is nothing at ``path``.
    """
    if not path.exists():
        raise RequestError("directory", f"there is no folder or file {path}")
    report = inspect_checkpoint(path)
    print(report.text())
    if report.problems:
        return 1
    if path.is_dir() and (path / "model_index.json").exists():
        print(f"\n{aligned(_describe(read_model_info(path)))}")
    return 0


def _describe(info: ModelInfo) -> dict[str, object]:
    config, defaults = info.config, info.defaults
    guidance = [value for value in (defaults.guidance, defaults.guidance_2) if value is not None]
    return {
        "experts": _experts(info),
        "transformer shape": f"{config.num_layers} layers, {config.num_attention_heads} heads of "
        f"{config.attention_head_dim}, feed-forward {config.ffn_dim}, "
        f"{config.in_channels} -> {config.out_channels} channels",
        "fp8": "nothing" if info.quantization is None else info.quantization.describe(),
        "latents": f"{info.latent_channels} channels, 1/{info.temporal_stride} of the frames, "
        f"1/{info.spatial_stride} of each side",
        "scheduler": f"{scheduler_name(info.scheduler_config)}, "
        f"shift {checkpoint_shift(info.scheduler_config):g}",
        "defaults": f"{defaults.size[0]}x{defaults.size[1]}, {defaults.frames} frames, "
        f"{defaults.fps} fps, {defaults.steps} steps, guidance "
        f"{' and '.join(f'{value:g}' for value in guidance)}, "
        f"{str(defaults.dtype).removeprefix('torch.')}",
    }


def _experts(info: ModelInfo) -> str:
    if info.boundary_ratio is None:
        return "one transformer"
    return f"two, the first for timesteps from {info.boundary_ratio * 1000:g} up"
