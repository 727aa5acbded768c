"""Ranks that run apart: the bits of one world of all, and what happens when one does not come."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from rank_carriers import carriers, run_apart
from rank_support import LNCS, handed_over, staged
from test_collective_results import NAMES, in_hbm, in_sbuf

import nkisim.collectives as ncc
import nkisim.language as nl
from nkisim import Rank, World
from nkisim.errors import (
    NkiDeadlockError,
    NkiMismatchError,
    NkiPeerError,
    NkiValidationError,
)


def noise(shape: tuple[int, ...], seed: int, dtype: Any = np.float32) -> Any:
    """Numbers whose sum depends on its order."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


def assert_same_bits(found: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert not isinstance(one, Exception), one
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("lnc", LNCS)
@pytest.mark.parametrize("name", NAMES)
def test_the_bits_of_a_world_in_hbm(name: str, lnc: int, dtype: Any) -> None:
    groups = ((2, 0, 3), (4, 5, 1))
    inputs = [
        (noise((6, 5), rank, dtype), name, groups, 3, "add", nl.shared_hbm) for rank in range(6)
    ]
    assert_same_bits(run_apart(in_hbm, inputs, lnc), World(6, lnc).run(in_hbm, inputs))


@pytest.mark.parametrize("lnc", LNCS)
@pytest.mark.parametrize("name", ["all_reduce", "collective_permute_implicit"])
def test_the_bits_of_a_world_in_sbuf(name: str, lnc: int) -> None:
    """The cores of a rank exchange at the same time, each with its like."""
    inputs = [(noise((lnc, 16, 512), rank), name, (), 3, "add", 0) for rank in range(3)]
    assert_same_bits(run_apart(in_sbuf, inputs, lnc), World(3, lnc).run(in_sbuf, inputs))


def pairs(x: Any) -> Any:
    src, dst = staged(x, "src"), staged(x, "dst")
    ncc.collective_permute([src], [dst], [(0, 2), (2, 1)])
    return handed_over(dst, "out")


def channels(x: Any) -> Any:
    first = [staged(x, f"first{i}") for i in (0, 1)]
    second = [staged(x, f"second{i}") for i in (0, 1)]
    dsts = [nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name=f"dst{i}") for i in (0, 1)]
    ncc.collective_permute_implicit_reduce(
        [[one] for one in first],
        [[one] for one in second],
        [[one] for one in dsts],
        ncc.ReplicaGroup([[0, 1, 2]]),
        nl.add,
        channel_ids=[1, 0],
    )
    return handed_over(dsts[1], "out")


def ragged(x: Any, metadata: Any) -> Any:
    src, table = staged(x, "src"), staged(metadata, "table")
    dst = staged(x, "dst")
    ncc.all_to_all_v([src], [dst], ncc.ReplicaGroup([[0, 1, 2]]), table)
    return handed_over(dst, "out")


@pytest.mark.parametrize("lnc", LNCS)
@pytest.mark.parametrize("kernel", [pairs, channels])
def test_the_bits_of_a_world_of_other_permutes(kernel: Any, lnc: int) -> None:
    inputs = [(noise((4, 8), rank),) for rank in range(3)]
    assert_same_bits(run_apart(kernel, inputs, lnc), World(3, lnc).run(kernel, inputs))


@pytest.mark.parametrize("lnc", LNCS)
def test_the_bits_of_a_world_where_each_rank_sends_what_it_likes(lnc: int) -> None:
    inputs = []
    for rank in range(3):
        counts = np.array([1, rank, 2], np.uint32)
        table = np.stack([counts, np.array([0, 1, 5], np.uint32), np.zeros(3, np.uint32)])
        inputs.append((noise((12,), rank), table))
    assert_same_bits(run_apart(ragged, inputs, lnc), World(3, lnc).run(ragged, inputs))


def numbered(x: Any) -> Any:
    """What depends on the rank without any exchange."""
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nl.store(out, nl.add(nl.load(x), nl.rand(x.shape, nl.float32)))
    return out


def test_a_rank_has_its_own_random_numbers() -> None:
    inputs = [(np.zeros((4, 8), np.float32),)] * 2
    found = run_apart(numbered, inputs)
    assert_same_bits(found, World(2).run(numbered, inputs))
    assert not np.array_equal(*found)


# When one does not come


def summed(x: Any, before: Any = None, between: Any = None, groups: Any = ()) -> Any:
    if before is not None:
        before()
    out = x
    for i in range(2):
        src = staged(out, f"src{i}")
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name=f"dst{i}")
        ncc.all_reduce([src], [out], ncc.ReplicaGroup(groups), nl.add)
        if between is not None:
            between()
    return handed_over(out, "out")


X = np.ones((4, 8), np.float32)


def broken() -> None:
    raise ArithmeticError("no such sum")


@pytest.mark.parametrize("where", [{"before": broken}, {"between": broken}])
@pytest.mark.parametrize("lnc", LNCS)
def test_who_fails_is_named_everywhere_and_the_next_run_is_clean(
    lnc: int, where: dict[str, Any]
) -> None:
    def failing(x: Any) -> Any:
        return summed(x, **where)

    ways = carriers(3)
    found = run_apart([summed, failing, summed], [(X,)] * 3, lnc, carriers=ways)
    assert isinstance(found[1], ArithmeticError)
    for other in (found[0], found[2]):
        assert isinstance(other, NkiPeerError)
        assert "rank 1 failed: ArithmeticError: no such sum" in str(other)
        assert other.cores == (1,)
    assert ways[0].left() == 0
    for out in run_apart(summed, [(X,)] * 3, lnc, carriers=ways):
        assert np.array_equal(out, 9 * X)


def test_one_core_of_a_rank_fails_while_the_other_is_abroad() -> None:
    def on_core_one(x: Any) -> Any:
        if nl.program_id(0) == 1:
            broken()
        return in_sbuf(x, "all_reduce", (), 2, "add", 0)

    def fine(x: Any) -> Any:
        return in_sbuf(x, "all_reduce", (), 2, "add", 0)

    found = run_apart([fine, on_core_one], [(noise((2, 16, 512), 1),)] * 2, 2)
    assert isinstance(found[1], ArithmeticError)
    assert isinstance(found[0], NkiPeerError)
    assert "rank 1 failed: ArithmeticError" in str(found[0])


def test_what_ranks_disagree_about_is_named() -> None:
    found = run_apart(summed, [(X,), (np.ones((4, 9), np.float32),)])
    for error in found:
        assert isinstance(error, NkiMismatchError)
        assert "disagree about srcs" in str(error)
        assert "rank 0: " in str(error) and "rank 1: " in str(error)
        assert "(4, 9)" in str(error)


def test_a_rank_that_has_finished_is_not_waited_for() -> None:
    def none(x: Any) -> Any:
        return handed_over(x, "out")

    waiting, finished = run_apart([summed, none], [(X,)] * 2)
    assert isinstance(waiting, NkiDeadlockError)
    assert "all_reduce" in str(waiting) and "rank 1, which has finished" in str(waiting)
    assert isinstance(finished, NkiPeerError)
    assert "rank 0 failed: NkiDeadlockError" in str(finished)


def test_a_rank_that_says_nothing_is_given_up() -> None:
    way = carriers(2)[0]
    with pytest.raises(NkiPeerError, match=r"rank 1 is lost: nothing for 0\.2 s"):
        Rank(way, patience=0.2).run(summed, X)


def test_a_rank_may_take_its_time() -> None:
    """Longer than cores that all stand still may."""
    for out in run_apart(summed, [(X,)] * 2, 2, late=1.0, stall_seconds=0.3):
        assert np.array_equal(out, 4 * X)


def test_only_members_are_reached() -> None:
    way = carriers(3)[0]
    way.members = (0, 2)
    with pytest.raises(NkiValidationError, match=r"rank 1 takes part.* it reaches \[2\]"):
        Rank(way, patience=0.2).run(summed, X)


def test_what_a_rank_needs() -> None:
    (way,) = carriers(1)
    with pytest.raises(ValueError, match="without numerics"):
        Rank(way, numerics=False)
    with pytest.raises(ValueError, match="patience is 0"):
        Rank(way, patience=0)
    with pytest.raises(ValueError, match="lnc is 3"):
        Rank(way, 3)
    assert np.array_equal(Rank(way).run(summed, X), X)
