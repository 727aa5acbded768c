"""Euler's method for the flow: one straight step along the velocity."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from wantrn.model.schedulers.base import State, check_step


@dataclass(frozen=True, eq=False)
class Euler:
    """``x' = x + (sigma' - sigma) * velocity``. Fields as in ``base.Scheduler``."""

    sigmas: torch.Tensor
    timesteps: torch.Tensor

    def start(self) -> State:
        return State()

    def step(
        self, state: State, velocity: torch.Tensor, sample: torch.Tensor
    ) -> tuple[torch.Tensor, State]:
        check_step(state, velocity, sample, self.sigmas)
        distance = float(self.sigmas[state.index + 1] - self.sigmas[state.index])
        return sample + distance * velocity.float(), State(state.index + 1)
