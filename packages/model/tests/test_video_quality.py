"""The figures of two videos, against their definitions written out as loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wantrn.model.quality import (
    WINDOW,
    Comparison,
    LargestDifference,
    compare_videos,
    flicker_between,
    flicker_of,
    largest_difference,
    psnr,
    psnr_of_frames,
    ssim,
    ssim_of_frames,
)

Frames = npt.NDArray[np.uint8]
FIGURES: tuple[Callable[[Frames, Frames], Any], ...] = (
    psnr,
    psnr_of_frames,
    ssim,
    ssim_of_frames,
    flicker_between,
    largest_difference,
    compare_videos,
)


def noise(frames: int, height: int, width: int, seed: int) -> Frames:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (frames, height, width, 3), dtype=np.uint8)


def level(value: int, frames: int = 1, side: int = 16) -> Frames:
    return np.full((frames, side, side, 3), value, np.uint8)


def slow_psnr(a: Frames, b: Frames) -> float:
    pairs = list(zip(a.flatten().tolist(), b.flatten().tolist(), strict=True))
    mse = sum((x - y) ** 2 for x, y in pairs) / len(pairs)
    return math.inf if mse == 0 else 10 * math.log10(255**2 / mse)


def slow_ssim(a: Frames, b: Frames) -> float:
    """Of one frame, as the paper has it: each window by itself."""
    x, y = np.meshgrid(np.arange(-5, 6), np.arange(-5, 6))
    weights = np.exp(-(x**2 + y**2) / (2 * 1.5**2))
    weights /= weights.sum()
    found = []
    for row in range(a.shape[0] - 10):
        for column in range(a.shape[1] - 10):
            for channel in range(3):
                place = (slice(row, row + 11), slice(column, column + 11), channel)
                p, q = a[place].astype(float), b[place].astype(float)
                mean_p, mean_q = (weights * p).sum(), (weights * q).sum()
                var_p = (weights * (p - mean_p) ** 2).sum()
                var_q = (weights * (q - mean_q) ** 2).sum()
                cov = (weights * (p - mean_p) * (q - mean_q)).sum()
                c1, c2 = 2.55**2, 7.65**2
                found.append(
                    (2 * mean_p * mean_q + c1)
                    * (2 * cov + c2)
                    / ((mean_p**2 + mean_q**2 + c1) * (var_p + var_q + c2))
                )
    return float(np.mean(found))


def slow_flicker_between(a: Frames, b: Frames) -> float:
    found = []
    for t in range(1, len(a)):
        for place in np.ndindex(a.shape[1:]):
            change_a = int(a[t][place]) - int(a[t - 1][place])
            change_b = int(b[t][place]) - int(b[t - 1][place])
            found.append(abs(change_a - change_b))
    return float(np.mean(found)) if found else 0.0


def slow_flicker_of(x: Frames) -> float:
    found = []
    for t in range(1, len(x) - 1):
        for place in np.ndindex(x.shape[1:]):
            around = (int(x[t - 1][place]) + int(x[t + 1][place])) / 2
            found.append(abs(around - int(x[t][place])))
    return float(np.mean(found)) if found else 0.0


SHAPES = st.tuples(st.integers(1, 4), st.integers(WINDOW, 15), st.integers(WINDOW, 15))
SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=15, deadline=None)
@given(shape=SHAPES, seed=SEEDS, amplitude=st.integers(0, 255))
def test_the_figures_are_their_definitions(
    shape: tuple[int, int, int], seed: int, amplitude: int
) -> None:
    a = noise(*shape, seed)
    moved = a + np.random.default_rng(seed).integers(-amplitude, amplitude + 1, a.shape)
    b = moved.clip(0, 255).astype(np.uint8)
    found = compare_videos(a, b)
    assert found.psnr == psnr(a, b) == pytest.approx(slow_psnr(a, b), rel=1e-12)
    by_frame = [slow_psnr(*pair) for pair in zip(a, b, strict=True)]
    assert found.psnr_of_frames == psnr_of_frames(a, b) == pytest.approx(by_frame, rel=1e-12)
    similar = [slow_ssim(*pair) for pair in zip(a, b, strict=True)]
    assert found.ssim_of_frames == ssim_of_frames(a, b) == pytest.approx(similar, abs=1e-11)
    assert found.ssim == ssim(a, b) == pytest.approx(float(np.mean(similar)), abs=1e-11)
    assert found.flicker == flicker_between(a, b) == pytest.approx(slow_flicker_between(a, b))
    assert found.flicker_a == flicker_of(a) == pytest.approx(slow_flicker_of(a))
    assert found.flicker_b == flicker_of(b) == pytest.approx(slow_flicker_of(b))
    distance = np.abs(a.astype(int) - b)
    assert found.largest == largest_difference(a, b)
    assert found.largest.levels == distance.max()
    frame, row, column = np.argwhere(distance.max(axis=3) == distance.max())[0]
    assert (found.largest.frame, found.largest.row, found.largest.column) == (frame, row, column)


@settings(max_examples=15, deadline=None)
@given(shape=SHAPES, seed=SEEDS)
def test_equal_videos_differ_in_nothing(shape: tuple[int, int, int], seed: int) -> None:
    a = noise(*shape, seed)
    found = compare_videos(a, a.copy())
    assert found.psnr == math.inf
    assert set(found.psnr_of_frames) == {math.inf}
    assert found.ssim == 1
    assert set(found.ssim_of_frames) == {1}
    assert found.flicker == 0
    assert found.flicker_a == found.flicker_b
    assert found.largest == LargestDifference(0, 0, 0, 0)
    assert found.figures()["psnr"] is None
    assert found.figures()["psnr_worst"] is None


@settings(max_examples=15, deadline=None)
@given(shape=SHAPES, seed=SEEDS)
def test_which_is_called_a_does_not_matter(shape: tuple[int, int, int], seed: int) -> None:
    a, b = noise(*shape, seed), noise(*shape, seed + 1)
    one, other = compare_videos(a, b), compare_videos(b, a)
    swapped = (other.flicker_b, other.flicker_a)
    assert (one.flicker_a, one.flicker_b) == swapped
    for name in ("psnr", "psnr_of_frames", "ssim", "ssim_of_frames", "flicker", "largest"):
        assert getattr(one, name) == getattr(other, name)


@settings(max_examples=15, deadline=None)
@given(seed=SEEDS)
def test_more_noise_is_farther_away(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ramp = np.linspace(80, 170, 24)
    a = np.broadcast_to(ramp[None, :, None, None], (3, 24, 24, 3)).round().astype(np.uint8)
    pattern = rng.standard_normal(a.shape)
    found = [
        compare_videos(a, (a + amplitude * pattern).round().clip(0, 255).astype(np.uint8))
        for amplitude in (0, 1, 4, 16, 64)
    ]
    for name, sign in (("psnr", -1), ("ssim", -1), ("flicker", 1), ("flicker_b", 1)):
        values = [sign * getattr(one, name) for one in found]
        assert values == sorted(values)
        assert len(set(values)) == len(values), name


def test_psnr_of_known_differences() -> None:
    assert psnr(level(0), level(255)) == 0
    for difference in (1, 10, 100):
        assert psnr(level(7), level(7 + difference)) == pytest.approx(
            20 * math.log10(255 / difference)
        )
    # the whole is of the mean error, not the mean of decibels
    a, b = level(0, 2), level(0, 2)
    b[1] = 10
    assert psnr_of_frames(a, b) == pytest.approx((math.inf, 28.1308036))
    assert psnr(a, b) == pytest.approx(28.1308036 + 10 * math.log10(2))


def test_ssim_of_known_pictures() -> None:
    # without structure, of brightness alone
    c1 = 2.55**2
    assert ssim(level(0), level(255)) == pytest.approx(c1 / (255**2 + c1))
    assert ssim(level(100), level(150)) == pytest.approx((30000 + c1) / (32500 + c1))
    # a pattern and its negative, about the same mean
    checks = (np.indices((32, 32)).sum(0) % 2)[None, :, :, None].repeat(3, axis=3)
    a, b = (100 + 50 * pattern for pattern in (checks, 1 - checks))
    assert ssim(a.astype(np.uint8), b.astype(np.uint8)) == pytest.approx(
        (-2 * 625 + 7.65**2) / (2 * 625 + 7.65**2), abs=1e-3
    )


def test_a_colour_in_place_of_an_equally_bright_one_is_seen() -> None:
    """Luma, of BT.601, is 76 for both."""
    red, green = level(0), level(0)
    red[..., 0], green[..., 1] = 254, 129
    assert abs(0.299 * 254 - 0.587 * 129) < 0.3
    assert ssim(red, green) < 0.5


def test_flicker_of_known_videos() -> None:
    still = level(100, 6)
    alternating = still.copy()
    alternating[1::2] += 10
    rising = still + 5 * np.arange(6, dtype=np.uint8)[:, None, None, None]
    assert flicker_of(still) == flicker_of(rising) == 0
    assert flicker_of(alternating) == 10
    assert flicker_between(still, alternating) == 10
    assert flicker_between(still, rising) == 5
    assert flicker_between(still, still + 50) == 0, "another brightness stands still"
    assert flicker_between(level(0, 2), np.concatenate([level(0), level(255)])) == 255
    # there and back by 255 in A, back and there in B: the sums of differences pass 8 bits
    a = np.concatenate([level(0), level(255), level(0)])
    assert flicker_between(a, 255 - a) == 510
    assert flicker_of(a) == 255


def test_short_videos_do_not_flicker() -> None:
    one = noise(1, 12, 12, 0)
    assert flicker_between(one, noise(1, 12, 12, 1)) == 0
    assert flicker_of(one) == flicker_of(noise(2, 12, 12, 0)) == 0


def test_the_worst_frames_are_named() -> None:
    a = level(100, 5, 20)
    b = a.copy()
    b[1] += 3
    b[3, ::2] += 20
    b[4, 17, 5, 2] = 255
    found = compare_videos(a, b)
    frame, worst = found.worst_psnr()
    assert frame == 3
    assert worst == pytest.approx(20 * math.log10(255 / 20) + 10 * math.log10(2))
    assert found.worst_ssim()[0] == 3
    assert found.largest == LargestDifference(levels=155, frame=4, column=5, row=17)
    figures = found.figures()
    assert figures["psnr_worst_frame"] == figures["ssim_worst_frame"] == 3
    assert (figures["largest"], figures["largest_frame"]) == (155, 4)
    assert figures["psnr"] == found.psnr


def test_progress_is_told_once_a_frame() -> None:
    seen: list[int] = []
    found = compare_videos(level(1, 4), level(2, 4), lambda: seen.append(1))
    assert len(seen) == 4
    assert isinstance(found, Comparison)


@pytest.mark.parametrize("figure", FIGURES)
def test_what_is_no_pair_is_refused(figure: Callable[[Frames, Frames], Any]) -> None:
    good = level(0, 2)
    for bad, name in (
        (good.astype(np.float32), "float32"),
        (good[..., :2], r"\[2, 16, 16, 2\]"),
        (good[0], r"\[16, 16, 3\]"),
        (good[:0], r"\[0, 16, 16, 3\]"),
    ):
        with pytest.raises(ValueError, match=rf"^b must be uint8 \[F, H, W, 3\], got .*{name}"):
            figure(good, bad)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="^a must be uint8"):
            figure(bad, good)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"one shape, got \[2, 16, 16, 3\] and \[3, 16, 16, 3\]"):
        figure(good, level(0, 3))


def test_frames_that_no_window_fits_in_are_refused() -> None:
    small = level(0, side=10)
    for figure in (ssim, ssim_of_frames, compare_videos):
        with pytest.raises(ValueError, match="must be 11x11 or larger, got 10x10"):
            figure(small, small)
    assert psnr(small, small) == math.inf
    with pytest.raises(ValueError, match="frames must be uint8"):
        flicker_of(small[0])
