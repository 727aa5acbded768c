"""What every solver offers, and the state that goes from one step to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, eq=False)
class State:
    """Where a run stands. A step takes one and returns a new one, so any step can be run again.

    ``index``: steps done. ``predictions``: what earlier steps said of the clean sample, newest
    first, fp32, in the sample's shape. ``sample``: what the last step started from (corrected),
    fp32, or None before the first. One-step solvers use ``index`` only.
    """

    index: int = 0
    predictions: tuple[torch.Tensor, ...] = ()
    sample: torch.Tensor | None = None


class Scheduler(Protocol):
    """A solver with everything about one run settled: it holds no state and never changes.

    ``sigmas``: [steps + 1] fp32, the noise levels from 1 (noise) to 0 (clean) that the steps go
    between. ``timesteps``: [steps], what the model is given before each step.
    """

    @property
    def sigmas(self) -> torch.Tensor: ...

    @property
    def timesteps(self) -> torch.Tensor: ...

    def start(self) -> State:
        """The state before the first step."""

    def step(
        self, state: State, velocity: torch.Tensor, sample: torch.Tensor
    ) -> tuple[torch.Tensor, State]:
        """Take step ``state.index``: ``velocity`` is the model's output at ``sample``.

        ``sample`` is fp32; ``velocity`` has its shape and any floating dtype, and is used in fp32.
        Returns the next sample, fp32, and the next state. Raises ``ValueError`` after the last
        step, on another dtype or on another shape.
        """


def check_step(
    state: State, velocity: torch.Tensor, sample: torch.Tensor, sigmas: torch.Tensor
) -> None:
    """Refuse what no solver can step; see ``Scheduler.step``."""
    steps = len(sigmas) - 1
    if not 0 <= state.index < steps:
        raise ValueError(f"step {state.index} of a run of {steps} steps")
    if sample.dtype != torch.float32:
        raise ValueError(f"sample must be torch.float32, got {sample.dtype}")
    if velocity.shape != sample.shape or not velocity.is_floating_point():
        raise ValueError(
            f"velocity must be a floating tensor of the sample's shape {list(sample.shape)}, "
            f"got {velocity.dtype} {list(velocity.shape)}"
        )
