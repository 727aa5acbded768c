"""`simulate`: results of every form, settings, and the rules about what is returned."""

from __future__ import annotations

import gc
import re
import threading
import warnings
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest
from rank_support import bounded, my_rows, share

import nkisim.isa as nisa
import nkisim.language as nl
from nkisim.core import current_or_none
from nkisim.enums import NcVersion
from nkisim.errors import (
    NkiCapacityError,
    NkiMismatchError,
    NkiOutsideKernelError,
    NkiValidationError,
    NkiWarning,
)
from nkisim.kernel import jit
from nkisim.settings import Rules, Settings
from nkisim.simulation import World, simulate

X = np.arange(24, dtype=np.float32).reshape(4, 6)


def copied(x):
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    share(out, x)
    return out


class Pair(NamedTuple):
    first: Any
    second: Any


# Results


@pytest.mark.parametrize("lnc", [1, 2])
def test_results_keep_their_form(lnc):
    def kernel(x, form):
        a, b = copied(x), copied(x)
        return {
            "one": lambda: a,
            "tuple": lambda: (a, b),
            "list": lambda: [a, b],
            "dict": lambda: {"a": a, "more": {"b": [b, None]}},
            "named": lambda: Pair(a, (b, 3)),
            "none": lambda: None,
            "numbers": lambda: (1, 2.5, "text"),
        }[form]()

    def run(form):
        return bounded(lambda: simulate(kernel)[lnc](X, form))

    np.testing.assert_array_equal(run("one"), X)
    for form, kind in (("tuple", tuple), ("list", list)):
        found = run(form)
        assert type(found) is kind and len(found) == 2
        np.testing.assert_array_equal(found, [X, X])
    found = run("dict")
    assert list(found) == ["a", "more"] and found["more"]["b"][1] is None
    np.testing.assert_array_equal(found["more"]["b"][0], X)
    found = run("named")
    assert type(found) is Pair and found.second[1] == 3
    assert run("none") is None
    assert run("numbers") == (1, 2.5, "text")


def test_named_tuples_are_arguments_too():
    def kernel(pair):
        assert type(pair) is Pair and type(pair.second) is list
        return copied(pair.second[0])

    np.testing.assert_array_equal(simulate(kernel)(Pair(None, [X])), X)
    with pytest.raises(TypeError, match=re.escape("argument pair.second[0] is")):
        simulate(kernel)(Pair(None, [X.astype(np.float64)]))


def test_returned_views_have_their_own_shape_and_values():
    def kernel(x):
        out = copied(x)
        return (
            out.reshape((2, 12)), out.reshape((24,)), out[1:3], out[:, 1:6:2], out[2],
            out.permute((1, 0)), out.view(nl.int32), out.ap([[6, 2], [1, 3]], offset=7),
            out.reshape_dim(1, [2, 3]), out.expand_dim(1).broadcast(1, 3),
        )  # fmt: skip

    found = simulate(kernel)(X)
    wanted = [
        X.reshape(2, 12), X.reshape(24), X[1:3], X[:, 1:6:2], X[2], X.T, X.view(np.int32),
        X.reshape(-1)[7:][np.array([[0, 1, 2], [6, 7, 8]])], X.reshape(4, 2, 3),
        np.broadcast_to(X[:, None], (4, 3, 6)),
    ]  # fmt: skip
    for values, expected in zip(found, wanted, strict=True):
        assert values.dtype == expected.dtype and values.flags.c_contiguous
        np.testing.assert_array_equal(values, expected)


def test_an_argument_may_be_returned():
    x = X.copy()
    found = simulate(lambda x: (x, x[1:2]))(x)
    np.testing.assert_array_equal(found[0], x)
    np.testing.assert_array_equal(found[1], x[1:2])


@pytest.mark.parametrize("lnc", [1, 2])
def test_results_lie_in_shared_hbm(lnc):
    def kernel(x, buffer):
        made = nl.ndarray(x.shape, x.dtype, buffer, name="made")
        nisa.dma_copy(made, x)
        return made

    for buffer, text in (
        (nl.sbuf, "must be shared HBM tensors"), (nl.private_hbm, "must be nl.shared_hbm")
    ):  # fmt: skip
        with pytest.raises(NkiValidationError, match=text):
            bounded(lambda buffer=buffer: simulate(kernel)[lnc](X, buffer))


# unwritten_output


def half_written(x):
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="out")
    if nl.program_id(0) == 0:
        nisa.dma_copy(out[0:2], x[0:2])
    return out


@pytest.mark.parametrize("lnc", [1, 2])
def test_the_level_of_unwritten_output(lnc):
    def run(kernel=half_written, **options):
        return bounded(lambda: simulate(kernel, **options)[lnc](X))

    text = "'out', [4, 6], float32, shared_hbm), part of which nothing wrote"
    with pytest.warns(NkiWarning, match=re.escape(text)):
        found = run()
    np.testing.assert_array_equal(found[0:2], X[0:2])
    assert np.isnan(found[2:4]).all()
    with pytest.raises(NkiValidationError, match=re.escape(text)):
        run(rules=Rules(unwritten_output="error"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(rules=Rules(unwritten_output="off"))
        # what is returned of it was written
        run(lambda x: half_written(x)[0:2])
    with pytest.warns(NkiWarning, match="part of which nothing wrote"):
        run(numerics=False)


# Settings


def test_settings_and_single_ones_in_their_place():
    def kernel(x):
        seen.append(nisa.get_nc_version())
        return x

    seen: list[Any] = []
    simulate(kernel)(X)
    simulate(kernel, target="gen2")(X)
    simulate(kernel, Settings(target="trn2"))(X)
    simulate(kernel, Settings(target="trn2"), target=4)(X)
    simulate(kernel, settings=Settings(target=NcVersion.gen3))[2](X)
    assert [int(version) for version in seen] == [4, 2, 3, 4, 3, 3]
    with pytest.raises(TypeError, match="there is no setting 'lnc'"):
        simulate(kernel, lnc=2)
    with pytest.raises(TypeError, match="takes a function"):
        simulate(None)


def test_the_target_may_come_from_the_environment(monkeypatch):
    seen = []

    def kernel(x):
        seen.append(int(nisa.get_nc_version()))
        return x

    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn1")
    simulate(kernel)(X)
    jit(kernel)(X)
    World(1).run(kernel, [(X,)])
    simulate(kernel, target="gen4")(X)
    assert seen == [2, 2, 2, 4]
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn7")
    with pytest.raises(ValueError, match="target is 'trn7'"):
        simulate(kernel)


def test_no_trace_is_kept_where_none_is_asked_for():
    _, trace = World(2, trace=False).launch(copied, [(X,), (X,)])
    for core in trace.cores:
        assert (len(core), core.dropped, core.places) == (0, 1, [])


def test_too_much_for_a_memory_is_told_when_all_is_known():
    def kernel(x):
        tiles = []
        for _ in range(5):
            tile = nl.ndarray((128, 16384), nl.float32, nl.sbuf)
            nisa.memset(tile, 0)
            tiles.append(tile)
        for tile in tiles:
            nisa.tensor_scalar(tile, tile, nl.add, 1.0)
        return x

    with pytest.raises(NkiCapacityError):
        simulate(kernel, numerics=False)(X)
    with pytest.warns(NkiWarning, match="capacity"):
        simulate(kernel, numerics=False, rules=Rules(capacity="warn"))(X)


# Running


@pytest.mark.parametrize("lnc", [1, 2])
def test_a_run_is_alike_every_time(lnc):
    def kernel(x):
        tile = nl.ndarray((128, 64), nl.float32, nl.sbuf)
        nisa.rng(tile.view(nl.uint32))
        wide = nl.ndarray((nl.num_programs(), 128, 64), nl.uint32, nl.shared_hbm)
        nisa.dma_copy(wide[nl.program_id(0)].reshape((128, 64)), tile.view(nl.uint32))
        return wide

    first = bounded(lambda: simulate(kernel)[lnc](X))
    for _ in range(3):
        assert bounded(lambda: simulate(kernel)[lnc](X)).tobytes() == first.tobytes()
    other = bounded(lambda: simulate(kernel, seed=1)[lnc](X))
    assert other.tobytes() != first.tobytes()
    assert lnc == 1 or first[0].tobytes() != first[1].tobytes()


def test_a_simulation_within_a_kernel_is_a_run_of_its_own():
    """As the host may look at a kernel while it makes constants for another."""

    def kernel(x):
        before = nl.ndarray((1, 1), nl.float32, nl.sbuf)
        constant = simulate(lambda y: copied(y), target="gen3")(X + 1)
        after = nl.ndarray((1, 1), nl.float32, nl.sbuf)
        assert [before.name, after.name] == ["sbuf#0", "sbuf#1"]
        assert float(constant[0, 0]) == 1.0 and nisa.get_nc_version() == 4
        return copied(x)

    np.testing.assert_array_equal(simulate(kernel, target="gen4")(X), X)
    assert current_or_none() is None


@pytest.mark.parametrize("lnc", [1, 2])
def test_a_failed_run_leaves_nothing_behind(lnc):
    def kernel(x):
        nisa.memset(x, 0)
        return x

    before = threading.enumerate()
    for _ in range(3):
        with pytest.raises(NkiValidationError, match="memset: dst is"):
            bounded(lambda: simulate(kernel)[lnc](X))
        assert threading.enumerate() == before and current_or_none() is None
    np.testing.assert_array_equal(bounded(lambda: simulate(copied)[lnc](X)), X)
    with pytest.raises(NkiOutsideKernelError, match="outside a kernel"):
        nl.ndarray((2, 2), nl.float32, nl.sbuf)


@pytest.mark.parametrize(("ranks", "lnc"), [(1, 1), (2, 2)])
def test_the_memory_of_a_run_goes_with_it(ranks, lnc):
    """At once, and not with the next full collection, which may be many runs later."""
    cores = []

    def kernel(x):
        cores.append(weakref.ref(current_or_none()))
        bank = nl.ndarray((128, 128), nl.float32, nl.psum, address=(0, 0))
        tile = nl.ndarray((128, 128), nl.float32, address=(0, 0))
        nisa.dma_copy(tile, x)
        # left to be added up when the kernel ends
        nisa.nc_matmul(bank, tile, tile)
        out = nl.ndarray((128, 128), nl.float32, nl.shared_hbm)
        nisa.dma_copy(out, tile)
        return out

    gc.collect()
    gc.disable()
    try:
        World(ranks, lnc).run(kernel, [(np.ones((128, 128), np.float32),)] * ranks)
        left = [core() for core in cores if core() is not None]
    finally:
        gc.enable()
    assert len(cores) == ranks * lnc
    assert left == []


def test_a_run_leaves_frozen_objects_and_thresholds_alone():
    kept = gc.get_threshold()
    simulate(copied)(np.ones((128, 4), np.float32))
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == kept
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        simulate(copied)(np.ones((128, 4), np.float32))
        # objects that were frozen may still be freed when nobody refers to them
        assert 0 < gc.get_freeze_count() <= frozen
    finally:
        gc.unfreeze()


def test_wrong_arguments_are_pythons_own_error():
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        simulate(copied)()
    with pytest.raises(TypeError, match="unexpected keyword argument 'y'"):
        simulate(copied)(X, y=3)
    with pytest.raises(TypeError, match="too many|takes 1 positional"):
        simulate(copied)(X, X)


def test_halves_of_a_result_come_from_both_cores():
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        rows = my_rows(x.shape[0])
        tile = nl.ndarray((rows.stop - rows.start, x.shape[1]), x.dtype, nl.sbuf)
        nisa.dma_copy(tile, x[rows])
        nisa.tensor_scalar(tile, tile, nl.add, 100.0 * nl.program_id(0))
        nisa.dma_copy(out[rows], tile)
        return out

    found = bounded(lambda: simulate(kernel)[2](X))
    np.testing.assert_array_equal(found, X + np.repeat([[0.0], [100.0]], 2, 0).astype(np.float32))


def test_both_cores_return_the_same_views():
    def kernel(x):
        out = copied(x)
        return out[0:2] if nl.program_id(0) == 0 else out[2:4]

    with pytest.raises(NkiMismatchError, match="return different tensors"):
        bounded(lambda: simulate(kernel)[2](X))
