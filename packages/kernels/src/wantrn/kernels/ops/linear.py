"""Matrix products that accumulate in fp32, whatever the CPU can do with bf16."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def widens(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether products of ``dtype`` are computed in fp32 copies of their operands on ``device``.

    On a CPU without bf16 instructions, torch's products of bf16 matrices are slow: 59 ms instead of
    9 ms in fp32 for 480 x 1024 x 1024 on two AVX2 cores. Converting the operands first costs
    0.2 ms, and the result differs only in that intermediate values are not rounded to bf16.
    """
    return (
        dtype == torch.bfloat16
        and device.type == "cpu"
        and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x @ weight.T + bias`` with fp32 accumulation, rounded once to ``x.dtype``.

    ``x`` ``[..., K]``, ``weight`` ``[M, K]``, ``bias`` ``[M]``, all of one dtype; ``[..., M]``.
    """
    return wide_linear(x, weight, bias).to(x.dtype)


def wide_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``linear`` before its last rounding: fp32 where operands are widened, else ``x.dtype``."""
    if widens(weight.dtype, weight.device):
        return F.linear(x.float(), weight.float(), None if bias is None else bias.float())
    return F.linear(x, weight, bias)


def check_linear(name: str, width: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raise ``ValueError`` unless ``weight`` ``[M, width]`` and ``bias`` ``[M]`` fit ``x``."""
    if weight.ndim != 2 or weight.shape[1] != width:
        raise ValueError(f"{name} must be [out, {width}], got {list(weight.shape)}")
    if weight.dtype != x.dtype:
        raise ValueError(f"{name} must have the input's dtype {x.dtype}, got {weight.dtype}")
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype != x.dtype):
        raise ValueError(
            f"bias of {name} must be [{weight.shape[0]}] {x.dtype}, "
            f"got {list(bias.shape)} {bias.dtype}"
        )
