"""What a checkpoint folder holds, from its JSON files alone."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from wantrn.model.config import WanConfig
from wantrn.model.dit_config import read_dit_config
from wantrn.model.errors import CheckpointError, RequestError
from wantrn.model.json_file import read_json
from wantrn.model.quantization.groups import QuantizationOptions
from wantrn.model.quantization.recognise import read_quantization

_MASK_CHANNELS = 4  # I2V: one for each frame that the VAE folds into a latent frame

DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_FP8_DTYPE = torch.bfloat16  # of a model with FP8 layers: its operators give nothing else


class ModelKind(enum.Enum):
    """The three models of the Wan2.2 release."""

    T2V = "t2v"
    """Text to video."""
    I2V = "i2v"
    """Image (the first frame) and text to video; the image enters as extra channels."""
    TI2V = "ti2v"
    """Text, with or without a first frame, to video; the frame's tokens have timestep 0."""


@dataclass(frozen=True)
class GenerationDefaults:
    """What is used where a request does not say."""

    size: tuple[int, int]  # (width, height), pixels
    frames: int
    fps: int
    steps: int
    guidance: float  # of the high-noise (or only) expert
    guidance_2: float | None  # of the low-noise expert; None where there is one expert
    dtype: torch.dtype


# Wan2.2's own configuration files (steps, guidance, frames, fps); sizes: 480p for the two A14B
# models, 720p of the 5B model's 16-fold VAE. The schedule's shift comes from the checkpoint.
_OFFICIAL: Mapping[ModelKind, GenerationDefaults] = {
    ModelKind.T2V: GenerationDefaults((832, 480), 81, 16, 40, 4.0, 3.0, torch.bfloat16),
    ModelKind.I2V: GenerationDefaults((832, 480), 81, 16, 40, 3.5, 3.5, torch.bfloat16),
    ModelKind.TI2V: GenerationDefaults((1280, 704), 121, 24, 50, 5.0, None, torch.bfloat16),
}

DEFAULTS_FILE = "generation_defaults.json"


@dataclass(frozen=True)
class ModelInfo:
    """A checkpoint folder in the layout of diffusers."""

    directory: Path
    kind: ModelKind
    config: WanConfig
    experts: tuple[Path, ...]  # folder of the high-noise (or only) expert, of the low-noise expert
    boundary_ratio: float | None  # timesteps from this share of 1000 up are the high-noise expert's
    scheduler_config: Mapping[str, Any]
    temporal_stride: int  # video frames in a latent frame, after the first
    spatial_stride: int  # pixels in a latent position, along a side
    latent_channels: int
    defaults: GenerationDefaults
    quantization: QuantizationOptions | None  # of the transformers; None where nothing is FP8

    @property
    def size_multiple(self) -> int:
        """Width and height must be multiples of this: the VAE's stride times the patch."""
        return self.spatial_stride * self.config.patch_size[1]

    def choose_dtype(self, name: str | None) -> torch.dtype:
        """The number format of the weights by its name in ``DTYPES``, or the checkpoint's own.

        Raises ``RequestError`` if the model cannot be loaded in it.
        """
        dtype = self.defaults.dtype if name is None else DTYPES[name]
        self.check_dtype(dtype)
        return dtype

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Raise ``RequestError`` unless the model can be loaded in ``dtype``."""
        if self.quantization is not None and dtype != _FP8_DTYPE:
            wanted, allowed = (str(one).removeprefix("torch.") for one in (dtype, _FP8_DTYPE))
            raise RequestError(
                "dtype", f"got {wanted}, but the model has FP8 layers; allowed is {allowed}"
            )


def read_model_info(directory: Path) -> ModelInfo:
    """Read a checkpoint folder's JSON files (and, without a DiT config, tensor headers).

    Raises ``CheckpointError`` naming the file and key that is missing or makes no sense.
    """
    index_file = directory / "model_index.json"
    index = read_json(index_file)
    experts = tuple(
        directory / name
        for name in ("transformer", "transformer_2")
        if isinstance(entry := index.get(name), list) and entry and entry[0] is not None
    )
    if not experts or experts[0].name != "transformer":
        raise CheckpointError(f"{index_file}: names no transformer")
    quantization = read_quantization(experts)
    configs = [read_dit_config(expert) for expert in experts]
    if len(set(configs)) > 1:
        raise CheckpointError(f"{experts[1]}: its config differs from that of {experts[0].name}")
    vae_file = directory / "vae" / "config.json"
    vae = read_json(vae_file)
    kind = _kind(index, configs[0], index_file)
    latent_channels = int(vae.get("z_dim", 16))
    if latent_channels != configs[0].out_channels:
        raise CheckpointError(
            f"{vae_file}: z_dim is {latent_channels}; the transformer's out_channels is "
            f"{configs[0].out_channels}"
        )
    defaults = _defaults(directory / DEFAULTS_FILE, kind, len(experts))
    if quantization is not None:
        defaults = replace(defaults, dtype=_FP8_DTYPE)
    # diffusers' own defaults of AutoencoderKLWan where a key is absent
    stages = vae.get("dim_mult", [1, 2, 4, 4])
    halvings = vae.get("temperal_downsample", [False, True, True])
    return ModelInfo(
        directory=directory,
        kind=kind,
        config=configs[0],
        experts=experts,
        boundary_ratio=_boundary(index, len(experts), index_file),
        scheduler_config=read_json(directory / "scheduler" / "scheduler_config.json"),
        temporal_stride=2 ** sum(map(bool, halvings)),
        spatial_stride=2 ** (len(stages) - 1) * int(vae.get("patch_size") or 1),
        latent_channels=latent_channels,
        defaults=defaults,
        quantization=quantization,
    )


def _kind(index: Mapping[str, Any], config: WanConfig, source: Path) -> ModelKind:
    conditioned = config.out_channels + _MASK_CHANNELS + config.out_channels
    if config.in_channels == conditioned:
        return ModelKind.I2V
    if config.in_channels != config.out_channels:
        raise CheckpointError(
            f"{source.parent}: a transformer with {config.in_channels} input and "
            f"{config.out_channels} output channels is none of Wan2.2's; allowed are "
            f"{config.out_channels} (T2V, TI2V) and {conditioned} (I2V)"
        )
    return ModelKind.TI2V if index.get("expand_timesteps") else ModelKind.T2V


def _boundary(index: Mapping[str, Any], experts: int, source: Path) -> float | None:
    ratio = index.get("boundary_ratio")
    if experts == 1:
        if ratio is not None:
            raise CheckpointError(f"{source}: boundary_ratio is {ratio} with a single transformer")
        return None
    if not isinstance(ratio, int | float) or not 0 <= ratio <= 1:
        raise CheckpointError(
            f"{source}: boundary_ratio must be in 0..1 with two transformers, is {ratio!r}"
        )
    return float(ratio)


def _defaults(file: Path, kind: ModelKind, experts: int) -> GenerationDefaults:
    """The official values, replaced by what ``generation_defaults.json`` says, if it is there."""
    defaults = _OFFICIAL[kind]
    if experts == 1:
        defaults = replace(defaults, guidance_2=None)
    elif defaults.guidance_2 is None:
        defaults = replace(defaults, guidance_2=defaults.guidance)
    if not file.exists():
        return defaults
    values = read_json(file)
    unknown = set(values) - {field.name for field in fields(GenerationDefaults)}
    if unknown:
        raise CheckpointError(f"{file}: unknown key {sorted(unknown)[0]!r}")
    try:
        if "size" in values:
            width, height = values["size"]
            values["size"] = (int(width), int(height))
        if "dtype" in values:
            values["dtype"] = DTYPES[values["dtype"]]
        return replace(defaults, **values)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error!r}") from error
