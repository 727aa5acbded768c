"""Checking the LoRAs of a request, before any weights are read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from wantrn.model.config import WanConfig
from wantrn.model.errors import CheckpointError, RequestError
from wantrn.model.lora.choice import LoraChoice
from wantrn.model.lora.plan import LoraPlan

MAX_CHOICES = 16
_FIELD = "lora"


def check_choices(choices: Sequence[LoraChoice], config: WanConfig, experts: int) -> None:
    """Raise ``RequestError`` unless a model with as many ``experts`` can be run with ``choices``.

    Of the files only headers are read; also of those whose scale is 0.
    """
    if len(choices) > MAX_CHOICES:
        raise RequestError(_FIELD, f"at most {MAX_CHOICES} can be given, got {len(choices)}")
    for choice in choices:
        _check_scales(choice)
        if choice.high is None and choice.low is None:
            raise RequestError(_FIELD, f"{choice.name}: names no file, so it changes nothing")
        if experts == 1 and choice.tells_experts_apart:
            raise RequestError(
                _FIELD, f"{choice.name}: tells two experts apart, but the model has one"
            )
        with naming(choice):
            for expert in range(experts):
                chosen = choice.for_expert(expert)
                if chosen is not None:
                    LoraPlan.open(chosen[0], config, expert, experts)


@contextmanager
def naming(choice: LoraChoice) -> Iterator[None]:
    """A fault of its files is one of the request, and named by the choice's name, which may be all
    that the one who asked knows of it."""
    try:
        yield
    except CheckpointError as error:
        text = str(error)
        for path in (choice.high, choice.low):
            text = text.removeprefix(f"{path}: ")
        raise RequestError(_FIELD, f"{choice.name}: {text}") from error


def _check_scales(choice: LoraChoice) -> None:
    for scale in (choice.high_scale, choice.low_scale):
        if not math.isfinite(scale):
            raise RequestError(_FIELD, f"{choice.name}: the scale must be finite, got {scale}")
