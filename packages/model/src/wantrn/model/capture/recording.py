"""Making a capture, step by step."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from wantrn.model.capture.errors import CaptureError
from wantrn.model.capture.folder import Start, write_step
from wantrn.model.capture.outputs import by_branch, joined_branches, outputs_of
from wantrn.model.capture.plan import CapturePlan
from wantrn.model.capture.points import OF_THE_RUN, Branch, Point
from wantrn.model.denoising import DenoisingError
from wantrn.model.local_tokens import LocalTokens
from wantrn.model.media.atomic import draft_of
from wantrn.model.settings import token_count


class Recorder:
    """Makes the steps of a run and captures those that the plan has. Made by ``recording``."""

    def __init__(self, plan: CapturePlan, folder: Path | None) -> None:
        self._plan, self._folder = plan, folder
        self._parallel = plan.pipeline.execution.parallel
        total = token_count(plan.run.settings, plan.pipeline.info)
        self._tokens = LocalTokens.of(total, self._parallel)
        self._left = list(plan.steps_to_make)

    def make(self) -> int:
        """Make the next of the plan's ``steps_to_make``; its index.

        Where it is captured, its file is written before this returns. All ranks call it together.

        Raises:
            ValueError: all of them are made.
            CaptureError: a module was not computed in the step, by name.
            DenoisingError: see ``WanPipeline.step``; the text names the first captured module that
                was not finite.
        """
        if not self._left:
            raise ValueError("all steps are made")
        plan, run, step = self._plan, self._plan.run, self._left[0]
        if plan.inputs is not None:
            start = plan.inputs.start(step)
            run.stand_at(start.latents, start.solver_state)
        if step in plan.steps:
            self._capture(step)
        else:
            plan.pipeline.step(run)
        return self._left.pop(0)

    def finish(self) -> None:
        """Raise ``CaptureError`` if steps are left."""
        if self._left:
            raise CaptureError(f"step {self._left[0]} was not made")

    def _capture(self, step: int) -> None:
        plan, run = self._plan, self._plan.run
        start = Start(run.latents, run.solver_state)
        model = plan.pipeline.experts[plan.pipeline.expert_of(run, step)]
        with outputs_of(model, plan.watched, self._whole) as calls:
            try:
                plan.pipeline.step(run)
            except DenoisingError as error:
                raise DenoisingError(f"{error}{_culprit(calls)}") from error
        if not plan.keeps:
            return
        points = {}
        for module in plan.watched:
            outputs = [output for output in calls[module] if output is not None]
            for branch, output in self._branches(module, outputs, step).items():
                points[Point(module, branch)] = output
        for name in OF_THE_RUN:
            if name in plan.modules:
                points[Point(name, Branch.BOTH)] = getattr(run, name)
        if self._folder is not None:
            write_step(self._folder, plan.facts(step), points, start)

    @torch.inference_mode()
    def _branches(self, module: str, outputs: list[Tensor], step: int) -> dict[Branch, Tensor]:
        """Of all ranks, by branch."""
        execution, branches = self._plan.pipeline.execution, self._plan.branches(step)
        group = execution.parallel.groups.cfg
        shared = group.size > 1 and len(branches) > 1
        own = branches[group.position : group.position + 1] if shared else branches
        found = by_branch(module, outputs, own, execution.batched_guidance and len(branches) > 1)
        return joined_branches(found, group) if shared else found

    def _whole(self, output: Tensor) -> Tensor | None:
        """The tokens of all ranks, as many of them as are kept; on the CPU, a copy of its own."""
        whole = self._tokens.join(output, self._parallel)
        if not self._plan.keeps:
            return None
        kept = whole[:, :: self._plan.every_token]
        return kept.to("cpu", copy=True, memory_format=torch.contiguous_format)


def _culprit(calls: Mapping[str, Sequence[Tensor | None]]) -> str:
    """The first module with an output that is not finite, in words; nothing if there is none."""
    for module, outputs in calls.items():
        if any(one is not None and not bool(torch.isfinite(one).all()) for one in outputs):
            return f"; {module} is the first module whose output is not finite"
    return ""


@contextmanager
def recording(plan: CapturePlan, folder: Path) -> Iterator[Recorder]:
    """A capture of ``plan``'s run in the new ``folder``, which is there whole when the block ends
    well, and not at all if it does not.

        with recording(plan, folder) as recorder:
            for _ in plan.steps_to_make:
                recorder.make()

    All ranks of the pipeline do this together; one writes, and has the tokens of all.

    Raises:
        CaptureError: ``folder`` is there already, has no folder to be in or too little space; or
            steps were left when the block ended.
    """
    _check_place(folder, plan.nbytes)
    if not plan.writes:
        recorder = Recorder(plan, None)
        yield recorder
        recorder.finish()
        return
    with draft_of(folder) as draft:
        draft.mkdir()
        recorder = Recorder(plan, draft)
        yield recorder
        recorder.finish()
        plan.describe().write(draft)


def _check_place(folder: Path, nbytes: int) -> None:
    if folder.exists():
        raise CaptureError(f"{folder}: is there already")
    if not folder.parent.is_dir():
        raise CaptureError(f"{folder}: there is no folder {folder.parent}")
    free = shutil.disk_usage(folder.parent).free
    if free < nbytes:
        raise CaptureError(
            f"{folder}: takes about {nbytes / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
        )
