"""What is to be captured of a run, checked before anything is computed."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from wantrn.kernels.backend import Backend, setting
from wantrn.model.capture.description import (
    Description,
    StepFacts,
    first_difference,
    settings_facts,
)
from wantrn.model.capture.errors import CaptureError
from wantrn.model.capture.folder import Capture
from wantrn.model.capture.points import (
    DEFAULT_MODULES,
    OF_THE_RUN,
    Branch,
    matching,
    points_of,
)
from wantrn.model.denoising import Denoising
from wantrn.model.pipeline import WanPipeline
from wantrn.model.schedulers.unipc import MAX_ORDER
from wantrn.model.settings import token_count
from wantrn.parallel import Axis


@dataclass(frozen=True)
class Selection:
    """What is captured.

    Attributes:
        modules: patterns of names, see ``points.matching``.
        steps: of the run, from 0; None for all of them.
        every_token: of the tokens of a module, each so many-th is kept, from the first on.

    Raises:
        ValueError: ``every_token`` is below 1.
    """

    modules: Sequence[str] = DEFAULT_MODULES
    steps: Sequence[int] | None = None
    every_token: int = 1

    def __post_init__(self) -> None:
        if self.every_token < 1:
            raise ValueError(f"every_token must be at least 1, got {self.every_token}")


@dataclass(frozen=True)
class CapturePlan:
    """A capture that is to be made.

    Attributes:
        pipeline: the ranks that share its work make equal plans.
        run: just prepared.
        modules: names, in the order of computation.
        steps: that are captured, in order.
        every_token: see ``Selection``.
        inputs: the capture whose latents and solver state every step starts from; None for a run
            of its own, where a step starts from what the one before has made.
    """

    pipeline: WanPipeline
    run: Denoising
    modules: tuple[str, ...]
    steps: tuple[int, ...]
    every_token: int = 1
    inputs: Capture | None = None

    @classmethod
    def of(
        cls,
        pipeline: WanPipeline,
        run: Denoising,
        selection: Selection | None = None,
        inputs: Capture | None = None,
    ) -> CapturePlan:
        """Check what is asked for. Without ``steps`` of its own, the steps are those of ``inputs``.

        Raises:
            ValueError: a pattern that matches nothing, or a step that the run does not have.
            CaptureError: ``inputs`` is of a run with other settings, has not all the steps, or has
                itself taken the inputs of another; the run has begun; several ranks of ``dp``; a
                step cache, with ``inputs`` or modules that it saves.
        """
        selection = Selection() if selection is None else selection
        if run.step_index:
            raise CaptureError(f"the run has made {run.step_index} steps; it must have made none")
        degrees = pipeline.execution.parallel.groups.degrees
        if degrees.dp > 1:
            raise CaptureError(f"dp must be 1: one run is captured, not {degrees.dp}")
        steps = selection.steps
        if steps is None:
            steps = range(run.steps) if inputs is None else _indices(inputs)
        _check_steps(steps, run.steps)
        if inputs is not None:
            _check_inputs(inputs, run, steps)
        modules = matching(selection.modules, pipeline.info.config)
        if run.settings.step_cache is not None:
            _check_cached(modules, inputs)
        chosen = tuple(sorted(set(steps)))
        return cls(pipeline, run, modules, chosen, selection.every_token, inputs)

    @property
    def steps_to_make(self) -> tuple[int, ...]:
        """In order; of a run of its own also those before that are not captured."""
        return tuple(range(self.steps[-1] + 1)) if self.inputs is None else self.steps

    @property
    def writes(self) -> bool:
        """Whether this rank writes the capture: one does."""
        return self.keeps and self.pipeline.execution.parallel.groups.cfg.position == 0

    @property
    def keeps(self) -> bool:
        """Whether this rank keeps the tensors of a branch of guidance: one for each does."""
        groups = self.pipeline.execution.parallel.groups
        return groups.tp.position == groups.cp.position == 0

    @property
    def watched(self) -> tuple[str, ...]:
        """The modules that are the transformer's."""
        return tuple(module for module in self.modules if module not in OF_THE_RUN)

    def branches(self, step: int) -> tuple[Branch, ...]:
        """Of guidance, in the order of their passes."""
        if self.pipeline.guidance_of(self.run, step) == 1:
            return (Branch.PROMPT,)
        return (Branch.PROMPT, Branch.NEGATIVE)

    def facts(self, step: int) -> StepFacts:
        timestep = float(self.run.scheduler.timesteps[step])
        return StepFacts(step, timestep, self.pipeline.expert_of(self.run, step))

    def step_nbytes(self, step: int) -> int:
        """About the bytes of a step's file, which are in memory before they are written."""
        info, latents = self.pipeline.info, self.run.latents.nbytes
        tokens = -(-token_count(self.run.settings, info) // self.every_token)
        width = self.pipeline.experts[0].patch_embedding.weight.dtype.itemsize
        row = info.config.hidden_size * width
        branches = self.branches(step)
        rows = tokens * sum(len(points_of(module, branches)) for module in self.watched)
        of_the_run = len(self.modules) - len(self.watched)
        # a step starts from latents, a sample, and predictions of the steps before
        start = 2 + min(step, MAX_ORDER)
        return row * rows + latents * (of_the_run + start)

    @property
    def nbytes(self) -> int:
        """About the bytes of the whole capture."""
        return sum(map(self.step_nbytes, self.steps))

    def describe(self) -> Description:
        inputs = self.inputs
        return Description(
            id=uuid.uuid4().hex,
            inputs_of=None if inputs is None else inputs.description.id,
            model=self.pipeline.info.directory.resolve().name,
            settings=settings_facts(self.run.settings),
            computation=_computation(self.pipeline, self.run),
            modules=self.modules,
            every_token=self.every_token,
            steps=tuple(map(self.facts, self.steps)),
        )


def _indices(capture: Capture) -> tuple[int, ...]:
    return tuple(step.index for step in capture.description.steps)


def _check_steps(steps: Sequence[int], count: int) -> None:
    if not steps:
        raise ValueError("steps must be at least one, got none")
    for step in steps:
        if not 0 <= step < count:
            raise ValueError(f"steps must be 0 to {count - 1}, got {step}")


def _check_inputs(inputs: Capture, run: Denoising, steps: Sequence[int]) -> None:
    described = inputs.description
    if described.inputs_of is not None:
        raise CaptureError(f"{inputs.folder}: has itself taken the inputs of another capture")
    difference = first_difference(described.settings, settings_facts(run.settings))
    if difference is not None:
        raise CaptureError(f"{inputs.folder}: is of a run with other settings: {difference}")
    missing = sorted(set(steps) - set(_indices(inputs)))
    if missing:
        raise CaptureError(f"{inputs.folder}: step {missing[0]} is not captured")


def _check_cached(modules: Sequence[str], inputs: Capture | None) -> None:
    """Which steps a step cache saves goes by the steps before them."""
    if inputs is not None:
        raise CaptureError("step_cache must be off where steps take the inputs of another run")
    for module in modules:
        if module.startswith("blocks.") and module.split(".")[1] != "0":
            raise CaptureError(f"step_cache must be off: with it, not every step computes {module}")


def _computation(pipeline: WanPipeline, run: Denoising) -> dict[str, str]:
    """What the numbers of two captures may differ by."""
    backend, device = setting().backend, pipeline.execution.device
    if backend is Backend.AUTO:
        backend = Backend.TORCH if device.type == "cpu" else Backend.NEURON
    dtype = pipeline.experts[0].patch_embedding.weight.dtype
    facts = {"dtype": str(dtype).removeprefix("torch."), "backend": backend.value}
    if pipeline.info.quantization is not None:
        facts["fp8"] = f"FP8 {pipeline.info.quantization.describe()}"
    if run.settings.step_cache is not None:
        facts["step_cache"] = f"step cache {run.settings.step_cache:g}"
    if pipeline.execution.batched_guidance:
        facts["guidance"] = "batched guidance"
    degrees = pipeline.execution.parallel.groups.degrees
    ranks = [f"{axis.value} {degrees.of(axis)}" for axis in Axis if degrees.of(axis) > 1]
    if degrees.sequence_sharding:
        ranks.append("sequence sharding")
    if ranks:
        facts["ranks"] = " ".join(ranks)
    return facts
