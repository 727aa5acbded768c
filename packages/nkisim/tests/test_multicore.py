"""Two cores of a rank: exchanges, barriers, and what they may do to shared HBM."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from rank_support import bounded, fails, line_of, quiet, share, staged

import nkisim.isa as nisa
import nkisim.language as nl
from nkisim.errors import NkiMismatchError, NkiValidationError, NkiWarning
from nkisim.settings import Rules
from nkisim.simulation import World, simulate

X = np.arange(32, dtype=np.float32).reshape(4, 8)


def loaded(x, dtype=None):
    tile = nl.ndarray(x.shape, dtype or x.dtype, nl.sbuf)
    nisa.dma_copy(tile, x)
    return tile


def stored(tile, name="out"):
    """One row of the result for each core: [2, ...]."""
    core = nl.program_id(0)
    out = nl.ndarray((2, *tile.shape), tile.dtype, nl.shared_hbm, name=name)
    nisa.dma_copy(out[core].reshape(tile.shape), tile)
    return out


# sendrecv


def swapped(x, engine=nisa.dma_engine.dma):
    core = nl.program_id(0)
    mine = loaded(x[core].reshape(x.shape[1:]))
    theirs = nl.ndarray(mine.shape, mine.dtype, nl.sbuf)
    nisa.sendrecv(mine, theirs, 1 - core, 1 - core, pipe_id=0, dma_engine=engine, name="swap")
    return stored(theirs)


@pytest.mark.parametrize("engine", [nisa.dma_engine.dma, nisa.dma_engine.gpsimd_dma, "gpsimd_dma"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.uint8, np.int32])
@pytest.mark.parametrize("ranks", [1, 3])
def test_cores_swap_tiles(ranks, dtype, engine):
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 256, (ranks, 2, 16, 64), np.uint8)
    xs = [part.view(dtype) for part in bits]
    for rank, found in enumerate(quiet(World(ranks, 2), swapped, [(x, engine) for x in xs])):
        assert found.tobytes() == xs[rank][::-1].tobytes()


def test_a_tile_may_be_received_over_itself_and_in_views():
    def kernel(x):
        core = nl.program_id(0)
        tile = loaded(x[core].reshape(x.shape[1:]))
        nisa.sendrecv(tile[:, 1::2], tile[:, 1::2], 1 - core, 1 - core, 0)
        nisa.sendrecv(tile[0:2, 0:2], tile[2:4, 0:2], 1 - core, 1 - core, 0)
        return stored(tile)

    x = np.arange(2 * 4 * 6, dtype=np.int32).reshape(2, 4, 6)
    wanted = x.copy()
    wanted[:, :, 1::2] = x[::-1, :, 1::2]
    halfway = wanted.copy()
    wanted[:, 2:4, 0:2] = halfway[::-1, 0:2, 0:2]
    np.testing.assert_array_equal(bounded(lambda: simulate(kernel)[2](x)), wanted)


def test_pipes_pair_up_by_their_own_order():
    """Core 1 takes the pipes alternately, core 0 all of one first: pairs are by pipe and count."""

    def kernel(x, late):
        core = nl.program_id(0)
        tiles = [loaded(x[core, i].reshape(x.shape[2:])) for i in range(4)]
        got = [nl.ndarray(tiles[0].shape, x.dtype, nl.sbuf) for _ in range(4)]
        for i in range(4):
            nisa.sendrecv(tiles[i], got[i], 1 - core, 1 - core, pipe_id=i % 2)
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        for i in range(4):
            nisa.dma_copy(out[core, i].reshape(x.shape[2:]), got[i])
        return out

    x = np.arange(2 * 4 * 2 * 3, dtype=np.float32).reshape(2, 4, 2, 3)
    np.testing.assert_array_equal(bounded(lambda: simulate(kernel)[2](x, 1)), x[::-1])


def sent(**changes: Any):
    """A kernel with one sendrecv, changed as said; `peer` stands for the other core."""

    def kernel(x):
        core = nl.program_id(0)
        tile = nl.zeros((4, 1024), nl.float32)
        arguments = {
            "src": tile[:, 0:16], "dst": tile[:, 16:32], "send_to_rank": 1 - core,
            "recv_from_rank": 1 - core, "pipe_id": 0,
        }  # fmt: skip
        for name, change in changes.items():
            arguments[name] = change(tile, core) if callable(change) else change
        nisa.sendrecv(**arguments)
        return x

    return kernel


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"dst": lambda tile, core: tile[:, 0:8]}, NkiValidationError, "shape and dtype"),
        ({"src": lambda tile, core: tile[:, 0:16].view(nl.int32)}, NkiValidationError, "int32"),
        ({"send_to_rank": lambda tile, core: core}, NkiValidationError, "send_to_rank is"),
        ({"recv_from_rank": 2}, NkiValidationError, "recv_from_rank is 2"),
        ({"send_to_rank": True}, NkiValidationError, "send_to_rank is True"),
        ({"pipe_id": "a"}, TypeError, "pipe_id is 'a'"),
        ({"src": 3}, TypeError, "src is 3"),
        ({"dma_engine": "carrier pigeon"}, TypeError, "dma_engine"),
        ({"dst": lambda tile, core: nl.zeros((4, 16), nl.float32, nl.psum)}, NkiValidationError,
         "must be in SBUF"),
        ({"src": lambda tile, core: tile[:, 0:257], "dst": lambda tile, core: tile[:, 300:557],
          "dma_engine": nisa.dma_engine.gpsimd_dma}, NkiValidationError, "at most 1024"),
        ({"src": lambda tile, core: tile.view(nl.bfloat16)[:, 0:257],
          "dst": lambda tile, core: tile.view(nl.bfloat16)[:, 300:557],
          "dma_engine": nisa.dma_engine.gpsimd_dma}, NkiValidationError, "at most 512"),
        ({"src": lambda tile, core: tile.view(nl.uint8)[:, 0:257],
          "dst": lambda tile, core: tile.view(nl.uint8)[:, 300:557],
          "dma_engine": nisa.dma_engine.gpsimd_dma}, NkiValidationError, "at most 256"),
    ],
)  # fmt: skip
def test_what_a_sendrecv_takes(changes, kind, text):
    fails(kind, lambda: simulate(sent(**changes))[2](X), text)


def test_gpsimd_takes_its_limit():
    limits = {"src": lambda tile, core: tile[:, 0:256], "dst": lambda tile, core: tile[:, 256:512]}
    bounded(lambda: simulate(sent(**limits, dma_engine="gpsimd_dma"))[2](X))


def test_a_sendrecv_needs_two_cores_of_gen3():
    fails(NkiValidationError, lambda: simulate(sent())(X), "the rank has one core")
    fails(NkiValidationError, lambda: simulate(sent(), rules=Rules.all("off"))(X), "one core")
    fails(NkiValidationError, lambda: simulate(sent(), target="gen2")[2](X), "needs gen3")


@pytest.mark.parametrize("changed", ["shape", "dtype", "dma_engine"])
def test_cores_that_send_different_things(changed):
    def kernel(x):
        core = nl.program_id(0)
        odd = core == 1
        width = 3 if odd and changed == "shape" else 4
        dtype = nl.int32 if odd and changed == "dtype" else nl.float32
        engine = "gpsimd_dma" if odd and changed == "dma_engine" else "dma"
        tile = nl.zeros((4, width), dtype)
        nisa.sendrecv(tile, tile, 1 - core, 1 - core, 0, engine)  # exchanges
        return x

    text = fails(NkiMismatchError, lambda: simulate(kernel)[2](X), f"disagree about {changed}")
    for core in range(2):
        assert f"rank 0 core {core}: {line_of(kernel, '# exchanges')}: sendrecv(" in text


# core_barrier


def handed_over(x, barrier=True, **options):
    """Core 0 fetches, both use it."""
    buffer = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="buffer")
    if nl.program_id(0) == 0:
        nisa.dma_copy(buffer, x)
    if barrier:
        nisa.core_barrier(buffer, (0, 1), **options)
    return stored(loaded(buffer))


@pytest.mark.parametrize("engine", ["tensor", "vector", "scalar", "gpsimd", "sync"])
def test_a_barrier_hands_over(engine):
    found = quiet(World(1, 2), lambda x: handed_over(x, engine=nisa.engine[engine]), [(X,)])[0]
    np.testing.assert_array_equal(found, [X, X])


def test_a_barrier_is_recorded_with_what_it_waits_for():
    _, trace = World(2, 2).launch(lambda x: handed_over(x, name="here"), [(X,), (X,)])
    for core in trace.cores:
        (barrier,) = [i for i in core if i.op == "core_barrier"]
        assert barrier.name == "here"
        assert barrier.meeting.cores == (2 * core.rank, 2 * core.rank + 1)
        assert [access.place.name for access in barrier.writes] == ["buffer"]


def test_a_barrier_does_nothing_with_one_core():
    def kernel(x):
        nisa.core_barrier(x, (0, 1))
        return x

    for target in ("gen2", "gen3", "gen4"):
        np.testing.assert_array_equal(simulate(kernel, target=target)(X), X)


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (lambda t: nisa.core_barrier(t, (0,)), NkiValidationError, "cores is (0,)"),
        (lambda t: nisa.core_barrier(t, (1, 0)), NkiValidationError, "cores is (1, 0)"),
        (lambda t: nisa.core_barrier(t, 2), NkiValidationError, "cores is 2"),
        (lambda t: nisa.core_barrier(None, (0, 1)), TypeError, "data is None"),
        (lambda t: nisa.core_barrier(nl.zeros((4, 4), nl.float32), (0, 1)), NkiValidationError,
         "must be a shared HBM tensor"),
        (lambda t: nisa.core_barrier(t, (0, 1), engine=nisa.engine.dma), NkiValidationError,
         "engine is engine.dma"),
    ],
)  # fmt: skip
def test_what_a_barrier_takes(body, kind, text):
    def kernel(x):
        body(staged(x, "buffer"))
        return x

    fails(kind, lambda: simulate(kernel)[2](X), text)


def test_cores_that_wait_for_different_tensors():
    def kernel(x, names):
        tensors = [staged(x, name) for name in names]
        nisa.core_barrier(tensors[nl.program_id(0)], (0, 1))
        return x

    fails(NkiMismatchError, lambda: simulate(kernel)[2](X, "ab"), "disagree about data")
    fails(NkiMismatchError, lambda: simulate(kernel)[2](X, "aa"), "two tensors named 'a'")


# Races on shared HBM


def test_a_barrier_on_another_tensor_does_not_order():
    def kernel(x):
        a, b = (nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name=name) for name in "ab")
        if nl.program_id(0) == 0:
            nisa.dma_copy(a, x)  # written
        nisa.core_barrier(b, (0, 1))
        return stored(loaded(a))

    for _ in range(3):
        text = fails(NkiValidationError, lambda: simulate(kernel)[2](X), "shared tensor 'a'")
        assert f"core 0 writes in dma_copy at {line_of(kernel, '# written')}" in text


def both_write(x, overlap):
    """Each core its half plus its number; with `overlap`, core 0 rows of the other half too."""
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="out")
    half, core = x.shape[0] // 2, nl.program_id(0)
    rows = slice(0, half + overlap) if core == 0 else slice(half, x.shape[0])
    tile = loaded(x[rows])
    nisa.tensor_scalar(tile, tile, nl.add, float(core))
    nisa.dma_copy(out[rows], tile)  # written
    return out


def test_halves_may_be_written_at_once_and_rows_of_both_may_not():
    found = quiet(World(1, 2), both_write, [(X, 0)])[0]
    np.testing.assert_array_equal(found, X + np.array([[0], [0], [1], [1]], np.float32))
    for _ in range(3):
        fails(
            NkiValidationError,
            lambda: simulate(both_write)[2](X, 1),
            "shared tensor 'out'",
            f"core 0 writes in dma_copy at {line_of(both_write, '# written')}",
            f"core 1 writes in dma_copy at {line_of(both_write, '# written')}",
        )


def test_an_argument_is_shared_too():
    def kernel(x):
        tile = nl.full(x.shape, 1.0 + nl.program_id(0), x.dtype)
        nisa.dma_copy(x, tile)
        return x

    fails(NkiValidationError, lambda: simulate(kernel)[2](X.copy()), "shared tensor 'x'")
    np.testing.assert_array_equal(simulate(kernel)(X.copy()), np.ones_like(X))


def test_the_level_of_core_race():
    def run(level):
        return bounded(lambda: simulate(both_write, rules=Rules(core_race=level))[2](X, 1))

    with pytest.raises(NkiValidationError, match="core_race"):
        run("error")
    with pytest.warns(NkiWarning, match="shared tensor 'out'"):
        found = run("warn")
    off = quiet(World(1, 2, rules=Rules(core_race="off")), both_write, [(X, 1)])[0]
    for values in (found, off):
        # row 2 is either core's
        np.testing.assert_array_equal(values[[0, 1, 3]] - X[[0, 1, 3]], [[0] * 8, [0] * 8, [1] * 8])


def test_many_writes_of_both_cores_are_all_known():
    """Coverage of one tensor that two threads add to by turns, a row and a few bytes at a time."""

    def kernel(x, again):
        a = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="a")
        core = nl.program_id(0)
        tile = nl.zeros((1, x.shape[1]), x.dtype)
        for row in range(core, x.shape[0], 2):
            for start in range(0, x.shape[1], 4):
                nisa.dma_copy(a[row : row + 1, start : start + 4], tile[:, start : start + 4])
        nisa.core_barrier(a, (0, 1))
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="out")
        share(out, loaded(a))
        return out

    x = np.zeros((60, 16), np.float32)
    for again in range(5):
        np.testing.assert_array_equal(quiet(World(1, 2), kernel, [(x, again)])[0], x)


def test_each_core_has_its_own_memory():
    def kernel(x):
        core = nl.program_id(0)
        tile = nl.ndarray((4, 8), nl.float32, nl.sbuf, address=(0, 0))
        nisa.memset(tile, float(core + 1))
        private = nl.ndarray((4, 8), nl.float32, nl.private_hbm)
        nisa.dma_copy(private, tile)
        again = nl.ndarray((4, 8), nl.float32, nl.sbuf)
        nisa.dma_copy(again, private)
        return stored(again)

    found = quiet(World(1, 2), kernel, [(X,)])[0]
    np.testing.assert_array_equal(found[0], np.full((4, 8), 1.0))
    np.testing.assert_array_equal(found[1], np.full((4, 8), 2.0))
