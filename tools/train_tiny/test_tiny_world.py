"""The world, its captions and the judge: pixels say again what was drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from train_tiny.captions import all_words, caption, held_out, held_out_words, training_words
from train_tiny.evaluate import levels
from train_tiny.judge import Seen, see
from train_tiny.world import (
    COLOURS,
    FRAMES,
    GROUNDS,
    SIDE,
    Motion,
    Shape,
    Size,
    Words,
    draw_scene,
    path,
    render,
)

WORDS = st.builds(
    Words,
    st.sampled_from(list(COLOURS)),
    st.sampled_from(Shape),
    st.sampled_from(Motion),
    st.sampled_from(Size),
    st.sampled_from(list(GROUNDS)),
)
SEEDS = st.integers(0, 2**32)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(max_examples=60, deadline=None)
@given(WORDS, SEEDS)
def test_a_shape_never_leaves_the_picture(words: Words, seed: int) -> None:
    where = path(draw_scene(words, generator(seed)))
    x, y, radius = where.unbind(1)
    assert len(where) == FRAMES
    for centre in (x, y):
        assert bool((centre - radius >= 0).all()) and bool((centre + radius <= SIDE).all())


@settings(max_examples=60, deadline=None)
@given(WORDS, SEEDS)
def test_the_judge_sees_what_was_drawn(words: Words, seed: int) -> None:
    frames = levels(render([draw_scene(words, generator(seed))]))[0]
    assert see(frames) == Seen(words.colour, words.motion, words.ground)


def test_the_judge_is_right_of_every_scene_that_can_be_named() -> None:
    source = generator(0)
    for words in all_words():
        frames = levels(render([draw_scene(words, source)]))[0]
        assert see(frames) == Seen(words.colour, words.motion, words.ground)


@settings(max_examples=60, deadline=None)
@given(WORDS, SEEDS, st.floats(0, 12))
def test_the_judge_bears_noise(words: Words, seed: int, sigma: float) -> None:
    frames = levels(render([draw_scene(words, generator(seed))]))[0]
    noise = np.random.default_rng(seed).normal(0, sigma, frames.shape)
    noisy = np.clip(frames + noise, 0, 255).astype(np.uint8)
    assert see(noisy) == Seen(words.colour, words.motion, words.ground)


@settings(max_examples=60, deadline=None)
@given(WORDS, SEEDS)
def test_backwards_the_judge_sees_the_opposite(words: Words, seed: int) -> None:
    assume(words.motion is not Motion.BOUNCE)
    opposite = {
        Motion.RIGHT: Motion.LEFT,
        Motion.LEFT: Motion.RIGHT,
        Motion.UP: Motion.DOWN,
        Motion.DOWN: Motion.UP,
        Motion.GROW: Motion.SHRINK,
        Motion.SHRINK: Motion.GROW,
    }
    frames = levels(render([draw_scene(words, generator(seed))]))[0]
    assert see(frames[::-1]).motion is opposite[words.motion]


@pytest.mark.parametrize("seed", range(5))
def test_the_judge_sees_nothing_in_noise(seed: int) -> None:
    noise = np.random.default_rng(seed).integers(0, 256, (FRAMES, SIDE, SIDE, 3), dtype=np.uint8)
    assert see(noise).motion is None


@pytest.mark.parametrize("motion", Motion)
@pytest.mark.parametrize("colour", COLOURS)
def test_a_still_shape_has_no_motion(colour: str, motion: Motion) -> None:
    scene = draw_scene(Words(colour, Shape.BALL, motion, Size.MEDIUM, "black"), generator(0))
    frames = levels(render([scene]))[0]
    still = np.repeat(frames[:1], FRAMES, axis=0)
    assert see(still) == Seen(colour, None, "black")


def test_every_part_of_the_grammar_is_held_out_and_is_not() -> None:
    assert len(all_words()) == len(training_words()) + len(held_out_words())
    assert len(all_words()) == 8 * len(held_out_words())
    for words in (training_words(), held_out_words()):
        for field, choices in (
            ("colour", set(COLOURS)),
            ("shape", set(Shape)),
            ("motion", set(Motion)),
            ("size", set(Size)),
            ("ground", set(GROUNDS)),
        ):
            assert {getattr(each, field) for each in words} == choices


@settings(max_examples=60, deadline=None)
@given(WORDS, WORDS, SEEDS)
def test_what_is_held_out_depends_on_colour_shape_and_motion(
    words: Words, other: Words, seed: int
) -> None:
    same = Words(words.colour, words.shape, words.motion, other.size, other.ground)
    assert held_out(words) == held_out(same)


@settings(max_examples=60, deadline=None)
@given(WORDS, SEEDS)
def test_a_caption_says_what_there_is(words: Words, seed: int) -> None:
    said = caption(words, generator(seed)).split()
    assert said[0] in ("a", "an") and (said[0] == "an") == (said[1][0] in "aeiou")
    assert words.colour in said and words.shape in said
    assert not [name for name in COLOURS if name in said and name != words.colour]
    assert not [name for name in GROUNDS if name in said and name != words.ground]
    if words.shape in (Shape.SQUARE, Shape.TRIANGLE):
        assert "rolls" not in said
