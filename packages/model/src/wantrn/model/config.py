"""The shape of a Wan2.2 diffusion transformer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from wantrn.model.errors import CheckpointError

# What every Wan2.2 checkpoint has, under diffusers' names. Wan2.1 variants (CLIP image branch,
# learned position table, no cross-attention norm) are other models and are refused.
_FIXED: Mapping[str, Any] = {
    "qk_norm": "rms_norm_across_heads",
    "cross_attn_norm": True,
    "image_dim": None,
    "added_kv_proj_dim": None,
    "pos_embed_seq_len": None,
}


@dataclass(frozen=True)
class WanConfig:
    """Dimensions of one DiT; fields and defaults are those of diffusers' ``config.json``.

    The defaults are one expert of Wan2.2-T2V-A14B. I2V-A14B has ``in_channels=36`` (16 noise,
    4 mask, 16 image latent); TI2V-5B has 24 heads, 30 layers, ``ffn_dim=14336`` and 48 channels.
    """

    patch_size: tuple[int, int, int] = (1, 2, 2)  # latent frames, rows, columns in one token
    num_attention_heads: int = 40
    attention_head_dim: int = 128
    in_channels: int = 16
    out_channels: int = 16
    text_dim: int = 4096
    freq_dim: int = 256
    ffn_dim: int = 13824
    num_layers: int = 40
    eps: float = 1e-6
    rope_max_seq_len: int = 1024  # the largest token coordinate along any axis, plus one

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            numbers = value if isinstance(value, tuple) else (value,)
            if any(number <= 0 for number in numbers):
                raise ValueError(f"{field.name} must be positive, got {value}")
        if len(self.patch_size) != 3:
            raise ValueError(f"patch_size must have 3 entries, got {self.patch_size}")
        if self.attention_head_dim % 2:
            raise ValueError(
                f"attention_head_dim must be even (rotary pairs), got {self.attention_head_dim}"
            )
        if self.freq_dim % 2:
            raise ValueError(f"freq_dim must be even (cosine | sine), got {self.freq_dim}")

    @property
    def hidden_size(self) -> int:
        """H, the width of the residual stream: heads times head dimension."""
        return self.num_attention_heads * self.attention_head_dim

    @property
    def patch_volume(self) -> int:
        """Latent positions in one token."""
        return self.patch_size[0] * self.patch_size[1] * self.patch_size[2]

    @classmethod
    def from_diffusers(cls, config: Mapping[str, Any], source: str) -> WanConfig:
        """Read a diffusers ``config.json``; ``source`` names it in errors.

        Raises ``CheckpointError`` on a key that this model does not know, or on a value that
        describes another model.
        """
        names = {field.name for field in fields(cls)}
        values: dict[str, Any] = {}
        for key, value in config.items():
            if key.startswith("_"):
                continue
            if key in _FIXED:
                if value != _FIXED[key]:
                    raise CheckpointError(
                        f"{source}: {key} is {value!r}; a Wan2.2 DiT has {_FIXED[key]!r}"
                    )
            elif key in names:
                values[key] = tuple(value) if key == "patch_size" else value
            else:
                raise CheckpointError(f"{source}: unknown key {key!r} in a Wan2.2 DiT config")
        try:
            return cls(**values)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{source}: {error}") from error

    def to_diffusers(self) -> dict[str, Any]:
        """The ``config.json`` that diffusers reads for the same model."""
        values = asdict(self)
        values["patch_size"] = list(self.patch_size)
        return {"_class_name": "WanTransformer3DModel", **values, **_FIXED}
