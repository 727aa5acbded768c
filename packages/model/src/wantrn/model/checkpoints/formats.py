"""Which format a DiT checkpoint has, and what its shapes say about the model."""

from __future__ import annotations

import enum
import re

from wantrn.model.checkpoints import comfyui, original
from wantrn.model.checkpoints.key_maps import abridge
from wantrn.model.checkpoints.tensor_store import TensorStore
from wantrn.model.config import WanConfig
from wantrn.model.errors import CheckpointError


class CheckpointFormat(enum.Enum):
    """The layouts in which Wan2.2's transformer weights are published."""

    DIFFUSERS = "diffusers"
    ORIGINAL = "original"
    COMFYUI_FP8 = "comfyui-fp8"


# Parts of names that only one of the two families has.
_DIFFUSERS_MARKS = re.compile(r"^condition_embedder\.|\.attn[12]\.|\.scale_shift_table$")
_ORIGINAL_MARKS = re.compile(
    r"^(time_embedding|time_projection|text_embedding|head)\.|\.(self|cross)_attn\.|\.modulation$"
)

HEAD_DIM = 128  # of every published Wan2.2 transformer; no shape tells it


def detect_format(store: TensorStore) -> CheckpointFormat:
    """The format by the names in ``store``, so that a few missing or foreign keys do not mislead.

    Raises ``CheckpointError`` naming some keys if no name is one of a Wan transformer.
    """
    prefix = original.find_prefix(store.names)
    diffusers = sum(bool(_DIFFUSERS_MARKS.search(name)) for name in store.names)
    originals = sum(bool(_ORIGINAL_MARKS.search(name.removeprefix(prefix))) for name in store.names)
    if diffusers == originals == 0:
        raise CheckpointError(
            f"{store.source}: no Wan transformer in a known format; its keys are "
            f"{abridge(store.names)}"
        )
    if diffusers >= originals:
        return CheckpointFormat.DIFFUSERS
    return CheckpointFormat.COMFYUI_FP8 if comfyui.is_scaled(store) else CheckpointFormat.ORIGINAL


def infer_config(store: TensorStore, format: CheckpointFormat) -> WanConfig:
    """The configuration of a file that comes without ``config.json``.

    Shapes give all but three fields. ``attention_head_dim`` is taken as 128, which all published
    Wan2.2 transformers have; ``eps`` and ``rope_max_seq_len`` are ``WanConfig``'s defaults (1e-6,
    1024). Raises ``CheckpointError`` naming file and key when a shape that is needed is missing or
    makes no sense.
    """
    hidden, in_channels, *patch = _shape(store, format, "patch_embedding.weight", rank=5)
    freq_dim = _shape(store, format, "condition_embedder.time_embedder.linear_1.weight", 2)[1]
    text_dim = _shape(store, format, "condition_embedder.text_embedder.linear_1.weight", 2)[1]
    ffn_dim = _shape(store, format, "blocks.0.ffn.net.0.proj.weight", 2)[0]
    outputs = _shape(store, format, "proj_out.weight", 2)[0]
    volume = patch[0] * patch[1] * patch[2]
    if hidden % HEAD_DIM:
        raise CheckpointError(
            f"{store.source}: a width of {hidden} is no multiple of the head dimension {HEAD_DIM}"
        )
    if volume == 0 or outputs % volume:
        raise CheckpointError(
            f"{store.source}: {outputs} outputs of the last layer are no whole number of channels "
            f"of patches {patch}"
        )
    try:
        return WanConfig(
            patch_size=(patch[0], patch[1], patch[2]),
            num_attention_heads=hidden // HEAD_DIM,
            attention_head_dim=HEAD_DIM,
            in_channels=in_channels,
            out_channels=outputs // volume,
            text_dim=text_dim,
            freq_dim=freq_dim,
            ffn_dim=ffn_dim,
            num_layers=_count_blocks(store),
        )
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{store.source}: {error}") from error


def source_name(store: TensorStore, format: CheckpointFormat, canonical: str) -> str:
    """What the tensor with the diffusers name ``canonical`` is called in ``store``."""
    if format is CheckpointFormat.DIFFUSERS:
        return canonical
    return original.find_prefix(store.names) + original.original_name(canonical)


def _shape(
    store: TensorStore, format: CheckpointFormat, canonical: str, rank: int
) -> tuple[int, ...]:
    name = source_name(store, format, canonical)
    info = store.info(name)
    if len(info.shape) != rank:
        raise CheckpointError(
            f"{info.file}: {name}: has shape {list(info.shape)}, expected {rank} dimensions"
        )
    return info.shape


def _count_blocks(store: TensorStore) -> int:
    found = (re.search(r"(?:^|\.)blocks\.(\d+)\.", name) for name in store.names)
    indices = {int(match[1]) for match in found if match}
    for index in range(len(indices)):
        if index not in indices:
            raise CheckpointError(
                f"{store.source}: has no tensor of block {index}, but some of block {max(indices)}"
            )
    return len(indices)
