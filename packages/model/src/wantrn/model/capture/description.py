"""``capture.json``: what a capture is of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wantrn.model.capture.errors import CaptureError
from wantrn.model.errors import CheckpointError
from wantrn.model.json_file import read_json
from wantrn.model.settings import Settings

FILE = "capture.json"
FORMAT = "wantrn-capture-1"


@dataclass(frozen=True)
class StepFacts:
    """One captured step.

    Attributes:
        index: of all steps of the run, from 0.
        timestep: that the model was given, 0..1000.
        expert: 0 the high-noise (or only) one, 1 the low-noise one.
    """

    index: int
    timestep: float
    expert: int

    @property
    def file(self) -> str:
        return f"step-{self.index:04d}.safetensors"


@dataclass(frozen=True)
class Description:
    """What a capture is of.

    Attributes:
        id: of this capture alone.
        inputs_of: the ``id`` of the capture whose inputs every step has taken; None where a step
            takes what the one before has made.
        model: the checkpoint's folder, without the way to it.
        settings: the run's, by name; a picture is named by its digest.
        computation: dtype, backend, FP8, step cache, ranks: whatever two captures may differ in.
        modules: that were captured, in the order of computation.
        every_token: of the tokens of a module, each so many-th was kept, from the first on.
        steps: that were captured.
    """

    id: str
    inputs_of: str | None
    model: str
    settings: Mapping[str, str | int | float]
    computation: Mapping[str, str]
    modules: tuple[str, ...]
    every_token: int
    steps: tuple[StepFacts, ...]

    def write(self, folder: Path) -> None:
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1)
        (folder / FILE).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Description:
        """Raises ``CaptureError`` naming the file, if it is missing or makes no sense."""
        path = folder / FILE
        try:
            values = read_json(path)
        except CheckpointError as error:
            raise CaptureError(str(error)) from error
        if values.pop("format", None) != FORMAT:
            raise CaptureError(f"{path}: its format must be {FORMAT!r}")
        try:
            return _of_json(values)
        except (KeyError, TypeError, ValueError) as error:
            raise CaptureError(f"{path}: cannot be read: {error!r}") from error

    def what(self) -> str:
        """In a few words, for people: ``bfloat16, torch``."""
        return ", ".join(self.computation.values())


def settings_facts(settings: Settings) -> dict[str, str | int | float]:
    """``Settings.describe`` of what a video is to be like: a picture has its digest, and a step
    cache, which is a way to make it, is left out."""
    facts = settings.describe()
    facts.pop("step_cache", None)
    if settings.image is not None:
        digest = hashlib.sha256(settings.image.tobytes()).hexdigest()
        facts["image"] = f"{facts['image']} sha256:{digest}"
    return facts


def first_difference(one: Mapping[str, object], other: Mapping[str, object]) -> str | None:
    """The first name whose values differ, with both; None if all are the same."""
    for name in {**one, **other}:
        if one.get(name) != other.get(name):
            return f"{name} is {one.get(name)!r} and {other.get(name)!r}"
    return None


def _of_json(values: dict[str, Any]) -> Description:
    steps = tuple(
        StepFacts(int(step["index"]), float(step["timestep"]), int(step["expert"]))
        for step in values.pop("steps")
    )
    modules = tuple(map(str, values.pop("modules")))
    found = Description(**values, modules=modules, steps=steps)
    if not (steps and modules and found.every_token >= 1):
        raise ValueError("steps, modules and every_token must not be empty")
    return found
