from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_tiles import (
    DTYPES,
    INTEGERS,
    LAYOUTS,
    Array,
    assert_same,
    contents,
    empty,
    laid,
    on_core,
    refused,
    rejected,
    sample,
    stored,
    tile,
)

from nkisim import dtypes
from nkisim.enums import Engine, MemoryRegion
from nkisim.isa.random_numbers import (
    dropout,
    rand2,
    rand_get_state,
    rand_set_state,
    rng,
    set_rng_seed,
)
from nkisim.random_streams import RandomStreams, philox
from nkisim.simulation import World

PSUM = MemoryRegion.psum
WIDTHS = {Engine.gpsimd: 6, Engine.vector: 24}


def drawn(engine: Engine = Engine.vector, shape: tuple[int, int] = (4, 16)) -> Array:
    dst = empty(shape, dtypes.uint32)
    rng(dst, engine)
    return contents(dst)


def state_of(engine: Engine, partitions: int = 128) -> Array:
    dst = empty((partitions, WIDTHS[engine]), dtypes.uint32)
    rand_get_state(dst, engine)
    return contents(dst)


# ---- the generator ----


@pytest.mark.parametrize(
    ("counter", "key", "wanted"),
    [
        # known answers that the authors of Philox publish with Random123
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox(counter: list[int], key: list[int], wanted: list[int]) -> None:
    found = philox(np.array(counter, np.uint64), np.array(key, np.uint64))
    assert found.dtype == np.uint32
    assert found.tolist() == wanted


def test_the_counter_carries_over() -> None:
    streams = RandomStreams(np.random.default_rng(0))
    for words in ([0xFFFFFFFF, 5, 0, 0, 1, 2], [0xFFFFFFFF] * 4 + [1, 2]):
        state = np.array([words], np.uint32)
        streams.set_state(Engine.gpsimd, 3, state)
        streams.words(Engine.gpsimd, 3, 1, 8)
        number = sum(int(word) << (32 * i) for i, word in enumerate(words[:4])) + 2
        after = [(number >> (32 * i)) & 0xFFFFFFFF for i in range(4)]
        assert streams.state(Engine.gpsimd, 3, 1).tolist() == [[*after, 1, 2]]


# ---- rng ----


@pytest.mark.parametrize("engine", WIDTHS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_bits_are_fair(engine: Engine, dtype: Any) -> None:
    def body() -> Array:
        dst = empty((128, 256), dtype)
        instruction = rng(dst, engine)
        assert instruction.engine is engine
        return contents(dst)

    found = on_core(body)
    assert found.dtype == dtype.numpy
    unsigned = found.view(f"u{dtype.itemsize}").astype(np.uint64)
    n = unsigned.size
    for bit in range(8 * dtype.itemsize):
        ones = int(((unsigned >> np.uint64(bit)) & np.uint64(1)).sum())
        # six standard deviations of a fair coin
        assert abs(ones - n / 2) < 6 * math.sqrt(n) / 2
    # partitions and neighbours are independent of each other
    centred = unsigned.astype(np.float64) / 2.0 ** (8 * dtype.itemsize) - 0.5
    for other in (np.roll(centred, 1, 0), np.roll(centred, 1, 1)):
        assert abs((centred * other).mean() * 12) < 6 / math.sqrt(n)


@pytest.mark.parametrize(
    ("engine", "layout"),
    # GpSimd does not reach PSUM
    [pair for pair in product(WIDTHS, LAYOUTS) if pair != (Engine.gpsimd, "psum")],
)
def test_a_narrow_type_gets_the_low_bits(engine: Engine, layout: str) -> None:
    def body() -> tuple[Array, Array]:
        first = 32 if layout == "addressed" else 0
        state = tile(np.full((16, WIDTHS[engine]), 99), dtypes.uint32, partition=first)
        rand_set_state(state, engine)
        narrow, wide = laid(np.zeros((16, 24)), dtypes.int8, layout), None
        rng(narrow, engine)
        rand_set_state(state, engine)
        wide = laid(np.zeros((16, 24)), dtypes.uint32, "addressed" if first else "plain")
        rng(wide, engine)
        return contents(narrow), contents(wide)

    narrow, wide = on_core(body)
    assert_same(narrow, (wide & 0xFF).astype(np.uint8).view(np.int8))


def test_the_same_numbers_in_every_run_with_one_seed() -> None:
    def body() -> list[list[int]]:
        return [drawn(engine).tolist() for engine in WIDTHS for _ in range(2)]

    first, again, other = on_core(body), on_core(body), on_core(body, seed=1)
    assert first == again
    drafts = [*first, *other]
    assert all(a != b for i, a in enumerate(drafts) for b in drafts[:i])


def test_cores_and_ranks_get_numbers_of_their_own() -> None:
    results = World(ranks=3).run(lambda: drawn().tolist(), [(), (), ()])
    assert results[0] != results[1] != results[2] != results[0]


def test_engines_do_not_disturb_each_other() -> None:
    def body(between: bool) -> Array:
        drawn(Engine.vector)
        if between:
            drawn(Engine.gpsimd)
        return drawn(Engine.vector)

    assert_same(on_core(lambda: body(True)), on_core(lambda: body(False)))


def test_partitions_have_streams_of_their_own() -> None:
    def body(start: int) -> Array:
        return drawn(shape=(128, 40))[start : start + 32]

    def part() -> Array:
        dst = empty((128, 40), dtypes.uint32)
        rng(dst[32:64])
        return contents(dst[32:64])

    assert_same(on_core(part), on_core(lambda: body(32)))


def test_what_rng_rejects() -> None:
    rejected(lambda: rng(empty((4, 4))), "rng: dst is float32", "integer")
    rejected(lambda: rng(empty((4, 4), dtypes.bool_)), "rng: dst is bool_", "integer")
    integers = dtypes.int32
    rejected(lambda: rng(empty((4, 4), integers, PSUM), Engine.gpsimd), "rng: dst", "PSUM")
    rejected(lambda: rng(empty((4, 4), integers), Engine.scalar), "rng: engine", "gpsimd, vector")
    rejected(lambda: rng(empty((9, 4), integers)[2:4]), "rng: dst", "partition 2")
    refused(lambda: rng(empty((4, 4), integers), 5), "rng: engine is 5")
    hbm = MemoryRegion.private_hbm
    rejected(lambda: rng(empty((4, 4), integers, hbm)), "rng: dst", "PSUM or SBUF")
    on_core(lambda: rng(empty((4, 4), integers, PSUM)))


# ---- states ----


@pytest.mark.parametrize("engine", WIDTHS)
@pytest.mark.parametrize(("first", "P"), [(0, 128), (32, 17), (96, 1), (64, 64)])
def test_states_come_back(engine: Engine, first: int, P: int) -> None:
    wanted = np.random.default_rng(1).integers(0, 2**32, (P, WIDTHS[engine]), np.uint32)

    def body() -> tuple[Array, Array, Array]:
        before = state_of(engine)
        rand_set_state(tile(wanted, dtypes.uint32, partition=first), engine)
        part = empty((P, WIDTHS[engine]), dtypes.uint32, address=(first, 0))
        instruction = rand_get_state(part, engine)
        assert instruction.engine is engine
        return before, contents(part), state_of(engine)

    before, part, after = on_core(body)
    assert_same(part, wanted)
    before[first : first + P] = wanted
    assert_same(after, before)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(WIDTHS, key=str)),
    st.lists(st.integers(1, 70), max_size=4),
    st.integers(1, 70),
)
def test_equal_states_give_equal_numbers(engine: Engine, draws: list[int], count: int) -> None:
    """Also a state that was read after any number of draws."""

    def body() -> tuple[Array, Array, Array, Array]:
        for n in draws:
            drawn(engine, (8, n))
        state = empty((8, WIDTHS[engine]), dtypes.uint32)
        rand_get_state(state, engine)
        first = drawn(engine, (8, count))
        after = state_of(engine, 8)
        rand_set_state(state, engine)
        return first, drawn(engine, (8, count)), after, state_of(engine, 8)

    first, second, after, again = on_core(body)
    assert_same(first, second)
    assert_same(after, again)


@pytest.mark.parametrize("engine", WIDTHS)
def test_any_word_of_a_state_matters(engine: Engine) -> None:
    words = WIDTHS[engine]

    def body() -> Array:
        state = np.zeros((words + 1, words))
        state[:-1] = np.eye(words)
        rand_set_state(tile(state, dtypes.uint32), engine)
        return drawn(engine, (words + 1, 32))

    rows = {tuple(row) for row in on_core(body).tolist()}
    assert len(rows) == words + 1


def test_numbers_go_on() -> None:
    def body() -> list[list[int]]:
        return [drawn(engine, (1, 8)).tolist() for engine in WIDTHS for _ in range(3)]

    found = [tuple(row[0]) for row in on_core(body)]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("seeds", [(7, 7), (0, 0), (2**31 - 1, 2**31 - 1), (-1, -1)])
def test_equal_seeds_give_equal_numbers(seeds: tuple[int, int]) -> None:
    def body() -> list[Array]:
        found = []
        for seed in seeds:
            instruction = set_rng_seed(tile([[seed]], dtypes.int32))
            assert instruction.engine is Engine.vector
            found.append(drawn(shape=(128, 33)))
        return found

    first, second = on_core(body)
    assert_same(first, second)
    # a seed leaves nothing of what the run began with
    assert_same(on_core(body, seed=9)[0], first)


def test_other_seeds_give_other_numbers_and_gpsimd_goes_on() -> None:
    def body() -> tuple[list[Any], Array]:
        found = []
        for seed in range(4):
            set_rng_seed(tile([[seed]], dtypes.uint32, PSUM))
            found.append(tuple(map(tuple, drawn().tolist())))
        return found, drawn(Engine.gpsimd)

    found, gpsimd = on_core(body)
    assert len(set(found)) == 4
    assert_same(gpsimd, on_core(lambda: drawn(Engine.gpsimd)))


def test_what_the_state_instructions_reject() -> None:
    def state(shape: tuple[int, int], dtype: Any = dtypes.uint32, region: Any = None) -> Any:
        return tile(np.ones(shape), dtype, region or MemoryRegion.sbuf)

    vector, gpsimd = Engine.vector, Engine.gpsimd
    calls: list[tuple[Any, str]] = [
        (rand_set_state, "rand_set_state: src_seeds"),
        (rand_get_state, "rand_get_state: dst"),
    ]
    for call, op in calls:
        name = op.split(":", 1)[0]
        rejected(lambda c=call: c(state((4, 24))), op, "[P, 6]")
        rejected(lambda c=call: c(state((4, 6)), vector), op, "[P, 24]")
        rejected(lambda c=call: c(state((4, 6), dtypes.int32)), op + " is int32", "uint32")
        rejected(lambda c=call: c(state((4, 6), region=PSUM)), op, "SBUF")
        rejected(lambda c=call: c(state((4, 6)), Engine.scalar), name + ": engine", "vector")
        rejected(lambda c=call: c(state((4, 6))), name, "gen3", target="gen2")
        rejected(lambda c=call: c(state((4, 24)), vector), name, "gen4", target="gen3")
        refused(lambda c=call: c(state((4, 6)), 3), name + ": engine is 3")
        for engine in (gpsimd, Engine.unknown):
            assert on_core(lambda c=call, e=engine: c(state((4, 6)), e), "gen3").engine is gpsimd
    rejected(
        lambda: rand_set_state(empty((4, 6), dtypes.uint32)), "src_seeds", "nothing has written"
    )
    rejected(lambda: set_rng_seed(tile([[1, 2]], dtypes.int32)), "src_seeds", "[1, 1]")
    rejected(lambda: set_rng_seed(tile([[1], [2]], dtypes.int32)), "src_seeds", "[1, 1]")
    rejected(lambda: set_rng_seed(tile([[1]], dtypes.float32)), "src_seeds is float32", "integer")
    rejected(lambda: set_rng_seed(empty((1, 1), dtypes.int32)), "src_seeds", "nothing has written")


# ---- rand2 ----


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.5, 12.0), (2, 2), (-1e30, 1e30)])
def test_rand2_is_uniform(low: float, high: float, layout: str) -> None:
    def body() -> Array:
        dst = laid(np.zeros((64, 240)), dtypes.float32, layout)
        instruction = rand2(dst, low, high)
        assert instruction.engine is Engine.vector
        return contents(dst)

    found = on_core(body).astype(np.float64).reshape(-1)
    assert low <= found.min() and found.max() <= high
    if low < high:
        part = np.sort((found - low) / (high - low))
        # Kolmogorov-Smirnov: such a distance has a probability below 1e-9
        steps = np.arange(len(part) + 1) / len(part)
        distance = max((steps[1:] - part).max(), (part - steps[:-1]).max())
        assert distance < 3.3 / math.sqrt(len(part))


def test_rand2_with_bounds_for_each_partition() -> None:
    lows = np.linspace(-5, 5, 32)[:, None]
    highs = lows + np.linspace(0, 3, 32)[:, None]

    def body() -> tuple[Array, Array]:
        dst, narrow = empty((32, 300)), empty((32, 300), dtypes.bfloat16)
        rand2(dst, tile(lows, dtypes.float32), tile(highs, dtypes.float32, PSUM))
        instruction = rand2(narrow, tile(lows, dtypes.float32), 9.0)
        assert len(instruction.reads) == 1
        return contents(dst), contents(narrow)

    dst, narrow = on_core(body)
    low, high = lows.astype(np.float32), highs.astype(np.float32)
    assert ((low <= dst) & (dst <= high)).all()
    spread = (dst.max(1) - dst.min(1))[1:] / (high - low)[1:, 0]
    assert (spread > 0.9).all()
    # rounding keeps the order
    assert (narrow >= lows.astype(narrow.dtype)).all() and (narrow <= 9).all()


def test_rand2_between_the_ends_of_fp32() -> None:
    largest = float(np.finfo(np.float32).max)

    def body() -> Array:
        dst = empty((16, 500))
        rand2(dst, -largest, largest)
        return contents(dst)

    found = on_core(body)
    assert np.isfinite(found).all()
    assert found.min() < -0.9 * largest and found.max() > 0.9 * largest


def test_what_rand2_rejects() -> None:
    rejected(lambda: rand2(empty((4, 4)), 0, 1), "rand2", "gen4", "gen3", target="gen3")
    rejected(lambda: rand2(empty((4, 4)), 1.0, 0.5), "rand2: min is 1.0 and max 0.5")
    rejected(lambda: rand2(empty((4, 4)), math.nan, 0.5), "rand2: min is nan")
    wide = lambda: tile(np.ones((4, 2)), dtypes.float32)  # noqa: E731
    rejected(lambda: rand2(empty((4, 4)), wide(), 1), "rand2: min", "4 partitions")
    rejected(lambda: rand2(empty((4, 4)), 0, wide()), "rand2: max", "4 partitions")
    rejected(lambda: rand2(empty((4, 4), dtypes.float8_e4m3fn_x4), 0, 1), "rand2: dst", "packed")
    refused(lambda: rand2(empty((4, 4)), None, 1), "rand2: min is None")
    refused(lambda: rand2(empty((4, 4)), 0, "1"), "rand2: max is '1'")


# ---- dropout ----


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dropout_keeps_or_drops(dtype: Any, layout: str) -> None:
    values = sample(np.random.default_rng(1), (32, 240), dtype)
    values[values == 0] = 1

    def body() -> tuple[Array, Array]:
        same, single = laid(values, dtype, layout), empty((32, 240))
        dropout(single, same, 0.25)
        instruction = dropout(same, same, 0.25)
        assert instruction.engine is Engine.vector
        return contents(same), contents(single)

    same, single = on_core(body)
    for found, kind in ((same, dtype), (single, dtypes.float32)):
        dropped = found.astype(np.float32) == 0
        assert_same(found, np.where(dropped, 0, stored(values, kind)).astype(kind.numpy))
        n = found.size
        assert abs(int(dropped.sum()) - 0.25 * n) < 6 * math.sqrt(n * 0.25 * 0.75)
    assert (same.astype(np.float32) != single).any()


@pytest.mark.parametrize(("prob", "dropped"), [(0, 0), (0.0, 0), (1, 1), (1.0, 1)])
def test_dropout_at_its_ends(prob: float, dropped: int) -> None:
    def body() -> Array:
        dst = empty((128, 1000))
        dropout(dst, tile(np.ones((128, 1000)), dtypes.float32), prob)
        return contents(dst)

    assert (on_core(body) == 1 - dropped).all()


def test_dropout_with_a_probability_for_each_partition() -> None:
    probabilities = np.linspace(0, 1, 9)[:, None]

    def body() -> Array:
        dst = empty((9, 4000), region=PSUM)
        ones = tile(np.ones((9, 4000)), dtypes.float32)
        dropout(dst, ones, tile(probabilities, dtypes.float32))
        return contents(dst)

    shares = (on_core(body) == 0).mean(axis=1)
    assert np.abs(shares - probabilities[:, 0]).max() < 6 * 0.5 / math.sqrt(4000)
    assert shares[0] == 0 and shares[-1] == 1


def test_dropout_drops_nan_and_keeps_the_bits_of_integers() -> None:
    def body() -> tuple[Array, Array]:
        dst, exact = empty((4, 400)), empty((4, 400), dtypes.int32)
        dropout(dst, tile(np.full((4, 400), math.nan), dtypes.float32), 0.5)
        dropout(exact, tile(np.full((4, 400), 2**24 + 1), dtypes.int32), 0.5)
        return contents(dst), contents(exact)

    dst, exact = on_core(body)
    assert 0 < (dst == 0).sum() < dst.size and np.isnan(dst[dst != 0]).all()
    assert set(exact.reshape(-1).tolist()) == {0, 2**24 + 1}


def test_what_dropout_rejects() -> None:
    def call(dst: Any = None, data: Any = None, prob: Any = 0.5) -> Any:
        return dropout(
            empty((4, 6)) if dst is None else dst,
            tile(np.ones((4, 6)), dtypes.float32) if data is None else data,
            prob,
        )

    rejected(lambda: call(prob=1.5), "dropout: prob is 1.5", "0 to 1")
    rejected(lambda: call(prob=-0.1), "dropout: prob is -0.1", "0 to 1")
    rejected(lambda: call(prob=math.nan), "dropout: prob is nan")
    rejected(lambda: call(empty((4, 7))), "dropout: data", "6 elements", "7")
    rejected(lambda: call(empty((5, 6))), "dropout: data has 4 partitions", "5")
    rejected(lambda: call(empty((4, 6), dtypes.float8_e4m3fn_x4)), "dropout: dst", "packed")
    two = lambda: tile(np.ones((4, 2)), dtypes.float32)  # noqa: E731
    rejected(lambda: call(prob=two()), "dropout: prob", "4 partitions")
    rejected(lambda: call(data=empty((4, 6))), "dropout: data", "nothing has written")
    refused(lambda: call(prob=None), "dropout: prob is None")


def test_a_run_without_numerics_only_records() -> None:
    def body() -> list[str]:
        state = empty((4, 6), dtypes.uint32)
        return [
            rng(empty((4, 4), dtypes.int8)).op,
            rand_get_state(state).op,
            rand_set_state(state).op,
            rand2(empty((4, 4)), 0, 1).op,
            set_rng_seed(tile([[1]], dtypes.int32)).op,
            dropout(empty((4, 4)), tile(np.ones((4, 4)), dtypes.float32), 0.1).op,
        ]

    assert on_core(body, numerics=False) == [
        "rng", "rand_get_state", "rand_set_state", "rand2", "set_rng_seed", "dropout",
    ]  # fmt: skip
