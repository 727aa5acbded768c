"""`.ap` and `.indirect` against addresses worked out one by one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_tiles import Array, empty, on_core, rejected, tile

import nkisim.isa as nisa
from nkisim import dtypes
from nkisim.dtypes import DType
from nkisim.enums import MemoryRegion
from nkisim.errors import NkiValidationError, NkiWarning
from nkisim.settings import Rules
from nkisim.tensor import NkiTensor

HBM = MemoryRegion.private_hbm
SBUF = MemoryRegion.sbuf
PSUM = MemoryRegion.psum


def filled(
    shape: tuple[int, ...], region: MemoryRegion, dtype: DType = dtypes.int32, seed: int = 0
) -> NkiTensor:
    """A tensor of random bytes."""
    tensor = empty(shape, dtype, region)
    tensor.array()[...] = random_bytes(shape, dtype, seed)
    tensor.storage.coverage.full = True
    return tensor


def random_bytes(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> Array:
    count = math.prod(shape) * dtype.itemsize
    values = np.random.default_rng(seed).integers(0, 256, count).astype(np.uint8)
    return values.view(dtype.numpy).reshape(shape)


def looked_up(array: Array, dtype: DType, pattern: Any, offset: int) -> Array:
    """The elements of `dtype` that a pattern names in the bytes of `array`, one at a time."""
    flat = np.frombuffer(array.tobytes(), dtype.numpy)
    counts = [count for _, count in pattern]
    found = np.empty(counts, dtype.numpy)
    for place in itertools.product(*map(range, counts)):
        at = sum(step * k for (step, _), k in zip(pattern, place, strict=True))
        found[place] = flat[offset + at]
    return found


def bits(array: Array) -> Array:
    return np.ascontiguousarray(array).view(np.uint8)


@st.composite
def _patterns(draw: st.DrawFn, first: list[tuple[int, int]], room: int) -> list[list[int]]:
    """Pairs of which the free ones reach less than `room` elements."""
    pairs = [list(pair) for pair in first]
    for _ in range(draw(st.integers(1 if first else 0, 3))):
        count = draw(st.integers(1, 4))
        most = (room - 1) // (count - 1) if count > 1 else 50
        step = draw(st.integers(0, min(most, 50)))
        room -= step * (count - 1)
        pairs.append([step, count])
    return pairs or [[draw(st.integers(0, 9)), 1]]


@pytest.mark.parametrize("region", [SBUF, PSUM])
@settings(deadline=None, max_examples=100)
@given(st.data())
def test_a_pattern_on_chip_names_elements_of_the_allocated_tensor(
    region: MemoryRegion, data: st.DataObject
) -> None:
    partitions, width = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 24))
    first, free = data.draw(st.integers(0, partitions - 1)), data.draw(st.integers(0, width - 1))
    count = data.draw(st.integers(1, partitions - first))
    step = width if count > 1 else data.draw(st.sampled_from([width, 0, 1, 77]))
    pattern = data.draw(_patterns([(step, count)], width - free))
    offset = first * width + free
    kind = data.draw(st.sampled_from([list, tuple]))

    def body() -> None:
        tensor = filled((partitions, width), region)
        view = tensor.ap(kind(map(kind, pattern)), offset)
        array = random_bytes((partitions, width), dtypes.int32)
        exact = [[width, count], *pattern[1:]]
        np.testing.assert_array_equal(view.array(), looked_up(array, dtypes.int32, exact, offset))
        assert view.get_pattern() == exact

    on_core(body)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_a_pattern_in_hbm_names_elements_of_the_allocated_tensor(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    total = math.prod(shape)
    offset = data.draw(st.integers(0, total - 1))
    pattern = data.draw(_patterns([], total - offset))

    def body() -> None:
        view = filled(shape, HBM).ap(pattern, offset=offset)
        array = random_bytes(shape, dtypes.int32)
        np.testing.assert_array_equal(view.array(), looked_up(array, dtypes.int32, pattern, offset))

    on_core(body)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_offsets_add_up_and_scale_with_the_type(data: st.DataObject) -> None:
    old = data.draw(st.sampled_from([dtypes.uint8, dtypes.bfloat16, dtypes.float32]))
    new = data.draw(
        st.sampled_from([dtypes.float8_e4m3, dtypes.int16, dtypes.float32, dtypes.float8_e5m2_x4])
    )
    row, column = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 7))
    extra = data.draw(st.integers(0, 2))

    def body() -> None:
        array = random_bytes((5, 12), old)
        tensor = filled((5, 12), HBM, old)
        inherited = (row * 12 + column) * old.itemsize
        view = tensor[row:, column:]
        if inherited % new.itemsize:
            with pytest.raises(NkiValidationError, match="does not divide"):
                view.ap([[1, 2]], dtype=new)
            return
        # whatever shape the view has, only where it begins counts
        pattern = [[1, 2]] if extra + 2 <= 3 else [[1, 1]]
        found = view.ap(pattern, offset=extra, dtype=new)
        wanted = looked_up(array, new, pattern, inherited // new.itemsize + extra)
        assert found.dtype is new
        np.testing.assert_array_equal(bits(found.array()), bits(wanted))

    on_core(body)


def test_a_pattern_of_a_pattern_starts_where_the_inner_one_does() -> None:
    def body() -> list[Any]:
        tensor = filled((4, 10), SBUF)
        inner = tensor.ap([[10, 2], [2, 3]], offset=11)
        outer = inner.ap([[10, 2], [1, 4]], offset=3)
        return [outer.offset, outer.shape, inner.ap([[10, 1], [1, 1]]).offset]

    assert on_core(body) == [14, (2, 4), 11]


def test_a_pattern_of_a_selected_row() -> None:
    def body() -> Any:
        return filled((4, 10), HBM).select(0, 2).ap([[3, 2], [1, 3]], offset=1).array().copy()

    array = random_bytes((4, 10), dtypes.int32)
    np.testing.assert_array_equal(on_core(body), array[2, 1:7].reshape(2, 3))


def test_one_row_of_hbm_for_all_partitions() -> None:
    def body() -> Any:
        source, target = filled((3, 8), HBM), empty((128, 5), dtypes.int32)
        nisa.dma_copy(target, source[1].ap([[0, 128], [1, 5]], offset=2))
        return target.array().copy()

    array = random_bytes((3, 8), dtypes.int32)
    np.testing.assert_array_equal(on_core(body), np.tile(array[1, 2:7], (128, 1)))


def test_packed_rows_as_words() -> None:
    """Rows of 12 codes and a scale of four bytes, seen as rows of four words."""

    def body() -> Any:
        packed = filled((2, 3, 16), HBM, dtypes.float8_e4m3fn)
        scales = packed.ap([[4, 3], [1, 1]], offset=1 * 3 * 4 + 3, dtype=dtypes.float32)
        return scales.array().copy()

    array = random_bytes((2, 3, 16), dtypes.uint8)
    np.testing.assert_array_equal(bits(on_core(body)), array[1, :, 12:])


@pytest.mark.parametrize(
    ("old", "new", "width", "factor"),
    [
        (dtypes.float32, dtypes.float8_e4m3, 6, 4),
        (dtypes.bfloat16, dtypes.int32, 6, 0.5),
        (dtypes.uint8, dtypes.float8_e4m3fn_x4, 8, 0.25),
        (dtypes.float8_e4m3fn_x4, dtypes.float32, 3, 1),
    ],
)
def test_the_partition_step_counts_elements_of_the_new_type(
    old: DType, new: DType, width: int, factor: float
) -> None:
    step = int(width * factor)

    def body() -> Any:
        view = filled((4, width), SBUF, old).ap([[step, 4], [1, step]], dtype=new)
        return view.array().copy()

    wanted = random_bytes((4, width), old)
    np.testing.assert_array_equal(bits(on_core(body)), bits(wanted).reshape(4, -1))
    rejected(lambda: filled((4, width), SBUF, old).ap([[step + 1, 4], [1, 1]], dtype=new), "step")


@pytest.mark.parametrize(
    "ap",
    [
        lambda t: t.ap([[0, 4], [1, 6]]),  # one partition as four
        lambda t: t.ap([[12, 2], [1, 6]]),  # every other partition
        lambda t: t.ap([[5, 4], [1, 5]]),
        lambda t: t.ap([[6, 4]]),
        lambda t: t.ap([[6, 5], [1, 6]]),  # a partition too many
        lambda t: t.ap([[6, 4], [1, 7]]),
        lambda t: t.ap([[6, 4], [1, 6]], offset=1),
        lambda t: t.ap([[6, 4], [1, 6]], offset=6),
        lambda t: t.ap([[6, 1], [1, 1]], offset=24),
        lambda t: t.ap([[6, 2], [3, 3]]),
        lambda t: t.ap([[6, 4], [1, 6]], dtype=dtypes.int16),
        lambda t: t[:, 1:].ap([[6, 4], [1, 6]]),
    ],
)
@pytest.mark.parametrize("region", [SBUF, PSUM])
def test_patterns_that_leave_the_tensor_on_chip(
    ap: Callable[[NkiTensor], NkiTensor], region: MemoryRegion
) -> None:
    rejected(lambda: ap(filled((4, 6), region)).access(), "partition")


@pytest.mark.parametrize(
    "ap",
    [
        lambda t: t.ap([[1, 25]]),
        lambda t: t.ap([[1, 1]], offset=24),
        lambda t: t.ap([[6, 4], [1, 7]]),
        lambda t: t[1:].ap([[6, 4], [1, 6]]),
        lambda t: t.ap([[1, 13]], dtype=dtypes.uint32).ap([[1, 24]]).ap([[2, 13]]),
    ],
)
def test_patterns_that_leave_the_tensor_in_hbm(ap: Callable[[NkiTensor], NkiTensor]) -> None:
    rejected(lambda: ap(filled((4, 6), HBM)).access(), "reaches element", "24")


def test_a_pattern_of_a_part_may_count_the_part_s_own_elements() -> None:
    """`[[3, 4], ...]` of a view of 3 columns of a tensor of 6 means the next partitions too."""

    def body() -> Any:
        part = filled((4, 6), SBUF)[:, 2:5]
        text = r"partition step is 3;.* must be 6.*\[partition_step\]"
        with pytest.warns(NkiWarning, match=text):
            view = part.ap([[3, 4], [1, 2]], offset=1)
        return view.array().copy()

    wanted = random_bytes((4, 6), dtypes.int32)[:, 3:5]
    np.testing.assert_array_equal(on_core(body), wanted)
    words = "partition step is 3", "must be 6"
    strict = Rules(partition_step="error")
    rejected(lambda: filled((4, 6), SBUF)[:, 2:5].ap([[3, 4], [1, 2]]), *words, rules=strict)
    rejected(lambda: filled((4, 6), SBUF)[:, 2:4].ap([[3, 4], [1, 2]]), *words)


@pytest.mark.parametrize("region", [SBUF, PSUM, HBM])
def test_a_pattern_does_not_begin_before_its_tensor(region: MemoryRegion) -> None:
    rejected(lambda: filled((4, 6), region).ap([[6, 1], [1, 1]], offset=-1), "ap:", "-1")


@pytest.mark.parametrize("region", [SBUF, HBM])
def test_a_pattern_that_leaves_the_tensor_may_be_made(region: MemoryRegion) -> None:
    """Kernels make views of tiles beyond the last one, and then leave those out."""

    def body() -> Any:
        tensor = filled((4, 6), region)
        beyond = tensor.ap([[6, 4], [1, 6]], offset=6)
        return beyond.shape, tensor[0:4].array().copy()

    shape, values = on_core(body)
    assert shape == (4, 6)
    np.testing.assert_array_equal(values, random_bytes((4, 6), dtypes.int32))


@pytest.mark.parametrize(
    "pattern",
    [[], [[1, 2, 3]], [1, 2], [[1.0, 2]], [["1", 2]], [[1, 0]], [[-1, 2]], [[1, 1]] * 6, None],
)
def test_what_is_no_pattern(pattern: Any) -> None:
    rejected(lambda: filled((4, 6), HBM).ap(pattern), "ap:")


def test_bytes_that_do_not_divide() -> None:
    rejected(lambda: filled((4, 6), SBUF, dtypes.uint8).ap([[1, 4], [1, 1]], dtype=dtypes.int32))
    rejected(
        lambda: filled((4, 6), HBM, dtypes.uint8)[1:].ap([[1, 1]], dtype=dtypes.int32), "offset"
    )


# Dynamic offsets


@pytest.mark.parametrize("value", [0, 2])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_scalar_offset_counts_steps_of_its_dimension(value: int, dim: int) -> None:
    shape = (3, 4, 5)

    def body() -> Any:
        chosen = tile([[value]], dtypes.int32)
        view = filled(shape, HBM).ap([[1, 3]], offset=2, scalar_offset=chosen, indirect_dim=dim)
        return view.values().copy()

    flat = random_bytes(shape, dtypes.int32).reshape(-1)
    start = 2 + value * (20, 5, 1)[dim]
    np.testing.assert_array_equal(on_core(body), flat[start : start + 3])


def test_a_scalar_offset_of_a_view_counts_steps_of_the_view() -> None:
    def body() -> Any:
        table = filled((4, 6), HBM)[:, ::2].permute((1, 0))
        register = nisa.register_alloc(2)
        return table.ap([[1, 1]], scalar_offset=register, indirect_dim=0).values().copy()

    np.testing.assert_array_equal(on_core(body), [random_bytes((4, 6), dtypes.int32)[0, 4]])


def test_a_scalar_offset_scales_with_the_type() -> None:
    def body() -> Any:
        register = nisa.register_alloc(3)
        view = filled((4, 8), HBM, dtypes.uint8).ap(
            [[1, 2]], scalar_offset=register, dtype=dtypes.int32
        )
        return view.values().copy()

    np.testing.assert_array_equal(bits(on_core(body)), random_bytes((4, 8), dtypes.uint8)[3])


@pytest.mark.parametrize(
    "shape", [(2, 2, 3, 4, 5), (4, 6)], ids=["of five dimensions", "of two dimensions"]
)
def test_a_rank_chooses_its_part_of_a_shared_tensor(shape: tuple[int, ...]) -> None:
    row = math.prod(shape[1:])

    def body() -> Any:
        target = filled(shape, MemoryRegion.shared_hbm)
        source = filled((1, row), SBUF, seed=1)
        rank = nisa.register_alloc(1)
        nisa.dma_copy(target.ap([[row, 1], [1, row]], scalar_offset=rank), source)
        return target.array().copy()

    wanted = random_bytes(shape, dtypes.int32).reshape(shape[0], row).copy()
    wanted[1] = random_bytes((1, row), dtypes.int32, 1)
    np.testing.assert_array_equal(on_core(body), wanted.reshape(shape))


def test_on_chip_a_scalar_offset_moves_along_the_free_dimensions() -> None:
    def body() -> list[Any]:
        table, register = filled((4, 3, 5), SBUF), nisa.register_alloc(2)
        pattern = [[15, 4], [1, 2]]
        views = [table.ap(pattern, offset=1, scalar_offset=register, indirect_dim=dim)
                 for dim in (1, 2)]  # fmt: skip
        return [view.values().copy() for view in views]

    array = random_bytes((4, 15), dtypes.int32)
    found = on_core(body)
    np.testing.assert_array_equal(found[0], array[:, 11:13])
    np.testing.assert_array_equal(found[1], array[:, 3:5])


@pytest.mark.parametrize("region", [SBUF, HBM])
def test_a_scalar_offset_may_not_lead_out_of_the_tensor(region: MemoryRegion) -> None:
    def body(value: int) -> Any:
        register = nisa.register_alloc(value)
        pattern = [[8, 4], [1, 4]] if region is SBUF else [[1, 28]]
        table = filled((4, 8), region)
        return table.ap(pattern, scalar_offset=register, indirect_dim=1).values().copy()

    on_core(lambda: body(4))
    rejected(lambda: body(5), "is 5", "reaches element")
    rejected(lambda: body(8), "is 8", "0..7")


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_vector_offset_chooses_rows(data: st.DataObject) -> None:
    rows, width = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 8))
    count = data.draw(st.integers(1, 5))
    chosen = data.draw(st.lists(st.integers(0, rows - 1), min_size=count, max_size=count))
    free = data.draw(st.integers(0, width - 1))
    pattern = data.draw(_patterns([(data.draw(st.integers(0, 99)), count)], width - free))

    def body() -> Any:
        index = tile(np.array(chosen).reshape(count, 1), dtypes.uint32)
        table = filled((rows, width), HBM)
        return table.ap(pattern, offset=free, vector_offset=index).values().copy()

    array = random_bytes((rows, width), dtypes.int32)
    wanted = [looked_up(array, dtypes.int32, pattern[1:], row * width + free) for row in chosen]
    np.testing.assert_array_equal(on_core(body), wanted)


def test_the_index_of_rows_may_be_a_column_of_a_table() -> None:
    chosen = np.arange(24).reshape(3, 8) % 5

    def body() -> Any:
        table = filled((5, 7), HBM)
        index = tile(chosen, dtypes.uint32).ap([[8, 3], [1, 1]], offset=4)
        # the first step says nothing, the rows are those of the table
        return table.ap([[6, 3], [1, 6]], vector_offset=index).values().copy()

    wanted = random_bytes((5, 7), dtypes.int32)[chosen[:, 4], :6]
    np.testing.assert_array_equal(on_core(body), wanted)


def test_rows_of_a_three_dimensional_tensor() -> None:
    chosen = np.array([[2], [0]])

    def body() -> list[Any]:
        table, index = filled((3, 4, 5), HBM), tile(chosen, dtypes.int32)
        selected = table.vector_select(0, index)
        assert selected.is_indirect() and not table.is_indirect()
        views = [selected, selected[:, 1:3, ::2], selected.permute((0, 2, 1)),
                 selected.reshape((2, 20)), selected.flatten_dims(1, 2), selected.select(1, 3),
                 selected.expand_dim(1), selected.reshape_dim(2, (5, 1))]  # fmt: skip
        return [view.values().copy() for view in views]

    rows = random_bytes((3, 4, 5), dtypes.int32)[[2, 0]]
    wanted = [rows, rows[:, 1:3, ::2], rows.transpose(0, 2, 1), rows.reshape(2, 20),
              rows.reshape(2, 20), rows[:, 3], rows[:, None], rows[..., None]]  # fmt: skip
    for found, expected in zip(on_core(body), wanted, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t[0:1],
        lambda t: t[0],
        lambda t: t.slice(0, 0, 1),
        lambda t: t.select(0, 0),
        lambda t: t.permute((1, 0)),
        lambda t: t.expand_dim(0),
        lambda t: t.reshape_dim(0, (2, 1)),
        lambda t: t.flatten_dims(0, 1),
        lambda t: t.reshape((12,)),
        lambda t: t.rearrange(("a", "b"), ("b", "a")),
        lambda t: t.view(dtypes.int16),
        lambda t: t.ap([[1, 1]]),
        lambda t: t.vector_select(0, tile([[0]], dtypes.int32)),
        lambda t: t[:, nisa.register_alloc(0)],
    ],
)
def test_rows_that_an_index_chooses_stay_as_they_are(view: Callable[[NkiTensor], Any]) -> None:
    def body() -> Any:
        return view(filled((3, 6), HBM).vector_select(0, tile([[2], [0]], dtypes.int32)))

    rejected(body)


@pytest.mark.parametrize("value", [-1, 3])
def test_a_row_out_of_range_is_named(value: int) -> None:
    def body() -> Any:
        index = tile([[0], [value]], dtypes.int32)
        return filled((3, 6), HBM).vector_select(0, index).values()

    rejected(body, "row 1", f"is {value}", "0..2")


def test_a_row_that_leaves_the_tensor() -> None:
    def body(row: int, count: int) -> Any:
        index = tile([[row]], dtypes.int32)
        return filled((3, 6), HBM).ap([[6, 1], [1, count]], vector_offset=index).values()

    on_core(lambda: body(1, 12))
    rejected(lambda: body(1, 13), "reaches element 18 of 18")
    rejected(lambda: body(2, 12), "reaches element 23 of 18")


@pytest.mark.parametrize(
    "ap",
    [
        lambda t, i: t.ap([[6, 3], [1, 6]], vector_offset=i),  # three rows, two indices
        lambda t, i: t.ap([[6, 2], [1, 6]], vector_offset=i, indirect_dim=1),
        lambda t, i: t.ap([[6, 2], [1, 6]], vector_offset=i, scalar_offset=nisa.register_alloc(0)),
        lambda t, i: t.ap([[1, 1]], scalar_offset=i),
        lambda t, i: t.ap([[1, 1]], scalar_offset=3),
        lambda t, i: t.ap([[1, 1]], scalar_offset=i[0:1], indirect_dim=2),
        lambda t, i: t.ap([[1, 1]], scalar_offset=i[0:1], indirect_dim=-1),
        lambda t, i: t.ap([[6, 2], [1, 6]], vector_offset=t),
        lambda t, i: t.ap([[6, 2], [1, 6]], vector_offset=i.view(dtypes.float32)),
        lambda t, i: t.ap([[6, 2], [1, 6]], vector_offset=3),
        lambda t, i: t.vector_select(1, i),
        lambda t, i: t.vector_select(0, i.reshape((2, 1))[0:1].broadcast(1, 2)),
        lambda t, i: filled((4, 6), SBUF).ap([[6, 2], [1, 6]], vector_offset=i),
        lambda t, i: filled((4, 6), SBUF).ap([[6, 4], [1, 1]], scalar_offset=i[0:1]),
        lambda t, i: filled((4, 6), PSUM).vector_select(0, i),
    ],
)
def test_dynamic_offsets_that_do_not_exist(ap: Callable[[NkiTensor, NkiTensor], Any]) -> None:
    rejected(lambda: ap(filled((4, 6), HBM), tile([[1], [0]], dtypes.int32)))


# Tensor indirection


@pytest.mark.parametrize("group", [16, 32])
@pytest.mark.parametrize("partitions", [32, 128])
def test_indirect_shares_indices_within_a_group(group: int, partitions: int) -> None:
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 9, (partitions, 2))
    array = random_bytes((partitions, 9), dtypes.int32)
    count = 2 * group - 3

    def body() -> list[Any]:
        data = filled((partitions, 9), SBUF)
        view = data.indirect(tile(numbers, dtypes.uint16), count)
        assert view.shape == (partitions, count) and view.is_indirect()
        read = view.values(group).copy()
        target = tile(np.zeros((partitions, 9)), dtypes.int32)
        target.indirect(tile(numbers, dtypes.uint16), count).assign(read, group)
        return [read, target.array().copy()]

    wanted = np.empty((partitions, count), np.int32)
    scattered = np.zeros((partitions, 9), np.int32)
    for p, i in itertools.product(range(partitions), range(count)):
        first = p // group * group
        column = numbers[first + i % group, i // group]
        wanted[p, i] = array[p, column]
        scattered[p, column] = array[p, column]
    read, target = on_core(body)
    np.testing.assert_array_equal(read, wanted)
    np.testing.assert_array_equal(target, scattered)


def test_indirect_gives_sixteen_elements_for_each_column_of_indices() -> None:
    def body() -> tuple[int, ...]:
        return filled((32, 9), SBUF).indirect(tile(np.zeros((32, 3)), dtypes.int16)).shape

    assert on_core(body) == (32, 48)


def test_an_instruction_reads_an_indirect_view() -> None:
    numbers = np.random.default_rng(1).integers(0, 9, (16, 1))

    def body() -> Any:
        target = empty((16, 16), dtypes.int32)
        nisa.tensor_copy(target, filled((16, 9), SBUF).indirect(tile(numbers, dtypes.uint32)))
        return target.array().copy()

    array = random_bytes((16, 9), dtypes.int32)
    np.testing.assert_array_equal(on_core(body), array[:, numbers[:, 0]])


@pytest.mark.parametrize(
    ("view", "words"),
    [
        (lambda d, i: d.indirect(i[0:16]), "partitions"),
        (lambda d, i: d[0:8].indirect(i[0:8]), "multiple of 16"),
        (lambda d, i: d.indirect(i, 65), "num_elem is 65"),
        (lambda d, i: d.indirect(i, 0), "num_elem is 0"),
        (lambda d, i: d.indirect(i.view(dtypes.bfloat16)), "integers"),
        (lambda d, i: d.indirect(3), "index is 3"),
        (lambda d, i: d[:, ::2].indirect(i), "contiguous"),
        (lambda d, i: filled((32, 4), HBM).indirect(i), "on chip"),
        (lambda d, i: d.indirect(i).values(32), "32 partitions"),
        (lambda d, i: d.indirect(i, 33).values(16), "at most 32 elements"),
        (lambda d, i: d.indirect(i).reshape((32, 4, 8)), "indirect"),
        (lambda d, i: d.indirect(i)[:, 0:4], "indirect"),
        (lambda d, i: d.indirect(i).ap([[9, 32], [1, 1]]), "indirect"),
        (lambda d, i: d.indirect(i.ap([[2, 32], [1, 2]], scalar_offset=nisa.register_alloc(0),
                                      indirect_dim=1)), "static"),
    ],
)  # fmt: skip
def test_indirect_views_that_do_not_exist(view: Callable[..., Any], words: str) -> None:
    def body() -> Any:
        partitions = 48 if words.startswith("32") else 32
        data = filled((partitions, 9), SBUF)
        return view(data, tile(np.zeros((partitions, 2)), dtypes.int16))

    rejected(body, words)


def test_an_indirect_index_out_of_range() -> None:
    index = np.zeros((16, 1))
    index[5] = 9
    rejected(lambda: filled((16, 9), SBUF).indirect(tile(index, dtypes.int16)).values(), "0..8")


def test_indirect_needs_gen4() -> None:
    rejected(
        lambda: filled((16, 9), SBUF).indirect(tile(np.zeros((16, 1)), dtypes.int16)),
        "gen4",
        target="gen3",
    )
