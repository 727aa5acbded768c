"""Checks of the arguments that the operators with FP8 weights share."""

from __future__ import annotations

import torch
from torch import Tensor

from wantrn.kernels.row_mx import SCALE_BYTES, ChannelWeight

MX_BLOCK = 32
"""Channels that share a scale where a kernel quantizes bf16 activations itself."""


def check_packed(packed: Tensor) -> int:
    """``H`` of packed rows ``[B, S, H + 4]``; ``ValueError`` if they are none."""
    if packed.ndim != 3 or packed.dtype != torch.float8_e4m3fn:
        raise ValueError(
            f"packed must be [B, S, H + {SCALE_BYTES}] torch.float8_e4m3fn, "
            f"got {list(packed.shape)} {packed.dtype}"
        )
    return packed.shape[2] - SCALE_BYTES


def check_channel_linear(name: str, depth: int, weight: ChannelWeight, bias: Tensor | None) -> None:
    """Raise ``ValueError`` unless ``weight`` contracts ``depth`` values and ``bias`` fits it."""
    if weight.depth != depth:
        raise ValueError(f"{name} contracts {weight.depth} values; its input has {depth}")
    dtypes = (torch.bfloat16, torch.float32)
    if bias is not None and (bias.shape != (weight.width,) or bias.dtype not in dtypes):
        raise ValueError(
            f"bias of {name} must be [{weight.width}] bfloat16 or float32, "
            f"got {list(bias.shape)} {bias.dtype}"
        )


def check_blocks(name: str, depth: int) -> None:
    """Raise ``ValueError`` unless what ``name`` contracts can be cut into blocks of MX."""
    if depth % MX_BLOCK:
        raise ValueError(
            f"{name} contracts {depth} values; bf16 is quantized in blocks of {MX_BLOCK}"
        )


def as_row(vector: Tensor | None) -> Tensor | None:
    """``[I]`` as ``[1, I]``."""
    return None if vector is None else vector.unsqueeze(0)
