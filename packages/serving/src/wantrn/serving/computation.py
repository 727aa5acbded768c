"""What a video is computed with, in words."""

from __future__ import annotations

import torch

from wantrn.model.info import ModelInfo
from wantrn.serving import __version__
from wantrn.serving.rank_options import RankOptions


def describe_computation(
    info: ModelInfo, dtype: torch.dtype, device: torch.device, ranks: RankOptions
) -> dict[str, str | int | float]:
    """Model, formats, device and ranks, as they are printed and kept in each video."""
    quantization = info.quantization
    return {
        "model": f"{info.directory.resolve().name} ({info.kind.value})",
        "dtype": str(dtype).removeprefix("torch."),
        **({} if quantization is None else {"fp8": quantization.describe()}),
        **({} if device.type == "cpu" else {"device": str(device)}),
        **ranks.describe(),
        "wantrn": __version__,
    }
