"""Several ranks: what they are given, how they fail, and that threads leave no mark on it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from rank_support import bounded, fails, handed_over, line_of, my_rows, quiet, share, staged

import nkisim.collectives as ncc
import nkisim.isa as nisa
import nkisim.language as nl
from nkisim.core import current_or_none
from nkisim.errors import (
    NkiDeadlockError,
    NkiError,
    NkiMismatchError,
    NkiValidationError,
)
from nkisim.host import TensorSpec
from nkisim.kernel import jit
from nkisim.settings import Rules, Settings
from nkisim.simulation import World, simulate

RANKS = 8
X = np.ones((4, 8), np.float32)

# A deadlock and a disagreement are certain before anyone has waited; only for a core that goes on
# without end does time have to pass. Runs that must not need it get more than a test has.
FOREVER = 600.0


def told(kind: type[NkiError], kernel: Any, inputs: Any, lnc: int = 2, **options: Any) -> str:
    options = {"stall_seconds": FOREVER} | options
    world = World(len(inputs), lnc, **options)
    text = fails(kind, lambda: world.run(kernel, inputs))
    assert current_or_none() is None
    return text


def stands(text: str, rank: int, core: int) -> str:
    """What the text says about one core."""
    found = re.findall(rf"^  rank {rank} core {core}: (.*)$", text, re.MULTILINE)
    assert len(found) == 1, text
    return found[0]


# Deadlocks


def test_a_rank_that_leaves_out_a_collective():
    def kernel(x, rank):
        a = staged(x, "a")
        for i in range(3):
            if (rank, i) != (5, 1):
                ncc.all_reduce([a], [a], (), nl.add)  # reduces
        return handed_over(a, "out")

    text = told(NkiDeadlockError, kernel, [(X.copy(), rank) for rank in range(RANKS)])
    for rank in range(RANKS):
        for core in range(2):
            if rank == 5:
                assert stands(text, rank, core) == "finished"
            else:
                stand = stands(text, rank, core)
                assert stand.startswith(f"{line_of(kernel, '# reduces')}: waits in all_reduce(")
                assert stand.endswith("for rank 5 core 0, rank 5 core 1")


def test_ranks_that_take_two_groups_in_different_order():
    pairs = [[0, 1], [2, 3], [4, 5], [6, 7]]

    def kernel(x, rank):
        a, b = staged(x, "a"), staged(x, "b")
        if rank == 0:
            ncc.all_reduce([a], [a], pairs, nl.add)  # pair first
            ncc.all_reduce([b], [b], (), nl.add)
        else:
            ncc.all_reduce([b], [b], (), nl.add)  # world first
            ncc.all_reduce([a], [a], pairs, nl.add)
        return handed_over(a, "out")

    text = told(NkiDeadlockError, kernel, [(X.copy(), rank) for rank in range(RANKS)])
    for core in range(2):
        assert stands(text, 0, core).startswith(f"{line_of(kernel, '# pair first')}: waits in")
        assert stands(text, 0, core).endswith("for rank 1 core 0, rank 1 core 1")
        for rank in range(1, RANKS):
            assert stands(text, rank, core).startswith(f"{line_of(kernel, '# world first')}: waits")


def test_two_channels_in_different_order():
    def kernel(x, channels):
        src = staged(x, "src")
        a, b = (nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name=name) for name in "ab")
        ncc.collective_permute_implicit([[src]], [[a]], (), [channels[0]])
        ncc.collective_permute_implicit([[src]], [[b]], (), [channels[1]])
        return handed_over(a, "out")

    inputs = [(X.copy(), (0, 1) if rank else (1, 0)) for rank in range(4)]
    text = told(NkiMismatchError, kernel, inputs)
    assert "disagree about channels" in text
    assert "channels=(1,)" in stands(text, 0, 0) and "channels=(0,)" in stands(text, 3, 1)


def test_one_core_of_a_rank_leaves_out_a_collective():
    def kernel(x, rank):
        a = staged(x, "a")
        if (rank, nl.program_id(0)) != (2, 1):
            ncc.all_reduce([a], [a], (), nl.add)  # reduces
        return handed_over(a, "out")

    text = told(NkiDeadlockError, kernel, [(X.copy(), rank) for rank in range(4)])
    assert stands(text, 2, 1) == "finished"
    assert stands(text, 2, 0).endswith("for rank 2 core 1")


def test_one_core_of_a_rank_leaves_out_a_barrier():
    def kernel(x):
        a = staged(x, "a")
        if nl.program_id(0) == 0:
            nisa.core_barrier(a, (0, 1))  # waits
        return handed_over(a, "out")

    text = told(NkiDeadlockError, kernel, [(X,)])
    assert stands(text, 0, 0).startswith(f"{line_of(kernel, '# waits')}: waits in core_barrier(")
    assert stands(text, 0, 1) == "finished"


def test_a_core_that_goes_on_for_ever():
    def kernel(x, rank):
        a = staged(x, "a")
        while (rank, nl.program_id(0)) == (3, 1):  # spins
            pass  # spins
        ncc.all_reduce([a], [a], (), nl.add)  # reduces
        return handed_over(a, "out")

    inputs = [(X.copy(), rank) for rank in range(RANKS)]
    text = told(NkiDeadlockError, kernel, inputs, stall_seconds=0.5)
    assert "no core has issued an instruction for 0.5 s" in text
    assert re.fullmatch(rf"{re.escape(__file__)}:\d+: runs", stands(text, 3, 1))
    for rank in range(RANKS):
        for core in range(2):
            if (rank, core) != (3, 1):
                assert stands(text, rank, core).startswith(f"{line_of(kernel, '# reduces')}: waits")


def test_a_core_that_waits_for_what_the_other_never_writes():
    """Reading what nothing wrote is told as that, although the other core goes on."""

    def kernel(x):
        a = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="a")
        b = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="b")
        tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
        nisa.dma_copy(tile, a if nl.program_id(0) else b)
        return x

    for _ in range(5):
        text = told(NkiValidationError, kernel, [(X,)], rules=Rules(uninitialized="error"))
        assert "part of which nothing has written" in text


# Disagreements


def disagreeing(x, kind, rank):
    a = staged(x, "a")
    b = nl.ndarray((8, 8), x.dtype, nl.shared_hbm, name="b")
    tile = nl.ndarray((4, 512), x.dtype, nl.sbuf)
    nisa.memset(tile, 0)
    odd = rank == 2
    if kind == "op":
        if odd:
            ncc.all_gather([a], [b], [[0, 1], [2, 3]], 0)  # theirs
        else:
            ncc.all_reduce([a], [a], [[0, 1], [2, 3]], nl.add)  # mine
    elif kind == "srcs":
        part = a[0:2] if odd else a
        ncc.all_reduce([part], [part], (), nl.add)
    elif kind == "dtypes":
        part = a.view(nl.int32) if odd else a
        ncc.all_reduce([part], [part], (), nl.add)
    elif kind == "reduce":
        ncc.all_reduce([a], [a], (), nl.maximum if odd else nl.add)
    elif kind == "group":
        ncc.all_reduce([a], [a], [[1, 0, 3, 2]] if odd else [[0, 1, 2, 3]], nl.add)
    elif kind == "group, participants":
        ncc.all_reduce([a], [a], [[2, 3], [0, 1]] if odd else [[0, 1, 2, 3]], nl.add)
    elif kind == "memory":
        if odd:
            ncc.all_reduce([tile], [tile], (), nl.add)
        else:
            ncc.all_reduce([a], [a], (), nl.add)
    elif kind == "dim":
        dim = 0 if odd else 1
        wide = nl.ndarray((4, 1024) if dim else (8, 512), x.dtype, nl.sbuf)
        ncc.all_gather([tile], [wide], [[0, 1], [2, 3]], dim)
    elif kind == "pairs":
        ncc.collective_permute([a], [b[0:4]], [(0, 1)] if odd else [(1, 0)])
    return x


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize(
    "kind", ["op", "srcs", "dtypes", "reduce", "group", "group, participants", "dim", "pairs"]
)
def test_a_disagreement_is_told_with_every_position(kind, lnc):
    text = told(NkiMismatchError, disagreeing, [(X.copy(), kind, rank) for rank in range(4)], lnc)
    assert f"disagree about {kind}:" in text
    for rank in (2, 3):
        for core in range(lnc if kind != "dim" else 1):
            assert re.match(rf"{re.escape(__file__)}:\d+: \w+\(", stands(text, rank, core))
    if kind == "op":
        assert stands(text, 2, 0).startswith(line_of(disagreeing, "# theirs"))
        assert stands(text, 3, 0).startswith(line_of(disagreeing, "# mine"))


def test_memories_that_differ():
    """Ranks of one core meet and disagree; of two, SBUF has only the equally numbered ones meet."""
    inputs = [(X.copy(), "memory", rank) for rank in range(4)]
    assert "memory=SBUF" in told(NkiMismatchError, disagreeing, inputs, 1)
    assert "memory=SBUF" in told(NkiDeadlockError, disagreeing, inputs, 2)


# Errors


class OwnError(Exception):
    pass


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize("where", ["before", "between", "after"])
def test_the_error_of_one_rank_comes_out(where, lnc):
    def kernel(x, rank):
        a = staged(x, "a")
        if (rank, where) == (6, "before"):
            raise OwnError("it was rank 6")
        ncc.all_reduce([a], [a], (), nl.add)
        if (rank, where) == (6, "between"):
            raise OwnError("it was rank 6")
        ncc.all_reduce([a], [a], (), nl.add)
        if (rank, where) == (6, "after"):
            raise OwnError("it was rank 6")
        return handed_over(a, "out")

    for _ in range(3):
        inputs = [(X.copy(), rank) for rank in range(RANKS)]
        text = told(OwnError, kernel, inputs, lnc)
        assert text.startswith("it was rank 6") and "on rank 6 core 0" in text


def test_an_error_within_a_collective_names_it():
    def kernel(x):
        src, dst = staged(x, "src"), staged(x, "dst")
        counts = nl.ndarray((1, 3, 4), nl.uint32, nl.sbuf)
        nisa.memset(counts, 99)
        ncc.all_to_all_v([src], [dst], (), counts)  # exchanges
        return x

    text = told(NkiValidationError, kernel, [(X.copy(),) for _ in range(4)])
    assert "99 elements" in text
    for rank in range(4):
        assert f"rank {rank} core 1 at {line_of(kernel, '# exchanges')}" in text


def test_a_failure_of_a_single_core_leaves_no_context():
    def kernel(x):
        raise OwnError

    with pytest.raises(OwnError):
        simulate(kernel)(X)
    assert current_or_none() is None
    np.testing.assert_array_equal(simulate(lambda x: x)(X), X)


# Threads leave no mark


@pytest.mark.parametrize("lnc", [1, 2])
def test_ranks_by_themselves_compute_what_one_does(lnc):
    def kernel(x):
        tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
        nisa.dma_copy(tile, x)
        for _ in range(20):
            nisa.activation(tile, nl.tanh, tile, scale=1.1)
            nisa.tensor_tensor(tile, tile, tile, nl.add)
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        share(out, tile)
        return out

    rng = np.random.default_rng(0)
    xs = [rng.standard_normal((16, 16)).astype(np.float32) for _ in range(RANKS)]
    alone = [simulate(kernel)[lnc](x) for x in xs]
    for ranks in range(1, RANKS + 1):
        found = quiet(World(ranks, lnc), kernel, [(x,) for x in xs[:ranks]])
        for rank in range(ranks):
            assert found[rank].tobytes() == alone[rank].tobytes()


def test_traces_and_names_do_not_depend_on_turns():
    def kernel(x):
        a = staged(x, "a")
        b = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        scratch = nl.ndarray(x.shape, x.dtype, nl.sbuf)
        ncc.all_reduce([a], [a], (), nl.add)
        nisa.dma_copy(scratch, a)
        share(b, scratch)
        return b

    def record(trace):
        return [
            [(i.op, i.line, [repr(a) for a in (*i.writes, *i.reads)], i.meeting) for i in core]
            for core in trace.cores
        ]

    first = record(World(4, 2).launch(kernel, [(X,)] * 4)[1])
    for _ in range(5):
        assert record(World(4, 2).launch(kernel, [(X,)] * 4)[1]) == first
    # the cores of a rank name the same tensors alike
    assert first[0] != [] and [op[0] for op in first[0]] == [op[0] for op in first[7]]
    assert "'shared_hbm#1'" in str(first[0]) and "'sbuf#0'" in str(first[7])


# What ranks are given


def doubled(x, factor=2.0):
    part = x[my_rows(x.shape[0])]
    tile = nl.ndarray(part.shape, x.dtype, nl.sbuf)
    nisa.dma_copy(tile, part)
    nisa.tensor_scalar(tile, tile, nl.multiply, factor)
    nisa.dma_copy(part, tile)
    return x


@pytest.mark.parametrize("lnc", [1, 2])
def test_each_rank_gets_its_own_arguments(lnc):
    def kernel(x, *, names, offset=0.0):
        tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
        nisa.dma_copy(tile, names["w"][1])
        nisa.tensor_scalar(tile, tile, nl.add, offset)
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        share(out, tile)
        return {"out": out, "n": len(names)}

    inputs = [
        {"x": X, "names": {"w": (None, np.full(X.shape, rank, np.float32))}, "offset": 0.5}
        for rank in range(3)
    ]
    found = quiet(World(3, lnc), kernel, inputs)
    assert [(float(f["out"][0, 0]), f["n"]) for f in found] == [(0.5, 1), (1.5, 1), (2.5, 1)]


@pytest.mark.parametrize("lnc", [1, 2])
def test_inputs_are_changed_in_place_on_every_rank(lnc):
    whole = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
    wanted = whole * 2
    # parts of one array that do not overlap
    found = quiet(World(3, lnc), doubled, [(whole[rank],) for rank in range(3)])
    np.testing.assert_array_equal(whole, wanted)
    columns = np.arange(24, dtype=np.float32).reshape(4, 6)
    wanted = columns * 2
    quiet(World(3, lnc), doubled, [(columns[:, rank::3],) for rank in range(3)])
    np.testing.assert_array_equal(columns, wanted)
    assert [f.shape for f in found] == [(2, 4)] * 3


def test_an_array_of_several_ranks_is_read_only():
    def kernel(x, writes):
        return doubled(x) if writes else handed_over(x, "out")

    shared = X.copy()
    found = quiet(World(3), kernel, [(shared, False)] * 3)
    np.testing.assert_array_equal(found, [X] * 3)
    told_text = told(NkiValidationError, kernel, [(shared, rank == 1) for rank in range(3)], 1)
    assert "argument x, whose array was given to several ranks" in told_text
    np.testing.assert_array_equal(shared, X)
    overlapping = [(shared[0:3], True), (shared[2:4], True)]
    told(NkiValidationError, kernel, overlapping, 1)
    np.testing.assert_array_equal(shared, X)


def test_a_world_checks_what_it_is_given():
    with pytest.raises(ValueError, match="ranks is 0"):
        World(0)
    with pytest.raises(ValueError, match="ranks is True"):
        World(True)
    with pytest.raises(ValueError, match="lnc is 3"):
        World(2, 3)
    with pytest.raises(TypeError, match="there is no setting 'colour'"):
        World(2, colour="red")
    with pytest.raises(ValueError, match="target is 'trn9'"):
        World(2, target="trn9")
    with pytest.raises(ValueError, match="inputs has 1 entries; there are 2 ranks"):
        World(2).run(doubled, [(X,)])
    with pytest.raises(TypeError, match=re.escape("inputs[1] is ndarray")):
        World(2).run(doubled, [(X.copy(),), X])
    with pytest.raises(
        NkiValidationError, match=re.escape("launched with [2] in a world of lnc 1")
    ):
        World(2).run(jit(doubled)[2], [(X,), (X,)])
    assert repr(World(4, 2, target="gen3")) == "World(ranks=4, lnc=2, target='gen3')"


@pytest.mark.parametrize("lnc", [1, 2])
def test_the_grid_of_a_world(lnc):
    seen = []

    def kernel(x):
        seen.append((nl.program_ndim(), nl.num_programs(), nl.program_id(0)))
        return x

    bounded(lambda: World(2, lnc).run(kernel, [(X,), (X.copy(),)]))
    assert sorted(seen) == [(int(lnc == 2), lnc, core) for core in range(lnc) for _ in range(2)]
    seen.clear()
    bounded(lambda: World(2, lnc).run(jit(kernel)[lnc], [(X,), (X.copy(),)]))
    assert sorted(seen) == [(1, lnc, core) for core in range(lnc) for _ in range(2)]


def test_settings_of_a_world():
    world = World(2, settings=Settings(target="gen3", seed=5), seed=7, numerics=False)
    assert (world.settings.target, world.settings.seed) == (3, 7)
    found = world.run(lambda x: x, [(TensorSpec((2, 3), np.float16),)] * 2)
    assert found == [TensorSpec((2, 3), nl.float16)] * 2


def test_the_cores_of_a_rank_must_return_the_same():
    def kernel(x):
        a, b = staged(x, "a"), staged(x, "b")
        return (a, b) if nl.program_id(0) == 0 else (b, a)

    text = told(NkiMismatchError, kernel, [(X,)])
    assert "return different tensors" in text and "'a'" in text and "'b'" in text


def test_the_cores_of_a_rank_must_allocate_the_same():
    def kernel(x, how):
        core = nl.program_id(0)
        shape = (4, 8) if how != "shape" or core == 0 else (8, 4)
        name = "" if how == "no name" and core == 0 else "a"
        a = nl.ndarray(shape, x.dtype, nl.shared_hbm, name=name)
        nisa.core_barrier(a, (0, 1))
        return x

    told_shape = told(NkiMismatchError, kernel, [(X, "shape")])
    assert "[4, 8]" in told_shape and "[8, 4]" in told_shape
    for _ in range(3):
        assert "''" in told(NkiMismatchError, kernel, [(X, "no name")])
