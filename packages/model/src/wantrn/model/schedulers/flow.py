"""Noise levels of a rectified flow, with the time shift of Stable Diffusion 3 that Wan uses.

A sample at level ``sigma`` is ``(1 - sigma) * clean + sigma * noise``; the model predicts
``noise - clean``. The shift ``s`` maps a level ``x`` to ``s x / (1 + (s - 1) x)``: 0 and 1 stay,
and a larger ``s`` spends more of the steps at high noise.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

Level = TypeVar("Level", float, np.float32, npt.NDArray[np.float64], torch.Tensor)

# UniPC works with log(1 - sigma), so its first level stays this far below 1 (as in diffusers).
_BELOW_ONE = 1e-6


def shift_level(level: Level, shift: float) -> Level:
    """``shift * level / (1 + (shift - 1) * level)``."""
    return shift * level / (1 + (shift - 1) * level)


def unipc_levels(
    steps: int, shift: float, train_timesteps: int, end_at_zero: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Levels [steps + 1] fp32 and timesteps [steps] int64, as diffusers' UniPC flow sigmas.

    ``steps + 1`` even levels from 1 to ``1 / train_timesteps``, the last dropped, the rest
    shifted. The run ends at 0, or else at the last of these levels, so that the last step stands
    still.
    """
    even = np.linspace(1.0, 1.0 / train_timesteps, steps + 1)[:-1]
    levels = shift_level(even, shift)
    levels[0] -= _BELOW_ONE
    timesteps = (levels * train_timesteps).astype(np.int64)
    end = 0.0 if end_at_zero else levels[-1]
    sigmas = np.append(levels, end).astype(np.float32)
    return torch.from_numpy(sigmas), torch.from_numpy(timesteps)


def euler_levels(
    steps: int, shift: float, train_timesteps: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Levels [steps + 1] fp32 and timesteps [steps] fp32, as diffusers' flow-matching Euler.

    ``steps`` even levels from 1 to the shifted ``1 / train_timesteps``, then shifted (the lower
    end a second time: that is how diffusers has it, and what such checkpoints were tuned with),
    then 0.
    """
    lowest = float(shift_level(np.float32(1.0 / train_timesteps), shift))
    levels = shift_level(np.linspace(1.0, lowest, steps), shift).astype(np.float32)
    timesteps = torch.from_numpy(levels) * train_timesteps
    return torch.from_numpy(np.append(levels, np.float32(0.0))), timesteps
