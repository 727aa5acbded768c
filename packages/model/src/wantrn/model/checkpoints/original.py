"""The names of the original Wan release, which ComfyUI uses too, some files with a prefix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wantrn.model.checkpoints.diffusers import canonical_shapes
from wantrn.model.config import WanConfig

# Prefixes that community files put before every name; the longest first.
PREFIXES = ("model.diffusion_model.", "diffusion_model.")

# Canonical to original; what is left out has the same name in both.
_TOP: Mapping[str, str] = {
    "condition_embedder.time_embedder.linear_1": "time_embedding.0",
    "condition_embedder.time_embedder.linear_2": "time_embedding.2",
    "condition_embedder.time_proj": "time_projection.1",
    "condition_embedder.text_embedder.linear_1": "text_embedding.0",
    "condition_embedder.text_embedder.linear_2": "text_embedding.2",
    "proj_out": "head.head",
}
_BLOCK: Mapping[str, str] = {
    "attn1.to_q": "self_attn.q",
    "attn1.to_k": "self_attn.k",
    "attn1.to_v": "self_attn.v",
    "attn1.to_out.0": "self_attn.o",
    "attn1.norm_q": "self_attn.norm_q",
    "attn1.norm_k": "self_attn.norm_k",
    "attn2.to_q": "cross_attn.q",
    "attn2.to_k": "cross_attn.k",
    "attn2.to_v": "cross_attn.v",
    "attn2.to_out.0": "cross_attn.o",
    "attn2.norm_q": "cross_attn.norm_q",
    "attn2.norm_k": "cross_attn.norm_k",
    "norm2": "norm3",  # the norms are numbered otherwise, it is the one before cross-attention
    "ffn.net.0.proj": "ffn.0",
    "ffn.net.2": "ffn.2",
}


def key_map(config: WanConfig, prefix: str = "") -> dict[str, str]:
    """Canonical name to the name in an original Wan file, with ``prefix`` before each of them."""
    return {name: prefix + original_name(name) for name in canonical_shapes(config)}


def find_prefix(names: Iterable[str]) -> str:
    """The prefix that one of ``names`` has, or the empty string.

    A file in which only some names have it fails the bijection check afterwards.
    """
    names = tuple(names)
    for prefix in PREFIXES:
        if any(name.startswith(prefix) for name in names):
            return prefix
    return ""


def original_name(name: str) -> str:
    """The original Wan name of the tensor that diffusers calls ``name``."""
    if name == "scale_shift_table":
        return "head.modulation"
    if not name.startswith("blocks."):
        return _rename(name, _TOP)
    blocks, index, rest = name.split(".", 2)
    inner = "modulation" if rest == "scale_shift_table" else _rename(rest, _BLOCK)
    return f"{blocks}.{index}.{inner}"


def _rename(name: str, table: Mapping[str, str]) -> str:
    stem, leaf = name.rsplit(".", 1)
    return f"{table.get(stem, stem)}.{leaf}"
