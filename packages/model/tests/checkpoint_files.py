"""Small Wan2.2 checkpoints in the published formats, for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from wantrn.model.checkpoints.diffusers import canonical_shapes
from wantrn.model.checkpoints.original import key_map
from wantrn.model.config import WanConfig

TINY = WanConfig(
    num_attention_heads=2, text_dim=32, freq_dim=64, ffn_dim=64, num_layers=2, rope_max_seq_len=64
)

# The same with narrow heads, for tests that write many files.
SMALL = replace(TINY, attention_head_dim=8)

# What the published FP8 files quantize: the ten Linears of a block and these six.
FP8_TOP = (
    "condition_embedder.time_embedder.linear_1",
    "condition_embedder.time_embedder.linear_2",
    "condition_embedder.time_proj",
    "condition_embedder.text_embedder.linear_1",
    "condition_embedder.text_embedder.linear_2",
    "proj_out",
)


def canonical_tensors(config: WanConfig = TINY, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random float32 tensors of one DiT under diffusers' names."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator)
        for name, shape in canonical_shapes(config).items()
    }


def is_quantized(name: str) -> bool:
    """Whether the published FP8 files hold the tensor with this diffusers name in FP8."""
    stem, _, leaf = name.rpartition(".")
    linear = stem in FP8_TOP or (
        stem.startswith("blocks.") and (".attn" in stem or ".ffn." in stem) and ".norm_" not in stem
    )
    return leaf == "weight" and linear


def comfyui_tensors(
    canonical: Mapping[str, torch.Tensor],
    config: WanConfig = TINY,
    spelling: tuple[str, str] = ("scale_weight", "scale_input"),
    prefix: str = "",
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """An FP8-scaled file's tensors, and the values they stand for under diffusers' names.

    The scale maps the largest magnitude of a weight to 448, the largest of float8_e4m3fn.
    """
    keys = key_map(config, prefix)
    stored = {f"{prefix}scaled_fp8": torch.zeros(2, dtype=torch.float8_e4m3fn)}
    values = {}
    for name, tensor in canonical.items():
        if not is_quantized(name):
            stored[keys[name]] = values[name] = tensor
            continue
        scale = tensor.abs().max() / 448
        codes = (tensor / scale).to(torch.float8_e4m3fn)
        stem = keys[name].removesuffix("weight")
        stored[keys[name]] = codes
        stored[stem + spelling[0]] = scale
        stored[stem + spelling[1]] = torch.tensor(1.0)
        values[name] = codes.float() * scale
    return stored, values


def write_file(path: Path, tensors: Mapping[str, torch.Tensor]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: _plain(tensor) for name, tensor in tensors.items()}, path)
    return path


def write_raw(path: Path, header: object, data: bytes = b"") -> Path:
    """A safetensors file with any header: an object for JSON, or the bytes themselves."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def write_shards(
    folder: Path,
    shards: Mapping[str, Mapping[str, torch.Tensor]],
    weight_map: Mapping[str, object] | None = None,
    stem: str = "diffusion_pytorch_model",
) -> Path:
    """Files by name and an index; the index says what is true unless ``weight_map`` is given."""
    for file, tensors in shards.items():
        write_file(folder / file, tensors)
    true_map = {name: file for file, tensors in shards.items() for name in tensors}
    index = {"metadata": {}, "weight_map": true_map if weight_map is None else dict(weight_map)}
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index))
    return folder


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """safetensors refuses tensors that share memory, which tests are free to do."""
    return tensor.clone(memory_format=torch.contiguous_format)
