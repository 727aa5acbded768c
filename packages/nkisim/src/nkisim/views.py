"""Shapes and strides of views, as plain arithmetic.

A view is a shape, a stride for each dimension and an offset, all in elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

Shape = tuple[int, ...]
Names = Sequence[Any]  # names of dimensions, or tuples of names for a dimension that is several


def contiguous_strides(shape: Shape) -> Shape:
    """The strides of a row-major tensor."""
    if len(shape) == 2:
        # most tiles
        return shape[1], 1
    strides = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def is_contiguous(shape: Shape, strides: Shape) -> bool:
    """Whether the elements lie in row-major order without gaps."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def filled(shape: Sequence[int], size: int) -> Shape:
    """`shape` with its one -1, if any, replaced so that it holds `size` elements.

    Raises:
        ValueError: it cannot hold them.
    """
    given = tuple(int(n) for n in shape)
    if given.count(-1) > 1 or any(n < 1 and n != -1 for n in given):
        raise ValueError(f"shape is {list(given)}; sizes must be at least 1, with at most one -1")
    known = math.prod(n for n in given if n != -1)
    if -1 in given:
        if size % known:
            raise ValueError(f"shape is {list(given)}; {size} elements do not divide by {known}")
        given = tuple(size // known if n == -1 else n for n in given)
    elif known != size:
        raise ValueError(f"shape is {list(given)} of {known} elements; the tensor has {size}")
    return given


def reshaped(shape: Shape, strides: Shape, new_shape: Shape) -> Shape:
    """The strides that show the same elements, in the same order, as `new_shape`.

    Raises:
        ValueError: no strides do.
    """
    # dimensions of size 1 have no say; what is left is merged where it is contiguous
    groups: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if groups and groups[-1][1] == size * stride:
            groups[-1] = (groups[-1][0] * size, stride)
        else:
            groups.append((size, stride))
    result: list[int] = []
    left, step = groups.pop() if groups else (1, 1)
    for size in reversed(new_shape):
        if size == 1:
            result.append(step)
            continue
        if left == 1 and groups:
            left, step = groups.pop()
        if left % size:
            raise ValueError(
                f"shape {list(shape)} with strides {list(strides)} cannot be seen as "
                f"{list(new_shape)} without moving elements"
            )
        result.append(step)
        left //= size
        step *= size
    return tuple(reversed(result))


def rearranged(
    shape: Shape, strides: Shape, source: Names, target: Names, sizes: Mapping[str, int] | None
) -> tuple[Shape, Shape]:
    """Split dimensions as `source` names them, then reorder and merge them as `target` does.

    Example: `source=(("G", "n"), "B")`, `target=("B", "G", "n")`, `sizes={"G": 4}`.

    Raises:
        ValueError: names or sizes do not fit, or merged dimensions are not contiguous.
    """
    if len(source) != len(shape):
        raise ValueError(f"src_pattern is {source!r}; the tensor has {len(shape)} dimensions")
    given = sizes or {}
    dimensions: dict[str, tuple[int, int]] = {}
    for entry, size, stride in zip(source, shape, strides, strict=True):
        names = (entry,) if isinstance(entry, str) else tuple(entry)
        split = filled([given.get(name, -1) for name in names], size)
        for position, name in enumerate(names):
            if name in dimensions:
                raise ValueError(f"src_pattern is {source!r}; {name!r} is in it twice")
            inner = math.prod(split[position + 1 :])
            dimensions[name] = (split[position], stride * inner)
    for name in given:
        if name not in dimensions:
            raise ValueError(f"fixed_sizes has {name!r}; src_pattern is {source!r}")
    new_shape, new_strides = [], []
    used: list[str] = []
    for entry in target:
        names = (entry,) if isinstance(entry, str) else tuple(entry)
        used += names
        unknown = [name for name in names if name not in dimensions]
        if unknown:
            raise ValueError(f"dst_pattern is {target!r}; src_pattern has no {unknown[0]!r}")
        part = [dimensions[name] for name in names]
        size = math.prod(n for n, _ in part)
        (stride,) = reshaped(tuple(n for n, _ in part), tuple(s for _, s in part), (size,))
        new_shape.append(size)
        new_strides.append(stride)
    if sorted(used) != sorted(dimensions):
        raise ValueError(
            f"dst_pattern is {target!r}; it must use each of {sorted(dimensions)} once"
        )
    return tuple(new_shape), tuple(new_strides)
