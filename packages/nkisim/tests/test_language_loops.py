"""Loops, the launch grid, ordered blocks and tile sizes of `nki.language`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nkisim
import nkisim.isa as nisa
import nkisim.language as nl

ONE = np.zeros((1, 1), np.float32)
NO_WARNINGS = nkisim.Rules(deprecated="off")


def seen(look, **options):
    """What `look()` returns inside a kernel."""
    found = []

    def kernel(x):
        found.append(look())
        return x

    nkisim.simulate(kernel, **options)(ONE)
    return found[0]


STATIC = (nl.affine_range, nl.sequential_range, nl.static_range, nl.range)


@given(st.integers(-9, 9), st.none() | st.integers(-9, 9), st.integers(-3, 3).filter(bool))
@settings(deadline=None)
def test_static_loops_are_ranges(start, stop, step):
    expected = list(range(start)) if stop is None else list(range(start, stop, step))
    for loop in STATIC:
        assert list(loop(start) if stop is None else loop(start, stop, step)) == expected


def test_static_loops_have_static_bounds():
    register = seen(lambda: nisa.register_alloc(3))
    for loop in STATIC:
        with pytest.raises(TypeError, match="register"):
            loop(register)
        with pytest.raises(TypeError):
            loop(2.5)


@given(st.integers(-5, 9), st.none() | st.integers(-5, 9), st.integers(1, 3), st.booleans())
@settings(deadline=None, max_examples=30)
def test_dynamic_loops_count_in_registers(start, stop, step, in_registers):
    expected = list(range(start)) if stop is None else list(range(start, stop, step))

    def look():
        def bound(value):
            return nisa.register_alloc(value) if in_registers else value

        loop = nl.dynamic_range(
            *[bound(value) for value in (start, stop) if value is not None],
            **({} if stop is None else {"step": step}),
        )
        found = list(loop)
        turns = []
        lower, upper = (0, start) if stop is None else (start, stop)
        nl.fori_loop(bound(lower), bound(upper), turns.append, 1 if stop is None else step)
        assert all(isinstance(r, nl.VirtualRegister) and r.frozen for r in found + turns)
        return [register.value for register in found], [register.value for register in turns]

    assert seen(look, rules=NO_WARNINGS) == (expected, expected)


def test_dynamic_range_is_deprecated():
    with pytest.warns(nkisim.NkiWarning, match="fori_loop"):
        seen(lambda: list(nl.dynamic_range(2)))


def test_the_loop_variable_addresses_tensors_and_cannot_be_written():
    x = np.arange(24, dtype=np.float32).reshape(4, 6)

    def kernel(x):
        out = nl.ndarray((4, 6), nl.float32, nl.shared_hbm)

        def body(i):
            tile = nl.ndarray((1, 6), nl.float32)
            nisa.dma_copy(tile, x[nl.ds(i, 1)])
            nisa.tensor_scalar(tile, tile, nl.add, 100.0)
            nisa.dma_copy(out.select(0, i), tile)

        nl.fori_loop(0, 4, body)
        return out

    np.testing.assert_array_equal(nkisim.simulate(kernel)(x), x + 100)

    def writes(x):
        nl.fori_loop(0, 1, lambda i: nisa.register_move(i, 5))

    with pytest.raises(TypeError, match="variable of a loop"):
        nkisim.simulate(writes)(x)


def test_while_loops_go_on_until_the_register_is_zero():
    """Collatz: the state lives in tensors, the register only says whether to go on."""

    def kernel(x):
        steps = nl.zeros((1, 1), nl.int32)
        state = nl.load(x)
        go_on = nisa.register_alloc(1)

        def body(register):
            odd = nl.bitwise_and(state, 1)
            tripled = nl.add(nl.multiply(state, 3), 1)
            state[...] = nl.where(nl.copy(odd, nl.uint8), tripled, nl.right_shift(state, 1))
            nisa.tensor_scalar(steps, steps, nl.add, 1)
            more = nl.not_equal(state, 1)
            following = nisa.register_alloc()
            nisa.register_load(following, more)
            return following

        nl.while_loop(go_on, body)
        out = nl.ndarray((1, 1), nl.int32, nl.shared_hbm)
        nl.store(out, steps)
        return out

    assert nkisim.simulate(kernel)(np.array([[27]], np.int32)).item() == 111


def test_a_while_loop_that_starts_at_zero_does_nothing():
    def fail(register):
        raise AssertionError

    seen(lambda: nl.while_loop(nisa.register_alloc(0), fail))


def test_a_fraction_is_not_zero():
    turns = []

    def body(register):
        turns.append(register)
        return nisa.register_alloc(0)

    seen(lambda: nl.while_loop(nisa.register_alloc(0.5), body))
    assert len(turns) == 1


@pytest.mark.parametrize(
    "look",
    [
        lambda: nl.while_loop(1, lambda r: r),
        lambda: nl.while_loop(nisa.register_alloc(1), lambda r: None),
        lambda: nl.while_loop(nisa.register_alloc(1), None),
        lambda: nl.fori_loop(0, 2, None),
        lambda: nl.fori_loop(0, 2.5, print),
        lambda: nl.fori_loop(0, "2", print),
        lambda: nl.dynamic_range(nl.zeros((1, 1), nl.int32)),
    ],
)
def test_loops_reject_what_is_no_bound_and_no_body(look):
    with pytest.raises(TypeError, match=r"must be|it must"):
        seen(look, rules=NO_WARNINGS)


def test_bounds_need_values():
    for look in (
        lambda: nl.fori_loop(0, nisa.register_alloc(), print),
        lambda: nl.while_loop(nisa.register_alloc(), lambda r: r),
    ):
        with pytest.raises(nkisim.NkiValidationError, match="no value"):
            seen(look)


@pytest.mark.parametrize(
    "loop",
    [
        lambda: nl.dynamic_range(2),
        lambda: nl.fori_loop(0, 2, lambda i: None),
        lambda: nl.while_loop(nisa.register_alloc(0), lambda r: r),
    ],
)
def test_device_loops_stay_out_of_ordered_blocks(loop):
    def look():
        with nl.no_reorder():
            loop()

    with pytest.raises(nkisim.NkiValidationError, match="no_reorder"):
        seen(look, rules=NO_WARNINGS)


def test_ordered_blocks_mark_their_instructions():
    def helper(tile):
        nisa.memset(tile, 2.0)

    def kernel(x):
        tile = nl.ndarray((1, 1), nl.float32)
        nisa.memset(tile, 1.0)
        with nl.no_reorder():
            helper(tile)
            with nl.no_reorder():
                helper(tile)
            helper(tile)
        nisa.memset(tile, 1.0)
        for _ in nl.affine_range(2):
            with nl.no_reorder():
                helper(tile)

    _, trace = nkisim.World(1).launch(kernel, [(ONE,)])
    scopes = [instruction.reorder_scope for instruction in trace.cores[0]]
    outside, first, inner, after, between, second, third = scopes
    assert outside == between == 0
    assert first == inner == after
    assert len({0, first, second, third}) == 4


def test_an_error_ends_an_ordered_block():
    def kernel(x):
        tile = nl.ndarray((1, 1), nl.float32)
        try:
            with nl.no_reorder():
                raise KeyError
        except KeyError:
            nisa.memset(tile, 1.0)

    _, trace = nkisim.World(1).launch(kernel, [(ONE,)])
    assert [instruction.reorder_scope for instruction in trace.cores[0]] == [0]


@pytest.mark.parametrize(("grid", "ndim", "programs"), [(None, 0, 1), (1, 1, 1), (2, 1, 2)])
def test_the_grid(grid, ndim, programs):
    found = []

    def kernel(x):
        found.append(
            (
                nl.program_id(axis=0),
                nl.program_ndim(),
                nl.num_programs(),
                nl.num_programs(axes=None),
            )
        )
        assert nl.num_programs(axes=[0]) == nl.num_programs(0)

    simulation = nkisim.simulate(kernel)
    (simulation if grid is None else simulation[grid])(ONE)
    assert sorted(found) == [(i, ndim, programs, programs) for i in range(programs)]


@pytest.mark.parametrize("axis", [1, -1, None, "x"])
def test_the_grid_has_one_axis(axis):
    with pytest.raises(nkisim.NkiValidationError, match="axis"):
        seen(lambda: nl.program_id(axis))
    if axis is not None:
        with pytest.raises(nkisim.NkiValidationError, match="axes"):
            seen(lambda: nl.num_programs(axis))


SIZES = {
    "trn1": (180224, 24),
    "trn2": (212984, 28),
    "trn3": (245752, 32),
}


@pytest.mark.parametrize("target", SIZES)
def test_tile_sizes_are_those_of_the_target(target, monkeypatch):
    monkeypatch.delenv("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE", raising=False)
    usable, mebibytes = SIZES[target]
    expected = {
        "pmax": 128,
        "psum_fmax": 512,
        "psum_bank_fmax": 512,
        "psum_bank_fmax_bytes": 2048,
        "psum_num_banks": 8,
        "psum_min_align": 4,
        "gemm_stationary_fmax": 128,
        "gemm_moving_fmax": 512,
        "bn_stats_fmax": 512,
        "sbuf_min_align": 1,
        "sbuf_fmax_bytes": usable,
        "total_available_sbuf_size": usable,
        "sbuf_fmax": usable // 4,
        "sbuf_size_bytes": mebibytes * 1024 * 1024,
    }

    def look():
        return {name: getattr(nl.tile_size, name) for name in expected}

    assert seen(look, target=target, rules=NO_WARNINGS) == expected
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", target)
    assert look() == expected


def test_outside_a_kernel_tile_sizes_are_those_of_trainium3(monkeypatch):
    monkeypatch.delenv("NEURON_PLATFORM_TARGET_OVERRIDE", raising=False)
    assert nl.tile_size.sbuf_fmax_bytes == 245752


@pytest.mark.parametrize(("target", "banks"), [("gen2", 8), ("gen3", 7), ("gen4", 7)])
def test_the_compiler_may_keep_a_bank_for_transposes(target, banks, monkeypatch):
    monkeypatch.setenv("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE", "true")
    assert seen(lambda: nl.tile_size.psum_num_banks, target=target) == banks
    monkeypatch.setenv("NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE", "false")
    assert seen(lambda: nl.tile_size.psum_num_banks, target=target) == 8


@pytest.mark.parametrize("name", ["psum_fmax", "total_available_sbuf_size"])
def test_former_names_are_deprecated(name):
    with pytest.warns(nkisim.NkiWarning, match=name):
        seen(lambda: getattr(nl.tile_size, name))


def test_tile_sizes_cannot_be_changed():
    with pytest.raises(AttributeError):
        nl.tile_size.pmax = 64
