"""The sizes and numbers of frames that a model can make, around one that it cannot."""

from __future__ import annotations

from wantrn.model.info import ModelInfo


def sizes_around(size: tuple[int, int], info: ModelInfo) -> tuple[tuple[int, int], tuple[int, int]]:
    """The two allowed (width, height) around ``size``, side by side; both are ``size`` where it is
    allowed. The nearest of all is ``nearest_size``."""
    multiple, limit = info.size_multiple, largest_side(info)
    width, height = (_around(side, multiple, 0, limit) for side in size)
    return (width[0], height[0]), (width[1], height[1])


def frames_around(frames: int, info: ModelInfo) -> tuple[int, int]:
    """The two allowed numbers of frames around ``frames``; both are ``frames`` where it is."""
    return _around(frames, info.temporal_stride, 1, most_frames(info))


def nearest_size(size: tuple[int, int], info: ModelInfo) -> tuple[int, int]:
    """The allowed size whose sides are nearest; of two as near, the larger."""
    below, above = sizes_around(size, info)
    width, height = (
        _nearer(side, *around)
        for side, around in zip(size, zip(below, above, strict=True), strict=True)
    )
    return width, height


def nearest_frames(frames: int, info: ModelInfo) -> int:
    """The allowed number of frames that is nearest; of two as near, the larger."""
    return _nearer(frames, *frames_around(frames, info))


def largest_side(info: ModelInfo) -> int:
    """The largest width and height, pixels: as far as the positions of the model go."""
    return info.config.rope_max_seq_len * info.size_multiple


def most_frames(info: ModelInfo) -> int:
    latent_frames = info.config.rope_max_seq_len * info.config.patch_size[0]
    return (latent_frames - 1) * info.temporal_stride + 1


def _around(value: int, multiple: int, offset: int, limit: int) -> tuple[int, int]:
    """The two allowed values around ``value``: multiples plus ``offset``, at least one, at most
    ``limit`` (which is allowed). The first is ``value`` exactly where that is allowed."""
    smallest = offset if offset > 0 else multiple
    if value < smallest:
        return smallest, smallest + multiple
    if value > limit:
        return limit - multiple, limit
    below = (value - offset) // multiple * multiple + offset
    return (below, below) if below == value else (below, below + multiple)


def _nearer(value: int, below: int, above: int) -> int:
    return below if abs(value - below) < abs(above - value) else above
