"""The grammar of captions, and which scenes are kept out of training."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch

from train_tiny.world import COLOURS, GROUNDS, Motion, Shape, Size, Words

_PHRASES: dict[Motion, tuple[str, ...]] = {
    Motion.RIGHT: ("moves to the right", "slides to the right", "moves right"),
    Motion.LEFT: ("moves to the left", "slides to the left", "moves left"),
    Motion.UP: ("moves up", "rises", "flies up"),
    Motion.DOWN: ("moves down", "falls", "sinks"),
    Motion.GROW: ("grows", "gets bigger", "gets larger"),
    Motion.SHRINK: ("shrinks", "gets smaller", "dwindles"),
    Motion.BOUNCE: ("bounces", "bounces up and down", "hops"),
}
_ROLLS = {Motion.RIGHT: "rolls to the right", Motion.LEFT: "rolls to the left"}
_ROUND = (Shape.BALL, Shape.RING)

_SIZES = {Size.SMALL: ("small", "little"), Size.LARGE: ("large", "big"), Size.MEDIUM: ("",)}

_GROUND_FORMS = ("on a {} ground", "on {}", "over a {} ground")

_HELD_OUT_OF = 8  # one in so many


def phrases(shape: Shape, motion: Motion) -> tuple[str, ...]:
    """All that a motion may be called; only what is round rolls."""
    rolls = (_ROLLS[motion],) if shape in _ROUND and motion in _ROLLS else ()
    return _PHRASES[motion] + rolls


def held_out(words: Words) -> bool:
    """Whether a scene is kept for judging: an eighth of all colours, shapes and motions together,
    each colour with another shape for each motion."""
    number = (
        list(COLOURS).index(words.colour)
        + 3 * list(Shape).index(words.shape)
        + 2 * list(Motion).index(words.motion)
    )
    return number % _HELD_OUT_OF == 0


def all_words() -> list[Words]:
    """Every scene that the grammar can name."""
    return [Words(*each) for each in product(COLOURS, Shape, Motion, Size, GROUNDS)]


def caption(words: Words, generator: torch.Generator) -> str:
    """One of the ways to say it; one in three does not say the ground."""
    size = _one_of(_SIZES[words.size], generator)
    motion = _one_of(phrases(words.shape, words.motion), generator)
    form = _one_of(("", *_GROUND_FORMS, _GROUND_FORMS[0], _GROUND_FORMS[0]), generator)
    first = size or words.colour
    parts = (
        "an" if first[0] in "aeiou" else "a",
        size,
        words.colour,
        words.shape.value,
        motion,
        form.format(words.ground),
    )
    return " ".join(part for part in parts if part)


def _one_of(choices: Sequence[str], generator: torch.Generator) -> str:
    return choices[int(torch.randint(len(choices), (), generator=generator))]


def training_words() -> list[Words]:
    """Those that are not held out."""
    return [words for words in all_words() if not held_out(words)]


def held_out_words() -> list[Words]:
    """Those that no clip of the training is called."""
    return [words for words in all_words() if held_out(words)]
