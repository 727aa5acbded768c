"""The last step of loading any tensor: convert, and refuse what is not finite."""

from __future__ import annotations

import math

import torch

from wantrn.model.errors import CheckpointError


def convert(tensor: torch.Tensor, dtype: torch.dtype, where: str) -> torch.Tensor:
    """A floating-point ``tensor`` in ``dtype``, every value finite; the input itself if it fits.

    Raises ``CheckpointError`` starting with ``where`` (``file: key``) on NaN or infinity, also on
    one that arises because ``dtype`` has a smaller range.
    """
    converted = tensor.to(dtype)
    if not _all_finite(converted):
        if _all_finite(tensor):
            raise CheckpointError(f"{where}: has values beyond the range of {dtype}")
        raise CheckpointError(f"{where}: holds NaN or infinity")
    return converted


def _all_finite(tensor: torch.Tensor) -> bool:
    # Extremes propagate NaN and need no second tensor of the same size, unlike isfinite.
    if tensor.numel() == 0:
        return True
    low, high = torch.aminmax(tensor)
    return math.isfinite(low.item()) and math.isfinite(high.item())
