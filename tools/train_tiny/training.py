"""One loop for all stages: seeded, resumable, with an average of the weights as its result."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tqdm import tqdm

SEED = 0
THREADS = 2
"""The same sums in the same order need the same number of threads."""

_EMA_DECAY = 0.995
_CLIP = 1.0  # norm of the gradient
_SAVE_EVERY = 250  # steps


@dataclass(frozen=True)
class Schedule:
    """``peak`` is reached after ``warm_up`` steps and falls along a cosine to a fiftieth."""

    steps: int
    peak: float
    warm_up: int = 200

    def rate(self, step: int) -> float:
        """The learning rate of step ``step``, from 0."""
        if step < self.warm_up:
            return self.peak * (step + 1) / self.warm_up
        done = (step - self.warm_up) / max(1, self.steps - self.warm_up)
        return self.peak * (0.02 + 0.98 * (1 + math.cos(math.pi * done)) / 2)


class Stage(Protocol):
    """What is trained, and on what."""

    @property
    def name(self) -> str: ...

    @property
    def schedule(self) -> Schedule: ...

    @property
    def module(self) -> nn.Module:
        """All that is trained."""

    def loss(self, generator: torch.Generator) -> Tensor:
        """Of a batch that ``generator`` alone decides."""


def step_generator(stage: str, step: int) -> torch.Generator:
    """The source of all that is random in a step; it depends on no step before."""
    number = int.from_bytes(stage.encode()[:2], "big")
    return torch.Generator().manual_seed((SEED * 70_000 + number) * 1_000_000 + step)


def train(stage: Stage, folder: Path, steps: int | None = None) -> list[float]:
    """Train to the end, or to ``steps`` in all, from where ``folder`` says; all steps' losses.

    After an interrupt, the same call goes on from the last save and comes to the same weights. At
    the end ``stage.module`` has the average of the weights.
    """
    folder.mkdir(parents=True, exist_ok=True)
    end = stage.schedule.steps if steps is None else min(steps, stage.schedule.steps)
    stage.module.train()
    average = AveragedModel(stage.module, multi_avg_fn=_average_fn())
    optimizer = torch.optim.AdamW(stage.module.parameters(), betas=(0.9, 0.99), weight_decay=0.01)
    state = folder / f"{stage.name}.pt"
    losses = _take_up(state, stage.module, average, optimizer)
    with tqdm(total=end, initial=len(losses), desc=stage.name, unit="step") as bar:
        while len(losses) < end:
            step = len(losses)
            for group in optimizer.param_groups:
                group["lr"] = stage.schedule.rate(step)
            losses.append(_step(stage, optimizer, step))
            average.update_parameters(stage.module)
            if len(losses) % _SAVE_EVERY == 0 or len(losses) == end:
                _save(state, stage.module, average, optimizer, losses)
            bar.set_postfix(loss=f"{sum(losses[-50:]) / len(losses[-50:]):.4f}", refresh=False)
            bar.update()
    stage.module.load_state_dict(average.module.state_dict())
    stage.module.eval().requires_grad_(False)
    return losses


def _average_fn() -> Callable[..., None]:
    make = cast(Callable[..., Callable[..., None]], get_ema_multi_avg_fn)
    return make(_EMA_DECAY)


def _step(stage: Stage, optimizer: torch.optim.Optimizer, step: int) -> float:
    loss = stage.loss(step_generator(stage.name, step))
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(stage.module.parameters(), _CLIP)
    optimizer.step()
    return float(loss.detach())


def _take_up(
    file: Path, module: nn.Module, average: AveragedModel, optimizer: torch.optim.Optimizer
) -> list[float]:
    """Load what ``_save`` wrote, if it is there; the losses so far."""
    if not file.exists():
        return []
    saved: dict[str, Any] = torch.load(file, weights_only=True)
    module.load_state_dict(saved["module"])
    average.load_state_dict(saved["average"])
    optimizer.load_state_dict(saved["optimizer"])
    return list(saved["losses"])


def _save(
    file: Path,
    module: nn.Module,
    average: AveragedModel,
    optimizer: torch.optim.Optimizer,
    losses: list[float],
) -> None:
    """At once or not at all."""
    draft = file.with_suffix(".new")
    torch.save(
        {
            "module": module.state_dict(),
            "average": average.state_dict(),
            "optimizer": optimizer.state_dict(),
            "losses": losses,
        },
        draft,
    )
    os.replace(draft, file)
    file.with_suffix(".losses.json").write_text(json.dumps([round(loss, 6) for loss in losses]))
