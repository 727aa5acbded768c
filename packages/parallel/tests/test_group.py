"""What ranks do together, against NumPy with all ranks' tensors in one place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from processes import Ranks
from torch import Tensor

from wantrn.parallel import Group

Order = tuple[int, ...]
Arrays = list[np.ndarray[Any, Any]]

WORLD = 4
ORDERS = [(0, 1, 2, 3), (2, 0, 3, 1)]
DTYPES = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.int64,
    torch.int16,
    torch.uint8,
    torch.bool,
]
SUMMED = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64]


@pytest.fixture(scope="module")
def four() -> Iterator[Ranks]:
    with Ranks(WORLD) as ranks:
        yield ranks


def fork_server() -> tuple[int, bool]:
    """Threads of the process that this one is a fork of, and whether it has torch."""
    server = Path("/proc", str(os.getppid()))
    return len(list((server / "task").iterdir())), "libtorch" in (server / "maps").read_text()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at a process in /proc")
def test_ranks_are_forks_of_one_thread_that_has_torch(four: Ranks) -> None:
    assert four.run(fork_server) == [(1, True)] * WORLD


def values(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A rank's tensor of small integers, which every dtype holds and no sum rounds."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randint(0, 8, shape, generator=generator).to(dtype)


def everyone(order: Order, shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Arrays:
    """All ranks' tensors, by position."""
    return [values(rank, shape, dtype).double().numpy() for rank in order]


def joined(order: Order) -> Group:
    return Group(order, order.index(dist.get_rank()), (order,), dist.group.WORLD)


def call(
    order: Order, method: str, shape: tuple[int, ...], dtype: torch.dtype, *args: int
) -> Tensor:
    """A method's result, with what every method promises checked; ``x`` is no contiguous one."""
    x = values(dist.get_rank(), shape, dtype).mT.contiguous().mT
    before = x.clone()
    result: Tensor = getattr(joined(order), method)(x, *args)
    assert torch.equal(x, before)
    assert result.is_contiguous() and result.dtype == x.dtype
    return result.double()


def by_position(order: Order, results: list[Tensor]) -> Arrays:
    return [results[rank].numpy() for rank in order]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_gather(four: Ranks, order: Order, dtype: torch.dtype) -> None:
    whole = np.concatenate(everyone(order, (3, 2, 5), dtype), axis=1)
    for result in four.run(call, order, "all_gather", (3, 2, 5), dtype, 1):
        np.testing.assert_array_equal(result, whole)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("cut", "join"), [(1, 2), (-1, 0), (2, 2)])
def test_all_to_all(four: Ranks, order: Order, dtype: torch.dtype, cut: int, join: int) -> None:
    shape = (3, 4, 8)
    parts = [np.split(x, WORLD, axis=cut) for x in everyone(order, shape, dtype)]
    results = by_position(order, four.run(call, order, "all_to_all", shape, dtype, cut, join))
    for position, result in enumerate(results):
        arrived = [parts[sender][position] for sender in range(WORLD)]
        np.testing.assert_array_equal(result, np.concatenate(arrived, axis=join))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", SUMMED)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_reduce_scatter(four: Ranks, order: Order, dtype: torch.dtype, dim: int) -> None:
    shape = (4, 8, 12)
    parts = np.split(sum(everyone(order, shape, dtype)), WORLD, axis=dim)
    results = by_position(order, four.run(call, order, "reduce_scatter", shape, dtype, dim))
    for result, part in zip(results, parts, strict=True):
        np.testing.assert_array_equal(result, part)


def reduced(order: Order, dtype: torch.dtype) -> tuple[Tensor, bool]:
    """The sum, and whether it is in ``x`` itself; of a tensor that is not contiguous too."""
    x = values(dist.get_rank(), (3, 5), dtype)
    turned = x.mT.clone(memory_format=torch.preserve_format)
    assert not turned.is_contiguous()
    result = joined(order).all_reduce(x)
    assert torch.equal(joined(order).all_reduce(turned), result.mT)
    return result.double(), result is x


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", SUMMED)
def test_all_reduce(four: Ranks, order: Order, dtype: torch.dtype) -> None:
    for result, same in four.run(reduced, order, dtype):
        np.testing.assert_array_equal(result, sum(everyone(order, (3, 5), dtype)))
        assert same


def reduced_meanwhile(order: Order, dtype: torch.dtype) -> Tensor:
    """The sum of what was given, though the rank has gone on with it, and with other collectives;
    asked for twice."""
    group = joined(order)
    x = values(dist.get_rank(), (3, 5), dtype).mT
    begun = [group.start_all_reduce(x), group.start_all_reduce(2 * x)]
    x.fill_(100)
    others = group.all_gather(torch.ones(2), 0)
    del begun[1]  # nobody waits for it
    (pending,) = begun
    again = pending.wait()
    assert pending.wait() is again and again.dtype == dtype
    assert len(others) == 2 * WORLD and others.sum() == 2 * WORLD
    assert group.all_reduce(torch.ones(1)) == WORLD
    return again.double()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", SUMMED)
def test_all_reduce_that_nobody_waits_for_yet(
    four: Ranks, order: Order, dtype: torch.dtype
) -> None:
    for result in four.run(reduced_meanwhile, order, dtype):
        wanted = np.sum(everyone(order, (3, 5), dtype), axis=0).T
        np.testing.assert_array_equal(result, wanted)


def begun_before_others() -> float:
    """The first rank begins, and goes on; only then do the others begin."""
    group, signals = joined((0, 1, 2, 3)), dist.new_group()
    first = dist.get_rank() == 0
    if not first:
        dist.barrier(signals)
    pending = group.start_all_reduce(torch.ones(1))
    if first:
        dist.barrier(signals)
    total = float(pending.wait())
    dist.destroy_process_group(signals)
    return total


def test_who_begins_first_waits_for_nobody(four: Ranks) -> None:
    assert four.run(begun_before_others) == [WORLD] * WORLD


def gathered(order: Order, shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    results = joined(order).gather(values(dist.get_rank(), shape, dtype))
    assert all(result.dtype == dtype for result in results)
    return [result.double() for result in results]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int16, torch.bool])
def test_gather(four: Ranks, order: Order, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    for results in four.run(gathered, order, shape, dtype):
        for result, wanted in zip(results, everyone(order, shape, dtype), strict=True):
            np.testing.assert_array_equal(result, wanted)


def refused() -> list[str]:
    """What is told of tensors that cannot be cut, and of process groups that do not fit."""
    group, told = joined((0, 1, 2, 3)), []
    pair = dist.new_group([0, 1])
    for attempt in (
        lambda: group.reduce_scatter(torch.zeros(4, 6), 1),
        lambda: group.all_to_all(torch.zeros(2, 8), 0, 1),
        lambda: Group((0, 1, 2, 3), 0, ((0, 1, 2, 3),), None),
        lambda: Group((0, 1), 0, ((0, 1), (2, 3)), dist.group.WORLD),
        lambda: Group((0, 1, 2, 3), 0, ((0, 1, 2, 3),), pair if dist.get_rank() < 2 else None),
    ):
        with pytest.raises(ValueError) as error:  # noqa: PT011 (the caller looks at it)
            attempt()
        told.append(str(error.value))
    return told


def test_what_does_not_fit_is_refused(four: Ranks) -> None:
    told = four.run(refused)[0]
    assert told == [
        "axis 1 of [4, 6] cannot be cut evenly for 4 ranks",
        "axis 0 of [2, 8] cannot be cut evenly for 4 ranks",
        "process_group must be given for the ranks (0, 1, 2, 3)",
        "process_group must be of the ranks (0, 1), got [0, 1, 2, 3]",
        "process_group must be of the ranks (0, 1, 2, 3), got [0, 1]",
    ]


def test_a_group_of_one_gives_back_what_it_gets() -> None:
    one, x = Group.single(2), torch.randn(3, 5).mT
    assert one.ranks == (2,) and one.partition == ((0,), (1,), (2,)) and one.size == 1
    assert one.all_reduce(x) is one.all_gather(x, 0) is one.gather(x)[0] is x
    assert one.reduce_scatter(x, 0) is one.all_to_all(x, 0, 1) is x
    assert one.start_all_reduce(x).wait() is x


@pytest.mark.parametrize(
    ("ranks", "position", "told"),
    [
        ((1,), 0, r"ranks must be a group of \(\(0,\),\), got \(1,\)"),
        ((0,), 1, "position must be 0 to 0, got 1"),
        ((0,), -1, "position must be 0 to 0, got -1"),
    ],
)
def test_a_rank_must_be_in_its_group(ranks: tuple[int, ...], position: int, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Group(ranks, position, ((0,),))
