"""The tensors of a Wan2.2 DiT under diffusers' names, which are the canonical ones here."""

from __future__ import annotations

from wantrn.model.checkpoints.key_maps import Shape
from wantrn.model.config import WanConfig


def canonical_shapes(config: WanConfig) -> dict[str, Shape]:
    """Shapes of all tensors that diffusers' ``WanTransformer3DModel`` saves for ``config``."""
    hidden = config.hidden_size
    shapes: dict[str, Shape] = {
        "scale_shift_table": (1, 2, hidden),
        "patch_embedding.weight": (hidden, config.in_channels, *config.patch_size),
        "patch_embedding.bias": (hidden,),
    }
    embedder = "condition_embedder"
    shapes |= _linear(f"{embedder}.time_embedder.linear_1", config.freq_dim, hidden)
    shapes |= _linear(f"{embedder}.time_embedder.linear_2", hidden, hidden)
    shapes |= _linear(f"{embedder}.time_proj", hidden, 6 * hidden)
    shapes |= _linear(f"{embedder}.text_embedder.linear_1", config.text_dim, hidden)
    shapes |= _linear(f"{embedder}.text_embedder.linear_2", hidden, hidden)
    for index in range(config.num_layers):
        shapes |= _block(f"blocks.{index}", config)
    shapes |= _linear("proj_out", hidden, config.out_channels * config.patch_volume)
    return shapes


def key_map(config: WanConfig) -> dict[str, str]:
    """Canonical name to the name in a diffusers file: the identity."""
    return {name: name for name in canonical_shapes(config)}


def _linear(stem: str, inputs: int, outputs: int) -> dict[str, Shape]:
    return {f"{stem}.weight": (outputs, inputs), f"{stem}.bias": (outputs,)}


def _block(stem: str, config: WanConfig) -> dict[str, Shape]:
    hidden = config.hidden_size
    shapes: dict[str, Shape] = {f"{stem}.scale_shift_table": (1, 6, hidden)}
    for attention in ("attn1", "attn2"):
        for part in ("to_q", "to_k", "to_v", "to_out.0"):
            shapes |= _linear(f"{stem}.{attention}.{part}", hidden, hidden)
        for norm in ("norm_q", "norm_k"):
            shapes[f"{stem}.{attention}.{norm}.weight"] = (hidden,)
    shapes[f"{stem}.norm2.weight"] = (hidden,)
    shapes[f"{stem}.norm2.bias"] = (hidden,)
    shapes |= _linear(f"{stem}.ffn.net.0.proj", hidden, config.ffn_dim)
    shapes |= _linear(f"{stem}.ffn.net.2", config.ffn_dim, hidden)
    return shapes
