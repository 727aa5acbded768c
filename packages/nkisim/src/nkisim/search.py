"""Finding, sorting and gathering elements, partition by partition."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from nkisim.errors import NkiValidationError

Array = npt.NDArray[Any]
Index = npt.NDArray[np.intp]

# GpSimd has eight cores of sixteen partitions each
GROUP_PARTITIONS = 16
QUADRANT_PARTITIONS = 32
# the entry of a shuffle mask that leaves its partition as it is
SHUFFLE_KEEP = 255


def max8(src: Array) -> Array:
    """The 8 largest elements of each partition, in descending order; NaN is larger than all.

    Args:
        src: float32 `[P, N]`, N >= 8.

    Returns:
        float32 `[P, 8]`.
    """
    if src.shape[1] < 8:
        raise NkiValidationError(f"src has {src.shape[1]} elements a partition; 8 are needed")
    largest = np.partition(src, src.shape[1] - 8, axis=1)[:, -8:]
    largest.sort(axis=1)
    return np.ascontiguousarray(largest[:, ::-1])


def find_index8(data: Array, vals: Array, dtype: npt.DTypeLike = np.uint32) -> Array:
    """Where in `data` each of 8 values first stands.

    Of equal values, each later one gives the next occurrence.

    Args:
        data: `[P, N]`.
        vals: `[P, 8]`.
        dtype: uint32 or uint16.

    Returns:
        `dtype` `[P, 8]`; all bits set for a value that is not found.
    """
    return _index(_first_matches(data, vals, range(vals.shape[1])), dtype)


def match_replace8(
    data: Array, vals: Array, imm: float, dtype: npt.DTypeLike = np.uint32
) -> tuple[Array, Array]:
    """`data` with one occurrence of each of 8 values replaced.

    The values take their turns from the last to the first; each takes the first occurrence in
    `data` that none has taken.

    Args:
        data: `[P, N]`.
        vals: `[P, 8]`.
        imm: what to write there.
        dtype: of the indices, uint32 or uint16.

    Returns:
        the new data, and where they were replaced: `dtype` `[P, 8]`, all bits set for a value that
        was not found.
    """
    found = _first_matches(data, vals, range(vals.shape[1] - 1, -1, -1))
    replaced = data.copy()
    partition, slot = np.nonzero(found >= 0)
    replaced[partition, found[partition, slot]] = imm
    return replaced, _index(found, dtype)


def _first_matches(data: Array, vals: Array, order: range) -> Index:
    """The first position of each value that no earlier one in `order` has taken; -1 for none."""
    every = np.arange(data.shape[0])
    found = np.full(vals.shape, -1, np.intp)
    for slot in order:
        matches = data == vals[:, slot : slot + 1]
        for earlier in order:
            if earlier == slot:
                break
            # -1 stands for the last element here, so it must be left as it is
            taken = found[:, earlier] >= 0
            matches[every[taken], found[taken, earlier]] = False
        position = matches.argmax(axis=1)
        found[:, slot] = np.where(matches[every, position], position, -1)
    return found


def _index(found: Index, dtype: npt.DTypeLike) -> Array:
    # -1 wraps around to all bits set
    return found.astype(dtype)


def topk(src: Array, n: int, k: int) -> tuple[Array, npt.NDArray[np.uint32]]:
    """The k largest of the first n elements of each group of 16 partitions.

    Element j of a group is at partition `j % 16`, column `j // 16`. Among equal elements those with
    the lowest j are taken. NaN is larger than all.

    Args:
        src: `[P, W]`, P a multiple of 16 and `16 * W >= n`.

    Returns:
        values of `src.dtype` and their j, both `[P, k]` in ascending order of the values (equal
        ones: higher j first). All 16 partitions of a group get the same.
    """
    P, W = src.shape
    if P % GROUP_PARTITIONS or not 1 <= k <= n <= GROUP_PARTITIONS * W:
        raise NkiValidationError(
            f"n is {n} and k is {k} for src {list(src.shape)}; it must have a multiple of "
            f"{GROUP_PARTITIONS} partitions, with 1 <= k <= n <= {GROUP_PARTITIONS} * {W}"
        )
    groups = src.reshape(-1, GROUP_PARTITIONS, W).transpose(0, 2, 1).reshape(-1, 16 * W)[:, :n]
    # backwards, so that a stable sort puts the lower index last and it is taken first
    order = np.argsort(groups[:, ::-1].astype(np.float32), axis=1, kind="stable")
    index = n - 1 - order[:, n - k :]
    values = np.take_along_axis(groups, index, axis=1)
    rows = np.arange(P) // GROUP_PARTITIONS
    return values[rows], index.astype(np.uint32)[rows]


def local_gather(
    src: Array, index: Array, num_elem_per_idx: int = 1, num_valid_indices: int | None = None
) -> Array:
    """In each group of 16 partitions, the runs of elements that the group's indices name.

    The indices of a group are those of its 16 partitions, column after column.

    Args:
        src: `[P, W]`, P a multiple of 16.
        index: unsigned integers `[P, C]`, each the first element of a run.
        num_elem_per_idx: the length of a run.
        num_valid_indices: how many indices of a group count, all `16 * C` by default.

    Returns:
        `[P, num_valid_indices, num_elem_per_idx]` of `src.dtype`.

    Raises:
        NkiValidationError: a run ends beyond W.
    """
    P, W = src.shape
    valid = GROUP_PARTITIONS * index.shape[1] if num_valid_indices is None else num_valid_indices
    if P % GROUP_PARTITIONS or index.shape[0] != P:
        raise NkiValidationError(
            f"src has {P} partitions and index {index.shape[0]}; they must have the same multiple "
            f"of {GROUP_PARTITIONS}"
        )
    if not 0 < valid <= GROUP_PARTITIONS * index.shape[1]:
        raise NkiValidationError(
            f"num_valid_indices is {valid}; a group has {GROUP_PARTITIONS * index.shape[1]} indices"
        )
    snake = index.reshape(-1, GROUP_PARTITIONS, index.shape[1]).transpose(0, 2, 1)
    first = snake.reshape(snake.shape[0], -1)[:, :valid].astype(np.intp)
    _check_range(first, W - num_elem_per_idx + 1, "index")
    elements = (first[:, :, None] + np.arange(num_elem_per_idx)).reshape(first.shape[0], -1)
    result = np.empty((P, elements.shape[1]), src.dtype)
    for group, columns in enumerate(elements):
        rows = slice(GROUP_PARTITIONS * group, GROUP_PARTITIONS * (group + 1))
        result[rows] = src[rows].take(columns, axis=1)
    return result.reshape(P, valid, num_elem_per_idx)


def n_gather(data: Array, indices: Array) -> Array:
    """`result[p, j] = data[p, indices[p, j]]`.

    Args:
        data: `[P, W]`.
        indices: unsigned integers `[P, J]`, all less than W.

    Returns:
        `[P, J]` of `data.dtype`.
    """
    positions = indices.astype(np.intp)
    _check_range(positions, data.shape[1], "indices")
    return np.take_along_axis(data, positions, axis=1)


def _check_range(index: Index, end: int, operand: str) -> None:
    low, high = int(index.min(initial=0)), int(index.max(initial=0))
    if low < 0 or high >= end:
        raise NkiValidationError(
            f"{operand} holds {low if low < 0 else high}; it must be from 0 to {end - 1}"
        )


def nonzero_with_count(
    src: Array, index_offset: int = 0, padding_val: int = -1
) -> npt.NDArray[np.int32]:
    """Where partitions 0, 16, 32, ... are not zero, and how often.

    Args:
        src: float32 or int32 `[P, T]`; NaN is not zero.
        index_offset: added to each index.
        padding_val: what follows the indices.

    Returns:
        int32 `[ceil(P / 16), T + 1]`: for every sixteenth partition the indices in ascending order,
        padding up to T, and the count. It belongs to these partitions of the destination.
    """
    nonzero = src[::GROUP_PARTITIONS] != 0
    T = nonzero.shape[1]
    count = nonzero.sum(axis=1, keepdims=True)
    # a stable sort of "is zero" brings the others to the front in their order
    order = np.argsort(~nonzero, axis=1, kind="stable")
    result = np.empty((nonzero.shape[0], T + 1), np.int32)
    result[:, :T] = np.where(np.arange(T) < count, order + index_offset, padding_val)
    result[:, T:] = count
    return result


def sequence_bounds(segment_ids: Array) -> npt.NDArray[np.int32]:
    """The bounds of the run of equal ids in which each element stands.

    Args:
        segment_ids: float32 or int32 `[1, n]`.

    Returns:
        int32 `[1, 2, n]`: the first position of the run, and the one after its last; n and -1 where
        the id is 0, which is padding.
    """
    ids = segment_ids.reshape(-1)
    n = ids.shape[0]
    begins = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
    ends = np.append(begins[1:], n)
    lengths = ends - begins
    padding = ids == 0
    first = np.where(padding, n, np.repeat(begins, lengths))
    after = np.where(padding, -1, np.repeat(ends, lengths))
    return np.stack([first, after]).astype(np.int32)[None]


def stream_shuffle(dst: Array, src: Array, mask: list[int] | tuple[int, ...]) -> Array:
    """`dst` with partitions exchanged within quadrants: `result[32 q + i] = src[32 q + mask[i]]`.

    Where `src` has fewer quadrants than `dst`, its last one serves for the others.

    Args:
        dst: `[D, N]`, what was there before; seen where the mask says 255.
        src: `[S, N]` of the same type.
        mask: 32 numbers, each less than 32, or 255 to leave the partition as it is.

    Returns:
        a new array `[D, N]`.

    Raises:
        NkiValidationError: the mask names a partition that `src` does not have.
    """
    if len(mask) != QUADRANT_PARTITIONS or not all(
        0 <= entry < QUADRANT_PARTITIONS or entry == SHUFFLE_KEEP for entry in mask
    ):
        raise NkiValidationError(
            f"shuffle_mask is {list(mask)}; it must be {QUADRANT_PARTITIONS} numbers, each from 0 "
            f"to {QUADRANT_PARTITIONS - 1} or {SHUFFLE_KEEP}"
        )
    quadrant, lane = np.divmod(np.arange(dst.shape[0]), QUADRANT_PARTITIONS)
    entries = np.asarray(mask)[lane]
    last = (src.shape[0] - 1) // QUADRANT_PARTITIONS
    source = np.minimum(quadrant, last) * QUADRANT_PARTITIONS + entries
    moved = np.flatnonzero(entries != SHUFFLE_KEEP)
    beyond = source[moved] >= src.shape[0]
    if beyond.any():
        raise NkiValidationError(
            f"shuffle_mask reads partition {int(source[moved][beyond][0])}; src has {src.shape[0]}"
        )
    result = dst.copy()
    result[moved] = src[source[moved]]
    return result
