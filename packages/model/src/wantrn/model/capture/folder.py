"""A capture on disk: ``capture.json``, and a file of tensors for each step.

A file has one tensor for each point, ``[1, S, H]`` as the module has given it or, of the run,
``[1, z, T, h, w]`` fp32; and under ``start.`` what the step has started from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from wantrn.model.capture.description import Description, StepFacts
from wantrn.model.capture.errors import CaptureError
from wantrn.model.capture.points import Branch, Point
from wantrn.model.schedulers import State

_LATENTS, _SAMPLE, _PREDICTION = "start.latents", "start.sample", "start.prediction"


@dataclass(frozen=True, eq=False)
class Start:
    """What a step starts from: the latents ``[1, z, T, h, w]`` fp32 and the solver's state."""

    latents: Tensor
    solver_state: State


@dataclass(frozen=True)
class StepFile:
    """The open file of one step."""

    path: Path
    tensors: Any  # from safe_open, which has no types

    def points(self) -> frozenset[str]:
        """The names of the points that it has."""
        names = self.tensors.keys()
        return frozenset(name for name in names if "@" in name)

    def read(self, point: Point) -> Tensor:
        """Raises ``CaptureError`` if the file has no such point."""
        return self._read(str(point))

    def start(self, index: int) -> Start:
        """What step ``index``, which this file is of, has started from."""
        names = self.tensors.keys()
        count = sum(name.startswith(_PREDICTION) for name in names)
        state = State(
            index,
            tuple(self._read(f"{_PREDICTION}.{number}") for number in range(count)),
            self._read(_SAMPLE) if _SAMPLE in names else None,
        )
        return Start(self._read(_LATENTS), state)

    def _read(self, name: str) -> Tensor:
        try:
            tensor: Tensor = self.tensors.get_tensor(name)
        except SafetensorError as error:
            raise CaptureError(f"{self.path}: {name}: {error}") from error
        return tensor


@dataclass(frozen=True)
class Capture:
    """A capture that was written before."""

    folder: Path
    description: Description

    @classmethod
    def open(cls, folder: Path) -> Capture:
        """Raises ``CaptureError`` naming what is missing or makes no sense."""
        description = Description.read(folder)
        for step in description.steps:
            if not (folder / step.file).is_file():
                raise CaptureError(f"{folder / step.file}: file not found")
        return cls(folder, description)

    @contextmanager
    def step(self, step: StepFacts) -> Iterator[StepFile]:
        """The file of one of its steps, while the block runs."""
        path = self.folder / step.file
        try:
            file = safe_open(path, "pt")
        except (OSError, SafetensorError) as error:
            raise CaptureError(f"{path}: cannot be read: {error}") from error
        with file as tensors:
            yield StepFile(path, tensors)

    def start(self, index: int) -> Start:
        """What step ``index`` has started from; ``CaptureError`` if it was not captured."""
        for step in self.description.steps:
            if step.index == index:
                with self.step(step) as file:
                    return file.start(index)
        raise CaptureError(f"{self.folder}: step {index} is not captured")


def write_step(folder: Path, step: StepFacts, points: Mapping[Point, Tensor], start: Start) -> None:
    """Write the file of a step."""
    state = start.solver_state
    begun = {_LATENTS: start.latents}
    if state.sample is not None:
        begun[_SAMPLE] = state.sample
    for number, prediction in enumerate(state.predictions):
        begun[f"{_PREDICTION}.{number}"] = prediction
    tensors = {str(point): tensor for point, tensor in points.items()}
    # a file has no two names for one memory, which a state and its latents may share
    save_file(
        {**tensors, **{name: tensor.clone() for name, tensor in begun.items()}}, folder / step.file
    )


def in_order(points: frozenset[str], description: Description) -> tuple[Point, ...]:
    """Points of one step in the order of computation: by module, then by branch."""
    order = [Point(module, branch) for module in description.modules for branch in Branch]
    return tuple(point for point in order if str(point) in points)
