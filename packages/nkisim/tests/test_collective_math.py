"""Collectives against dense statements over all ranks."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nkisim import collective_math as cm
from nkisim import dtypes
from nkisim.dtypes import DType
from nkisim.errors import NkiValidationError

RANKS = [1, 2, 4, 8]
FLOATS = [dtypes.float32, dtypes.bfloat16, dtypes.float16, dtypes.float8_e4m3, dtypes.float8_e5m2]
INTEGERS = [dtypes.int8, dtypes.uint8, dtypes.int16, dtypes.uint32, dtypes.int32]


def sources(ranks: int, dtype: DType, shape: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    if dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        values = rng.integers(limits.min // 16, limits.max // 16 + 1, (ranks, *shape))
    else:
        values = rng.standard_normal((ranks, *shape))
    return list(values.astype(np.float32 if dtype.is_float else dtype.numpy).astype(dtype.numpy))


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_sums_of_floats_are_rounded_once(ranks: int, dtype: DType) -> None:
    srcs = sources(ranks, dtype, (4, 33))
    exact = np.sum([src.astype(np.float64) for src in srcs], axis=0)
    scale = np.sum([np.abs(src.astype(np.float64)) for src in srcs], axis=0)
    for result in cm.all_reduce(srcs, "add", dtype):
        assert result.dtype == dtype.numpy
        single = np.abs(exact - result.astype(np.float64))
        half_ulp = np.abs(result.astype(np.float64)) * ml_dtypes.finfo(dtype.numpy).eps
        tiny = float(ml_dtypes.finfo(dtype.numpy).smallest_subnormal)
        assert np.all(single <= half_ulp / 2 + tiny + ranks * 2.0**-24 * scale)


def test_narrow_sums_do_not_lose_small_terms() -> None:
    # in bfloat16 256 + 1 is 256, eight times over
    srcs = [np.full(3, value, ml_dtypes.bfloat16) for value in (256, 1, 1, 1, 1, 1, 1, 1, 1)]
    assert cm.all_reduce(srcs, "add", dtypes.bfloat16)[0].astype(float).tolist() == [264.0] * 3


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_sums_of_integers_are_exact(ranks: int, dtype: DType) -> None:
    srcs = sources(ranks, dtype, (5, 7))
    expected = sum(src.astype(object) for src in srcs)
    for result in cm.all_reduce(srcs, "add", dtype):
        assert result.dtype == dtype.numpy
        assert np.array_equal(result.astype(object), expected)


def test_sums_of_integers_saturate() -> None:
    srcs = [np.array([100, -100], np.int8)] * 2
    assert cm.all_reduce(srcs, "add", dtypes.int8)[0].tolist() == [127, -128]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("op", ["minimum", "maximum"])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS], ids=str)
def test_extremes(ranks: int, op: str, dtype: DType) -> None:
    srcs = sources(ranks, dtype, (3, 8))
    pick = np.min if op == "minimum" else np.max
    expected = pick(np.stack([src.astype(np.float64) for src in srcs]), axis=0)
    for result in cm.all_reduce(srcs, op, dtype):
        assert np.array_equal(result.astype(np.float64), expected)


def test_extremes_of_large_integers_nan_and_booleans() -> None:
    large = [np.array([2**31 - 1], np.int32), np.array([2**31 - 2], np.int32)]
    assert cm.all_reduce(large, "minimum", dtypes.int32)[0][0] == 2**31 - 2
    nan = [np.array([1, math.nan], np.float32), np.array([2, 0], np.float32)]
    assert np.isnan(cm.all_reduce(nan, "maximum", dtypes.float32)[0]).tolist() == [False, True]
    flags = [np.array([True, False]), np.array([False, False])]
    assert cm.all_reduce(flags, "maximum", dtypes.bool_)[0].tolist() == [True, False]


def test_sums_of_tfloat32_are_rounded_to_its_mantissa() -> None:
    srcs = [np.array([1.0], np.float32), np.array([2.0**-11 + 2.0**-20], np.float32)]
    assert cm.all_reduce(srcs, "add", dtypes.tfloat32)[0][0] == 1 + 2.0**-10


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_all_gather(ranks: int, dim: int) -> None:
    srcs = sources(ranks, dtypes.bfloat16, (2, 3, 4))
    results = cm.all_gather(srcs, dim)
    assert len(results) == ranks
    for result in results:
        assert result.shape == cm.gathered_shape((2, 3, 4), ranks, dim)
        for rank, src in enumerate(srcs):
            width = src.shape[dim]
            part = np.take(result, range(rank * width, (rank + 1) * width), axis=dim)
            assert np.array_equal(part, src)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dim", [0, 1])
def test_reduce_scatter_is_a_part_of_all_reduce(ranks: int, dim: int) -> None:
    srcs = sources(ranks, dtypes.float16, (8, 16))
    whole = cm.all_reduce(srcs, "add", dtypes.float16)[0]
    results = cm.reduce_scatter(srcs, "add", dtypes.float16, dim)
    assert {result.shape for result in results} == {cm.scattered_shape((8, 16), ranks, dim)}
    assert np.array_equal(np.concatenate(results, axis=dim), whole)


@pytest.mark.parametrize("ranks", RANKS)
def test_all_to_all_is_a_transpose_of_chunks(ranks: int) -> None:
    srcs = sources(ranks, dtypes.float32, (ranks * 3, 5))
    sent = np.stack(srcs).reshape(ranks, ranks, 3, 5)
    received = np.stack(cm.all_to_all(srcs)).reshape(ranks, ranks, 3, 5)
    assert np.array_equal(received, sent.swapaxes(0, 1))
    twice = cm.all_to_all(cm.all_to_all(srcs))
    assert np.array_equal(np.stack(twice), np.stack(srcs))


@pytest.mark.parametrize("ranks", RANKS)
def test_implicit_permutes_go_round_the_ring(ranks: int) -> None:
    srcs = sources(ranks, dtypes.bfloat16, (2, 4))
    group = [10 + 3 * rank for rank in range(ranks)]
    held = srcs
    for iteration in range(ranks + 1):
        for position, rank in enumerate(group):
            owner = cm.current_processing_rank(group, rank, iteration)
            assert np.array_equal(held[position], srcs[group.index(owner)])
        held = cm.permute_implicit(held)
    assert cm.current_processing_rank(group, group[0], 1) == group[-1]


@pytest.mark.parametrize("ranks", RANKS)
def test_implicit_permute_with_a_reduction(ranks: int) -> None:
    srcs0 = sources(ranks, dtypes.float32, (2, 4), seed=1)
    srcs1 = sources(ranks, dtypes.float32, (2, 4), seed=2)
    results = cm.permute_implicit_reduce(srcs0, srcs1, "add", dtypes.float32)
    for rank in range(ranks):
        before = (rank - 1) % ranks
        assert np.array_equal(results[rank], srcs0[before] + srcs1[before])


@settings(deadline=None)
@given(st.integers(1, 8), st.data())
def test_explicit_permute(ranks: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, ranks))
    senders = data.draw(st.permutations(range(ranks)))[:count]
    targets = data.draw(st.permutations(range(ranks)))[:count]
    pairs = list(zip(senders, targets, strict=True))
    srcs = sources(ranks, dtypes.int32, (3,))
    results = cm.permute(srcs, pairs)
    for rank, result in enumerate(results):
        if rank in targets:
            assert result is not None
            assert np.array_equal(result, srcs[senders[targets.index(rank)]])
        else:
            assert result is None


def test_results_share_no_memory_with_operands() -> None:
    srcs = sources(2, dtypes.float32, (4, 2))
    copies = [src.copy() for src in srcs]
    results: list[Any] = [
        *cm.all_reduce(srcs[:1], "add", dtypes.float32),
        *cm.all_gather(srcs[:1], 0),
        *cm.reduce_scatter(srcs[:1], "add", dtypes.float32),
        *cm.all_to_all(srcs[:1]),
        *cm.permute(srcs, [(0, 1), (1, 0)]),
        *cm.permute_implicit(srcs),
    ]
    for src in srcs:
        src[:] = -1
    assert not any(np.any(result == -1) for result in results)
    assert all(np.any(result != 0) for result in results)
    assert not np.array_equal(copies[0], srcs[0])


@st.composite
def ragged(draw: st.DrawFn) -> tuple[int, np.ndarray, bool, bool, bool]:
    ranks = draw(st.sampled_from(RANKS))
    counts = draw(
        st.lists(st.integers(0, 5), min_size=ranks * ranks, max_size=ranks * ranks).map(
            lambda values: np.array(values).reshape(ranks, ranks)
        )
    )
    return ranks, counts, draw(st.booleans()), draw(st.booleans()), draw(st.booleans())


@settings(deadline=None)
@given(ragged(), st.randoms(use_true_random=False))
def test_ragged_collectives(case: tuple[int, np.ndarray, bool, bool, bool], random: Any) -> None:
    """Both against a loop over elements; blocks are packed backwards where displacements say so."""
    ranks, counts, gather, known, has_rdispls = case
    if gather:
        counts = np.repeat(counts[:, :1], ranks, axis=1)
    srcs = [np.arange(64, dtype=np.float32) + 100 * rank for rank in range(ranks)]
    dsts = [np.full((ranks, 5), -1 - rank, np.float32) for rank in range(ranks)]
    sends = np.array([[random.randrange(0, 60) for _ in range(ranks)] for _ in range(ranks)])
    if gather:
        sends = np.repeat(sends[:, :1], ranks, axis=1)
    metadata, expected = [], []
    for rank in range(ranks):
        received = counts[:, rank]
        # the last rank's block first, without gaps
        starts = np.array([received[sender + 1 :].sum() for sender in range(ranks)])
        if not has_rdispls:
            starts = np.arange(ranks) * 5
        rows = [counts[rank].copy(), sends[rank].copy()]
        if gather:
            # nothing but column 0 counts
            rows[0][1:], rows[1][1:] = 10**6, 10**6
        rows.append(received if known else np.full(ranks, 777))
        if has_rdispls:
            rows.append(starts)
        metadata.append(np.array(rows, np.uint32)[None if rank % 2 else ...])
        flat = dsts[rank].reshape(-1).copy()
        for sender in range(ranks):
            for element in range(received[sender]):
                flat[starts[sender] + element] = srcs[sender][sends[sender, rank] + element]
        expected.append(flat.reshape(ranks, 5))
    function = cm.all_gather_v if gather else cm.all_to_all_v
    results = function(srcs, dsts, metadata, cm.Ragged(known, has_rdispls))
    for rank, (dst, after) in enumerate(results):
        assert np.array_equal(dst, expected[rank])
        assert after.shape == metadata[rank].shape and after.dtype == np.uint32
        table, before = after.reshape(-1, ranks), metadata[rank].reshape(-1, ranks)
        assert table[2].tolist() == counts[:, rank].tolist()
        assert np.array_equal(np.delete(table, 2, axis=0), np.delete(before, 2, axis=0))
        assert dsts[rank].min() == dsts[rank].max() == -1 - rank


def _v(change: Any, ragged: cm.Ragged = cm.Ragged()) -> None:  # noqa: B008 - frozen
    srcs = [np.arange(8, dtype=np.float32)] * 2
    dsts = [np.zeros(8, np.float32)] * 2
    rows = [[2, 2], [0, 4], [2, 2], [0, 2]][: ragged.rows]
    metadata = [np.array(rows, np.uint32) for _ in range(2)]
    change(srcs, dsts, metadata)
    cm.all_to_all_v(srcs, dsts, metadata, ragged)


def _set(list_index: int, rank: int, value: Any) -> Any:
    def change(*operands: list[Any]) -> None:
        operands[list_index][rank] = value

    return change


def _cell(rank: int, row: int, column: int, value: int) -> Any:
    def change(srcs: Any, dsts: Any, metadata: list[np.ndarray]) -> None:
        metadata[rank][row, column] = value

    return change


DISPLACED = cm.Ragged(has_rdispls=True)
KNOWN = cm.Ragged(recv_counts_known=True)


@pytest.mark.parametrize(
    ("change", "ragged", "text"),
    [
        (_cell(1, 0, 1, 5), cm.Ragged(), "rank 1, column 1: 5 elements from 4 on; srcs have 8"),
        (_cell(0, 0, 0, 5), cm.Ragged(), "dsts of rank 0: 5 elements from rank 0 at 0"),
        (_cell(1, 3, 1, 7), DISPLACED, "dsts of rank 1: 2 elements from rank 1 at 7"),
        (_cell(1, 3, 1, 1), DISPLACED, "dsts of rank 1: 2 elements from rank 1 at 1"),
        (_cell(0, 2, 1, 3), KNOWN, "rank 0 expects 3 elements from rank 1, which sends 2"),
        (_set(2, 1, np.zeros((4, 2), np.uint32)), cm.Ragged(), r"is \[4, 2\]; it must be \[3, 2\]"),
        (_set(2, 1, np.zeros((3, 2), np.int32)), cm.Ragged(), "is int32, not uint32"),
        (_set(0, 1, np.zeros(9, np.float32)), cm.Ragged(), r"srcs of rank 1 is \[9\]"),
        (_set(1, 1, np.zeros(8, np.float16)), cm.Ragged(), "dsts of rank 1 is float16"),
        (lambda s, d, m: m.pop(), cm.Ragged(), "2 srcs, 2 dsts and 1 metadata"),
    ],
)
def test_ragged_errors(change: Any, ragged: cm.Ragged, text: str) -> None:
    _v(lambda *operands: None, ragged)
    with pytest.raises(NkiValidationError, match=text):
        _v(change, ragged)


X, Y = np.zeros((4, 2), np.float32), np.zeros((4, 3), np.float32)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: cm.all_reduce([X, X], "multiply", dtypes.float32), "op is 'multiply'; .* add"),
        (lambda: cm.all_reduce([X, Y], "add", dtypes.float32), r"rank 1 is \[4, 3\], of rank 0"),
        (lambda: cm.all_reduce([X, X], "add", dtypes.float16), "is float32; it must be float16"),
        (lambda: cm.all_reduce([], "add", dtypes.float16), "srcs is empty"),
        (lambda: cm.all_reduce([X > 0], "add", dtypes.bool_), "srcs are bool_"),
        (lambda: cm.check_reduction("maximum", dtypes.float8_e4m3fn_x4), "float8_e4m3fn_x4"),
        (lambda: cm.all_gather([X, X], 2), "collective_dim is 2; .* 0 to 1"),
        (lambda: cm.all_gather([X, X], -1), "collective_dim is -1"),
        (lambda: cm.reduce_scatter([X] * 3, "add", dtypes.float32), "is 4; .* multiple of the 3"),
        (lambda: cm.all_to_all([X] * 3), "is 4; .* multiple of the 3"),
        (lambda: cm.all_to_all([X, X.astype(np.int32)]), "rank 1 is int32; it must be float32"),
        (lambda: cm.permute([X, X], [(0, 2)]), r"\(0, 2\); ranks are 0 to 1"),
        (lambda: cm.permute([X, X], [(0, 1), (0, 0)]), "rank 0 as a source twice"),
        (lambda: cm.permute([X, X], [(0, 1), (1, 1)]), "rank 1 as a target twice"),
        (lambda: cm.permute([X, X], [(0, 1, 1)]), r"must hold \(source, target\) pairs"),
        (
            lambda: cm.permute_implicit_reduce([X], [X, X], "add", dtypes.float32),
            "srcs0 has 1 ranks and srcs1 2",
        ),
        (lambda: cm.current_processing_rank((0, 1), 2, 0), "rank 2 is not in"),
        (lambda: cm.current_processing_rank((0, 1), 1, -1), "iteration_id is -1"),
    ],
)
def test_errors_name_operand_and_value(call: Any, text: str) -> None:
    with pytest.raises(NkiValidationError, match=text):
        call()
