"""A run: what is known of a video between two denoising steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from wantrn.kernels.ops import Rotary
from wantrn.model.cached_steps import CachedSteps
from wantrn.model.conditioning import Conditioning
from wantrn.model.lora import Adapters
from wantrn.model.schedulers import Scheduler, State
from wantrn.model.settings import Settings
from wantrn.model.transformer import TextContext


class DenoisingError(RuntimeError):
    """The latents of a run are no longer finite numbers; the text names the step."""


@dataclass
class Denoising:
    """One run between two steps. ``WanPipeline.step`` changes it only when it succeeds, so a step
    that was interrupted can be made again."""

    settings: Settings
    scheduler: Scheduler
    conditioning: Conditioning
    rotary: Rotary
    prompt: Tensor  # [1, L, text_dim]
    negative_prompt: Tensor | None  # None where no step uses guidance
    latents: Tensor  # [1, z, T, h, w], fp32
    solver_state: State
    adapters: tuple[Adapters, ...]  # what LoRAs add to each expert
    step_index: int = 0  # steps done
    velocity: Tensor | None = None  # of the last step, guided; [1, z, T, h, w], fp32
    estimate: Tensor | None = None  # of the finished latents, by that velocity; fp32
    cached: CachedSteps | None = None  # None without a step cache
    contexts: dict[tuple[int, bool], TextContext] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        return self.settings.steps

    @property
    def done(self) -> bool:
        return self.step_index >= self.steps

    @property
    def step_reused(self) -> bool:
        """Whether the last step was made by the step cache."""
        return self.cached is not None and self.cached.reused

    def stand_at(self, latents: Tensor, solver_state: State) -> None:
        """Go on from where a run with the same settings has stood: its ``latents`` and
        ``solver_state`` after ``solver_state.index`` steps.

        Raises:
            ValueError: latents of another shape or dtype, or no step is left from there.
        """
        self.check_latents(latents)
        if not 0 <= solver_state.index < self.steps:
            raise ValueError(
                f"solver_state.index must be 0 to {self.steps - 1}, got {solver_state.index}"
            )
        self.latents, self.solver_state = latents, solver_state
        self.step_index = solver_state.index
        if self.cached is not None:  # of a step that this run has not made, nothing is known
            self.cached = self.cached.anew()

    def check_latents(self, latents: Tensor) -> None:
        """Raise ``ValueError`` unless ``latents`` have the run's shape and dtype."""
        if latents.shape != self.latents.shape or latents.dtype != self.latents.dtype:
            raise ValueError(
                f"latents must be {list(self.latents.shape)} {self.latents.dtype}, got "
                f"{list(latents.shape)} {latents.dtype}"
            )
