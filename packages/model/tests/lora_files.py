"""LoRAs for tests: random ones, their files in each dialect, and the weights that they come to.

Nothing here knows how the package reads or applies them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from checkpoint_files import write_file
from torch import Tensor

from wantrn.model.config import WanConfig

# diffusers' names, and those of the original release, of a block's layers
BLOCK = {
    "attn1.to_q": "self_attn.q",
    "attn1.to_k": "self_attn.k",
    "attn1.to_v": "self_attn.v",
    "attn1.to_out.0": "self_attn.o",
    "attn2.to_q": "cross_attn.q",
    "attn2.to_k": "cross_attn.k",
    "attn2.to_v": "cross_attn.v",
    "attn2.to_out.0": "cross_attn.o",
    "ffn.net.0.proj": "ffn.0",
    "ffn.net.2": "ffn.2",
}
TOP = {
    "patch_embedding": "patch_embedding",
    "condition_embedder.time_embedder.linear_1": "time_embedding.0",
    "condition_embedder.time_embedder.linear_2": "time_embedding.2",
    "condition_embedder.time_proj": "time_projection.1",
    "condition_embedder.text_embedder.linear_1": "text_embedding.0",
    "condition_embedder.text_embedder.linear_2": "text_embedding.2",
    "proj_out": "head.head",
}
# what has no matrix: (diffusers' tensor, its leaf there, the original name)
VECTORS = {
    "attn1.norm_q.weight": "self_attn.norm_q.diff",
    "attn1.norm_k.weight": "self_attn.norm_k.diff",
    "attn2.norm_q.weight": "cross_attn.norm_q.diff",
    "attn2.norm_k.weight": "cross_attn.norm_k.diff",
    "norm2.weight": "norm3.diff",
    "norm2.bias": "norm3.diff_b",
    "scale_shift_table": "modulation.diff",
}


@dataclass(frozen=True)
class LowRank:
    """``alpha / rank * up @ down``; no alpha is one of the rank."""

    down: Tensor
    up: Tensor
    alpha: float | None = None

    @property
    def change(self) -> Tensor:
        rank = self.down.shape[0]
        factor = 1.0 if self.alpha is None else self.alpha / rank
        product = self.up.flatten(1).double() @ self.down.flatten(1).double()
        return factor * product.view(self.up.shape[0], *self.down.shape[1:])


@dataclass(frozen=True)
class Made:
    """A LoRA: layers by diffusers' names, and tensors that are changed by a difference."""

    layers: Mapping[str, LowRank]
    differences: Mapping[str, Tensor] = field(default_factory=dict)


def layer_names(config: WanConfig) -> dict[str, str]:
    """All layers: diffusers' name to the original one."""
    blocks = {
        f"blocks.{index}.{name}": f"blocks.{index}.{other}"
        for index in range(config.num_layers)
        for name, other in BLOCK.items()
    }
    return TOP | blocks


def vector_names(config: WanConfig) -> dict[str, str]:
    """Tensors that are no matrix, and all biases: diffusers' name to the original key."""
    found = {"scale_shift_table": "head.modulation.diff"}
    found |= {f"{name}.bias": f"{other}.diff_b" for name, other in layer_names(config).items()}
    for index in range(config.num_layers):
        for name, other in VECTORS.items():
            found[f"blocks.{index}.{name}"] = f"blocks.{index}.{other}"
    return found


def made(
    canonical: Mapping[str, Tensor],
    config: WanConfig,
    *,
    rank: int = 3,
    alpha: float | None = 2.0,
    strength: float = 0.5,
    seed: int = 0,
    only: Callable[[str], bool] = lambda name: True,
    differences: bool = False,
) -> Made:
    """A random LoRA of all layers, and with ``differences`` of all else; of about ``strength``
    times the weights' own size."""
    generator = torch.Generator().manual_seed(seed)

    def like(shape: tuple[int, ...], size: float) -> Tensor:
        return size * torch.randn(shape, generator=generator)

    layers = {}
    for name in filter(only, layer_names(config)):
        weight = canonical[f"{name}.weight"]
        ones = (1,) * (weight.ndim - 2)
        up = like((weight.shape[0], rank, *ones), strength * float(weight.std()))
        factor = 1.0 if alpha is None else alpha / rank
        layers[name] = LowRank(like((rank, *weight.shape[1:]), rank**-0.5 / factor), up, alpha)
    changed = {}
    if differences:
        for name in filter(only, vector_names(config)):
            changed[name] = like(tuple(canonical[name].shape), 0.3 * float(canonical[name].std()))
        for name in filter(only, ("blocks.0.attn1.to_k.weight", "blocks.0.ffn.net.2.weight")):
            changed[name] = like(tuple(canonical[name].shape), 0.3 * float(canonical[name].std()))
    return Made(layers, changed)


def merged(canonical: Mapping[str, Tensor], *loras: tuple[Made, float]) -> dict[str, Tensor]:
    """The weights with LoRAs in them, each with its scale; computed in fp64."""
    found = {name: tensor.double() for name, tensor in canonical.items()}
    for lora, scale in loras:
        for name, layer in lora.layers.items():
            found[f"{name}.weight"] = found[f"{name}.weight"] + scale * layer.change
        for name, difference in lora.differences.items():
            found[name] = found[name] + scale * difference.double()
    return {name: tensor.float() for name, tensor in found.items()}


def diffusers_tensors(lora: Made, prefix: str = "transformer.") -> dict[str, Tensor]:
    """diffusers and PEFT; without alpha, which has no tensor there."""
    found = {}
    for name, layer in lora.layers.items():
        assert layer.alpha is None, "has no place for alpha"
        found[f"{prefix}{name}.lora_A.weight"] = layer.down
        found[f"{prefix}{name}.lora_B.weight"] = layer.up
    assert not lora.differences, "has no place for differences"
    return found


def original_tensors(
    lora: Made, config: WanConfig, prefix: str = "", pair: tuple[str, str] = ("down", "up")
) -> dict[str, Tensor]:
    """The original release's names, and with the prefix ``diffusion_model.`` ComfyUI's."""
    names, vectors = layer_names(config), vector_names(config)
    found = {}
    for name, layer in lora.layers.items():
        stem = f"{prefix}{names[name]}"
        found[f"{stem}.lora_{pair[0]}.weight"] = layer.down
        found[f"{stem}.lora_{pair[1]}.weight"] = layer.up
        if layer.alpha is not None:
            found[f"{stem}.alpha"] = torch.tensor(layer.alpha)
    for name, difference in lora.differences.items():
        if name in vectors:
            found[f"{prefix}{vectors[name]}"] = difference
        else:
            found[f"{prefix}{names[name.removesuffix('.weight')]}.diff"] = difference
    return found


def kohya_tensors(lora: Made, config: WanConfig) -> dict[str, Tensor]:
    """Names with underscores; the suffixes of the original ones."""
    found = {}
    for key, tensor in original_tensors(lora, config).items():
        stem, dot, suffix = key.partition(".lora_")
        if not dot:
            stem, dot, suffix = key.rpartition(".")
        found["lora_unet_" + stem.replace(".", "_") + dot + suffix] = tensor
    return found


def write_lora(path: Path, lora: Made, config: WanConfig) -> Path:
    """A file under ComfyUI's names."""
    return write_file(path, original_tensors(lora, config, "diffusion_model."))
