"""What is made in place of a size or a length that cannot be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wantrn.model.info import ModelInfo, ModelKind, read_model_info
from wantrn.model.nearest import (
    frames_around,
    largest_side,
    most_frames,
    nearest_frames,
    nearest_size,
    sizes_around,
)
from wantrn.model.settings import VideoRequest, resolve
from wantrn.model.tiny import write_tiny_checkpoint


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    return read_model_info(write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), ModelKind.T2V))


@pytest.mark.parametrize(
    ("size", "nearest"),
    [
        ((100, 70), (96, 64)),
        ((104, 72), (112, 80)),
        ((8, 8), (16, 16)),
        ((0, -5), (16, 16)),
        ((96, 64), (96, 64)),
    ],
)
def test_sizes(info: ModelInfo, size: tuple[int, int], nearest: tuple[int, int]) -> None:
    assert nearest_size(size, info) == nearest


def test_frames(info: ModelInfo) -> None:
    asked = (-3, 0, 1, 2, 3, 10, 11, 13, 81, 80, 79)
    assert [nearest_frames(n, info) for n in asked] == [1, 1, 1, 1, 5, 9, 13, 13, 81, 81, 81]


@given(
    width=st.integers(-10, 10**6), height=st.integers(-10, 10**6), frames=st.integers(-10, 10**6)
)
def test_the_nearest_can_be_made_and_nothing_allowed_is_nearer(
    info: ModelInfo, width: int, height: int, frames: int
) -> None:
    size, count = nearest_size((width, height), info), nearest_frames(frames, info)
    settings = resolve(VideoRequest("a", size=size, frames=count, seed=1), info)
    assert (settings.width, settings.height, settings.frames) == (*size, count)
    sides = range(info.size_multiple, largest_side(info) + 1, info.size_multiple)
    for asked, made in zip((width, height), size, strict=True):
        assert abs(asked - made) == min(abs(asked - side) for side in sides)
    lengths = range(1, most_frames(info) + 1, info.temporal_stride)
    assert abs(frames - count) == min(abs(frames - length) for length in lengths)
    for below, above in (
        *zip(*sizes_around((width, height), info), strict=True),
        frames_around(frames, info),
    ):
        assert below <= above
