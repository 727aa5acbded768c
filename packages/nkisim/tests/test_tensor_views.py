"""Views of tensors against the same operations on NumPy arrays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from counting_tensors import HBM, REGIONS, SBUF, counting
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_tiles import empty, on_core

import nkisim
import nkisim.isa as nisa
import nkisim.language as nl
from nkisim import dtypes
from nkisim.enums import MemoryRegion
from nkisim.tensor import NkiTensor
from nkisim.trace import Access

Numbers = npt.NDArray[np.int64]


class Pair:
    """A view, and a NumPy view of the numbers of the same elements."""

    def __init__(self, tensor: NkiTensor, numbers: Numbers) -> None:
        self.tensor = tensor
        self.numbers = numbers

    def check(self) -> None:
        tensor, numbers = self.tensor, self.numbers
        assert tensor.shape == numbers.shape
        assert (tensor.ndim, tensor.size, len(tensor)) == (
            numbers.ndim, numbers.size, len(numbers)
        )  # fmt: skip
        assert tensor.offset == numbers.flat[0]
        np.testing.assert_array_equal(tensor.array(), numbers)
        strides = [step // 8 for step in numbers.strides]
        for dim, (stride, size) in enumerate(tensor.get_pattern()):
            assert size == numbers.shape[dim]
            assert stride == tensor.strides[dim]
            assert size == 1 or stride == strides[dim]
        inner = numbers[0] if tensor.on_chip else numbers
        follow = np.arange(inner.size) + inner.flat[0]
        assert tensor.is_contiguous() == np.array_equal(inner.reshape(-1), follow)
        assert bytes_of(tensor.access()) == named(tensor, numbers)


def bytes_of(access: Access) -> set[tuple[int, int]]:
    """Partition and byte of all that an access touches."""
    starts = [access.lo]
    for step, count in access.steps:
        starts = [start + step * k for start in starts for k in range(count)]
    found = {start + byte for start in starts for byte in range(access.run)}
    assert (min(found), max(found) + 1) == (access.lo, access.hi)
    return set(itertools.product(range(access.p0, access.p1), found))


def named(tensor: NkiTensor, numbers: Numbers) -> set[tuple[int, int]]:
    """The same, from the numbers of the elements."""
    place, item = tensor.storage.place, tensor.dtype.itemsize
    width = place.bytes_per_partition
    first = {int(number) * item for number in numbers.flat}
    return {
        (place.base_partition + (at + byte) // width, (at + byte) % width)
        for at in first
        for byte in range(item)
    }


def test_what_lies_together_is_one_run_and_what_goes_on_is_one_step() -> None:
    def body() -> list[Any]:
        tile, rows = empty((4, 3, 4, 5)), empty((6, 3, 4), region=HBM)
        views = [
            tile, tile[:, :, :, 0:2], tile[:, 1:3, 0:2], tile[0:1, :, :, 0:1],
            rows[1:3], rows[:, 0:2], rows.permute((2, 1, 0)), rows[:, :, 0:1].broadcast(2, 7),
        ]  # fmt: skip
        found = [view.access() for view in views]
        return [(a.run, a.steps, a.elements, a.inner_step, a.partitions, a.bytes) for a in found]

    assert on_core(body) == [
        (240, (), 60, 4, 4, 960),
        (8, ((20, 12),), 24, 4, 4, 384),
        (40, ((80, 2),), 20, 4, 4, 320),
        (4, ((20, 12),), 12, 20, 1, 48),
        (96, (), 24, 4, 1, 96),
        (32, ((48, 6),), 48, 4, 1, 192),
        (4, ((4, 4), (16, 3), (48, 6)), 72, 48, 1, 288),
        (4, ((16, 18),), 126, 0, 1, 504),
    ]


# One random operation each: it draws its arguments and applies them to both.

Draw = Callable[[Any], Any]


def _index(draw: Draw, pair: Pair) -> Pair:
    keys: list[Any] = []
    plain: list[Any] = []
    count = draw(st.integers(0, pair.numbers.ndim))
    for dim in range(count):
        size = pair.numbers.shape[dim]
        if draw(st.booleans()):
            start = draw(st.integers(0, size - 1))
            stop = draw(st.integers(start + 1, size))
            key: Any = slice(start, stop, draw(st.sampled_from([None, 1, 2, 3])))
            if dim == 0 and pair.tensor.on_chip:
                key = slice(start, stop)
            if draw(st.booleans()):
                key = slice(start - size, stop - size if stop < size else None, key.step)
            plain.append(key)
        else:
            key = draw(st.integers(-size, size - 1))
            kept = dim == 0 and pair.tensor.on_chip
            plain.append(slice(key % size, key % size + 1) if kept else key)
            key = draw(st.sampled_from([key, np.int64(key)]))
        keys.append(key)
    if draw(st.booleans()):
        at = draw(st.integers(0, count))
        keys.insert(at, Ellipsis)
        missing = pair.numbers.ndim - count
        plain[at:at] = [slice(None)] * missing
        plain, keys = _shifted(pair, plain, keys, at, missing)
    key = keys[0] if len(keys) == 1 else tuple(keys)
    return _padded(pair.tensor[key], pair.numbers[tuple(plain)])


def _shifted(
    pair: Pair, plain: list[Any], keys: list[Any], at: int, missing: int
) -> tuple[list[Any], list[Any]]:
    """Keys after an ellipsis mean later dimensions: fit them to their sizes."""
    if not missing:
        return plain, keys
    for dim in range(at + missing, pair.numbers.ndim):
        plain[dim] = slice(0, pair.numbers.shape[dim])
        keys[dim - missing + 1] = slice(0, pair.numbers.shape[dim])
    if at == 0 and pair.tensor.on_chip:
        plain[0] = slice(None)
    return plain, keys


def _padded(tensor: NkiTensor, numbers: Any) -> Pair:
    found = np.asarray(numbers)
    while found.ndim < (2 if tensor.on_chip else 1):
        found = found[..., None]
    return Pair(tensor, found)


def _first(pair: Pair) -> int:
    """The first dimension that may change."""
    return 1 if pair.tensor.on_chip else 0


def _slice(draw: Draw, pair: Pair) -> Pair:
    dim = draw(st.integers(0, pair.numbers.ndim - 1))
    size = pair.numbers.shape[dim]
    start = draw(st.integers(0, size - 1))
    end = draw(st.integers(start + 1, size))
    step = 1 if dim == 0 and pair.tensor.on_chip else draw(st.integers(1, 3))
    key = (slice(None),) * dim + (slice(start, end, step),)
    given = draw(st.sampled_from([dim, dim - pair.numbers.ndim]))
    return Pair(pair.tensor.slice(given, start, end, step), pair.numbers[key])


def _select(draw: Draw, pair: Pair) -> Pair:
    dim = draw(st.integers(_first(pair), pair.numbers.ndim - 1))
    index = draw(st.integers(0, pair.numbers.shape[dim] - 1))
    key = (slice(None),) * dim + (index,)
    return _padded(pair.tensor.select(dim, index), pair.numbers[key])


def _permute(draw: Draw, pair: Pair) -> Pair:
    first = _first(pair)
    rest = draw(st.permutations(range(first, pair.numbers.ndim)))
    order = [*range(first), *rest]
    return Pair(pair.tensor.permute(order), pair.numbers.transpose(order))


def _expand(draw: Draw, pair: Pair) -> Pair:
    if pair.numbers.ndim == 5:
        return pair
    dim = draw(st.integers(_first(pair), pair.numbers.ndim))
    given = draw(st.sampled_from([dim, dim - pair.numbers.ndim - 1]))
    return Pair(pair.tensor.expand_dim(given), np.expand_dims(pair.numbers, dim))


def _units(pair: Pair) -> list[int]:
    return [dim for dim in range(_first(pair), pair.numbers.ndim) if pair.numbers.shape[dim] == 1]


def _squeeze(draw: Draw, pair: Pair) -> Pair:
    if not _units(pair):
        return pair
    dim = draw(st.sampled_from(_units(pair)))
    return _padded(pair.tensor.squeeze_dim(dim), pair.numbers.squeeze(dim))


def _broadcast(draw: Draw, pair: Pair) -> Pair:
    if not _units(pair):
        return pair
    dim, size = draw(st.sampled_from(_units(pair))), draw(st.integers(1, 4))
    shape = list(pair.numbers.shape)
    shape[dim] = size
    return Pair(pair.tensor.broadcast(dim, size), np.broadcast_to(pair.numbers, shape))


def _factors(draw: Draw, size: int, parts: int) -> list[int]:
    found = []
    for _ in range(parts - 1):
        divisors = [d for d in range(1, size + 1) if size % d == 0]
        found.append(draw(st.sampled_from(divisors)))
        size //= found[-1]
    return draw(st.permutations([*found, size]))  # type: ignore[no-any-return]


def _unknown(draw: Draw, shape: list[int]) -> list[int]:
    """`shape`, perhaps with a -1 in it."""
    if draw(st.booleans()):
        shape = list(shape)
        shape[draw(st.integers(0, len(shape) - 1))] = -1
    return shape


def _same_or_refused(pair: Pair, ours: Callable[[], NkiTensor], shape: Any) -> Pair:
    """A reshape is possible where NumPy can do it without a copy."""
    try:
        numbers = pair.numbers.reshape(shape, copy=False)
    except ValueError:
        with pytest.raises(ValueError, match="without moving elements"):
            ours()
        return pair
    return _padded(ours(), numbers)


def _reshape_dim(draw: Draw, pair: Pair) -> Pair:
    dim = draw(st.integers(_first(pair), pair.numbers.ndim - 1))
    sizes = _factors(draw, pair.numbers.shape[dim], draw(st.integers(1, 3)))
    before, after = pair.numbers.shape[:dim], pair.numbers.shape[dim + 1 :]
    numbers = pair.numbers.reshape((*before, *sizes, *after), copy=False)
    given = draw(st.sampled_from([list, tuple]))(_unknown(draw, sizes))
    return Pair(pair.tensor.reshape_dim(dim, given), numbers)


def _flatten(draw: Draw, pair: Pair) -> Pair:
    start = draw(st.integers(_first(pair), pair.numbers.ndim - 1))
    end = draw(st.integers(start, pair.numbers.ndim - 1))
    shape = pair.numbers.shape
    merged = (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :])
    return _same_or_refused(pair, lambda: pair.tensor.flatten_dims(start, end), merged)


def _reshape(draw: Draw, pair: Pair) -> Pair:
    kept = list(pair.numbers.shape[: _first(pair)])
    free = math.prod(pair.numbers.shape[_first(pair) :])
    sizes = _factors(draw, free, draw(st.integers(1, 4)))
    given = [*kept, *_unknown(draw, sizes)]
    return _same_or_refused(pair, lambda: pair.tensor.reshape(given), (*kept, *sizes))


OPERATIONS = (
    _index, _slice, _select, _permute, _expand, _squeeze, _broadcast, _reshape_dim, _flatten,
    _reshape,
)  # fmt: skip


@pytest.mark.parametrize("region", REGIONS)
@settings(deadline=None, max_examples=80)
@given(st.data())
def test_chains_of_views_are_those_of_numpy(region: MemoryRegion, data: st.DataObject) -> None:
    least = 1 if region is HBM else 2
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=least, max_size=4)))
    dtype = data.draw(st.sampled_from([dtypes.int32, dtypes.uint16]))

    def body() -> None:
        tensor = counting(shape, region, dtype)
        pair = Pair(tensor, np.arange(math.prod(shape)).reshape(shape))
        pair.check()
        for _ in range(data.draw(st.integers(1, 6))):
            pair = data.draw(st.sampled_from(OPERATIONS))(data.draw, pair)
            pair.check()

    on_core(body)


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_rearrange_is_a_reshape_a_transpose_and_a_reshape(data: st.DataObject) -> None:
    region = data.draw(st.sampled_from(REGIONS))
    first = 0 if region is HBM else 1
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=first + 1, max_size=4))
    names = [f"d{dim}" for dim in range(len(sizes))]
    # neighbours that one dimension of the tensor holds
    source = _grouped(data.draw, names[first:])
    order = data.draw(st.permutations(names[first:]))
    target = _grouped(data.draw, order)
    size = dict(zip(names, sizes, strict=True))
    shape = [*sizes[:first], *(math.prod(size[name] for name in group) for group in source)]
    fixed = {name: size[name] for group in source for name in group[1:]}

    def body() -> None:
        tensor = counting(tuple(shape), region)
        numbers = np.arange(tensor.size).reshape(sizes)
        turned = numbers.transpose([names.index(name) for name in (*names[:first], *order)])
        merged = [*sizes[:first], *(math.prod(size[name] for name in group) for group in target)]
        left = [*names[:first], *(_entry(data.draw, group) for group in source)]
        right = [*names[:first], *(_entry(data.draw, group) for group in target)]
        view = Pair(tensor, turned)
        found = _same_or_refused(view, lambda: tensor.rearrange(left, right, fixed), merged)
        if found is not view:
            found.check()

    on_core(body)


def _grouped(draw: Draw, names: list[str]) -> list[list[str]]:
    groups: list[list[str]] = []
    for name in names:
        if groups and draw(st.booleans()):
            groups[-1].append(name)
        else:
            groups.append([name])
    return groups


def _entry(draw: Draw, group: list[str]) -> Any:
    return group[0] if len(group) == 1 and draw(st.booleans()) else tuple(group)


def test_rearrange_splits_and_joins_heads() -> None:
    def body() -> None:
        tensor = counting((4, 6, 5), SBUF)
        view = tensor.rearrange(("p", ("G", "n"), "B"), ("p", "n", ("G", "B")), {"G": 2})
        del view

    # G and B are not neighbours in memory
    with pytest.raises(ValueError, match="without moving elements"):
        on_core(body)

    def other() -> Any:
        tensor = counting((4, 6, 5), SBUF)
        view = tensor.rearrange(("p", ("G", "n"), "B"), ("p", "B", "G", "n"), {"G": 2})
        return view.array().copy()

    wanted = np.arange(120).reshape(4, 2, 3, 5).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(on_core(other), wanted)


@pytest.mark.parametrize(
    ("source", "target", "sizes", "words"),
    [
        (("a",), ("a",), None, "2 dimensions"),
        (("a", "a"), ("a",), None, "twice"),
        (("a", "b"), ("a", "c"), None, "has no 'c'"),
        (("a", "b"), ("a",), None, "each of"),
        ((("a", "c"), "b"), ("a", "c", "b"), None, "at most one -1"),
        ((("a", "c"), "b"), ("a", "c", "b"), {"a": 3}, "do not divide"),
        (("a", "b"), ("b", "a"), {"z": 3}, "'z'"),
    ],
)
def test_rearrange_names_what_does_not_fit(
    source: Any, target: Any, sizes: Any, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        on_core(lambda: counting((4, 6), HBM).rearrange(source, target, sizes))


# Arguments and results


@pytest.mark.parametrize("lnc", [1, 2])
def test_arguments_and_results_are_reshaped(lnc: int) -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)

    def kernel(x: Any) -> Any:
        out = nl.ndarray(list(x.shape), dtype=x.dtype, buffer=nl.shared_hbm)
        if nl.program_id(0) == 0:
            nisa.dma_copy(out.reshape((6, 4)), x.reshape([3, 8]))
        return out.reshape((4, 6)), out.reshape_dim(0, [2, 1])[1]

    whole, part = nkisim.simulate(kernel)[lnc](values)
    np.testing.assert_array_equal(whole, values.reshape(4, 6))
    np.testing.assert_array_equal(part, values[1:])
