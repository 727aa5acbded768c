"""Every collective against a dense statement in NumPy: ranks, cores, memories, types, groups."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_support import LNCS, OPS, group_of, handed_over, quiet, reduced, same, sample, staged

import nkisim.collectives as ncc
import nkisim.isa as nisa
import nkisim.language as nl
from nkisim.simulation import World

RANKS = [1, 2, 4, 8]
DTYPES = [
    np.float32, ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn,
    np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32,
]  # fmt: skip


# What each rank receives, said with whole arrays


def dense(name: str, xs: list[Any], group: list[int], rank: int, op: str, dim: int) -> Any:
    mine = [xs[r] for r in group]
    place = group.index(rank)
    if name == "all_reduce":
        return reduced(mine, op)
    if name == "all_gather":
        return np.concatenate(mine, axis=dim)
    if name == "reduce_scatter":
        return np.split(reduced(mine, op), len(group), axis=dim)[place]
    if name == "all_to_all":
        return np.concatenate([np.split(x, len(group), axis=dim)[place] for x in mine], axis=dim)
    assert name == "collective_permute_implicit"
    return mine[place - 1]


def issue(name: str, src: Any, dst: Any, groups: Any, op: str, dim: int) -> None:
    group = ncc.ReplicaGroup(groups)
    if name == "all_reduce":
        ncc.all_reduce(srcs=[src], dsts=[dst], replica_group=group, op=OPS[op])
    elif name == "all_gather":
        ncc.all_gather(srcs=[src], dsts=[dst], replica_group=group, collective_dim=dim)
    elif name == "reduce_scatter":
        ncc.reduce_scatter([src], [dst], group, collective_dim=dim, op=OPS[op])
    elif name == "all_to_all":
        ncc.all_to_all([src], [dst], group, collective_dim=dim)
    else:
        ncc.collective_permute_implicit([[src]], [[dst]], group)


def received_shape(name: str, shape: tuple[int, ...], ranks: int, dim: int) -> tuple[int, ...]:
    factors = {"all_gather": ranks, "reduce_scatter": 1 / ranks}
    sizes = list(shape)
    sizes[dim] = int(sizes[dim] * factors.get(name, 1))
    return tuple(sizes)


def in_hbm(x, name, groups, ranks, op, buffer):
    src = staged(x, "src", buffer)
    dst = nl.ndarray(received_shape(name, x.shape, ranks, 0), x.dtype, buffer, name="dst")
    issue(name, src, dst, groups, op, 0)
    return handed_over(dst, "out")


NAMES = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute_implicit"]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("lnc", LNCS)
@pytest.mark.parametrize("name", NAMES)
def test_in_shared_hbm(name, lnc, ranks):
    xs = [sample((8, 6), np.float32, rank) for rank in range(ranks)]
    found = quiet(
        World(ranks, lnc), in_hbm, [(x, name, (), ranks, "add", nl.shared_hbm) for x in xs]
    )
    for rank in range(ranks):
        same(found[rank], dense(name, xs, list(range(ranks)), rank, "add", 0))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_in_private_hbm_of_ranks_of_one_core(name, ranks):
    xs = [sample((8, 6), np.float32, rank) for rank in range(ranks)]
    found = quiet(World(ranks), in_hbm, [(x, name, (), ranks, "add", nl.private_hbm) for x in xs])
    for rank in range(ranks):
        same(found[rank], dense(name, xs, list(range(ranks)), rank, "add", 0))


def in_sbuf(x, name, groups, ranks, op, dim):
    """Each core exchanges data of its own: x is [cores, P, N]."""
    core = nl.program_id(0)
    shape = x.shape[1:]
    src = nl.ndarray(shape, x.dtype, nl.sbuf)
    dst = nl.ndarray(received_shape(name, shape, ranks, dim), x.dtype, nl.sbuf)
    nisa.dma_copy(src, x[core].reshape(shape))
    issue(name, src, dst, groups, op, dim)
    out = nl.ndarray((nl.num_programs(), *dst.shape), x.dtype, nl.shared_hbm)
    nisa.dma_copy(out[core].reshape(dst.shape), dst)
    return out


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("lnc", LNCS)
@pytest.mark.parametrize(
    ("name", "dim"),
    [("all_reduce", 0), ("all_gather", 0), ("all_gather", 1), ("reduce_scatter", 0),
     ("reduce_scatter", 1), ("collective_permute_implicit", 0)],
)  # fmt: skip
def test_in_sbuf_equally_numbered_cores_exchange(name, dim, lnc, ranks):
    xs = [sample((lnc, 16, 512), np.float32, rank) for rank in range(ranks)]
    found = quiet(World(ranks, lnc), in_sbuf, [(x, name, (), ranks, "add", dim) for x in xs])
    for rank in range(ranks):
        for core in range(lnc):
            mine = [x[core] for x in xs]
            wanted = dense(name, mine, list(range(ranks)), rank, "add", dim)
            same(found[rank][core], wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("lnc", LNCS)
def test_types_and_operators(lnc, op, dtype):
    xs = [sample((4, 8), dtype, rank) for rank in range(4)]
    for name in ("all_reduce", "reduce_scatter"):
        found = quiet(World(4, lnc), in_hbm, [(x, name, (), 4, op, nl.shared_hbm) for x in xs])
        for rank in range(4):
            same(found[rank], dense(name, xs, [0, 1, 2, 3], rank, op, 0))


@pytest.mark.parametrize("dtype", [*DTYPES, np.bool_])
def test_types_that_are_only_moved(dtype):
    rng = np.random.default_rng(3)
    bits = [rng.integers(0, 2 if dtype is np.bool_ else 256, (4, 16), np.uint8) for _ in range(4)]
    xs = [b.view(dtype) for b in bits]
    for name in ("all_gather", "all_to_all", "collective_permute_implicit"):
        found = quiet(World(4, 2), in_hbm, [(x, name, (), 4, "add", nl.shared_hbm) for x in xs])
        for rank in range(4):
            wanted = dense(name, xs, [0, 1, 2, 3], rank, "add", 0)
            assert found[rank].tobytes() == wanted.tobytes()


@st.composite
def worlds(draw):
    """A number of ranks, and groups of them of one size in any order."""
    size, count = draw(st.sampled_from([(1, 3), (2, 1), (2, 2), (2, 4), (3, 2), (4, 2), (8, 1)]))
    order = draw(st.permutations(range(size * count)))
    return size, [tuple(order[i * size : (i + 1) * size]) for i in range(count)]


@settings(max_examples=30, deadline=None)
@given(worlds(), st.sampled_from(NAMES), st.sampled_from(LNCS), st.integers(0, 2**31))
def test_groups_in_any_order_split_the_world(world, name, lnc, seed):
    size, groups = world
    ranks = size * len(groups)
    xs = [sample((size * 2, 3), np.float32, seed + rank) for rank in range(ranks)]
    found = quiet(
        World(ranks, lnc), in_hbm, [(x, name, groups, size, "add", nl.shared_hbm) for x in xs]
    )
    for rank in range(ranks):
        same(found[rank], dense(name, xs, group_of(groups, rank, ranks), rank, "add", 0))


def test_two_groupings_of_the_same_ranks_take_turns():
    rows, columns = [[0, 1], [2, 3]], [[0, 2], [1, 3]]

    def kernel(x):
        src = staged(x, "src")
        across = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="across")
        down = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="down")
        ncc.all_reduce([src], [across], rows, nl.add)
        ncc.all_reduce([across], [down], columns, nl.maximum)
        return handed_over(down, "out")

    xs = [sample((4, 4), np.float32, rank) for rank in range(4)]
    for lnc in LNCS:
        found = quiet(World(4, lnc), kernel, [(x,) for x in xs])
        for values in found:
            same(values, np.maximum(xs[0] + xs[1], xs[2] + xs[3]))


# Once, whoever issues


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_both_cores_issue_it_and_it_happens_once(ranks):
    """In place, a second time would add the sums again."""

    def kernel(x):
        total = staged(x, "total")
        for _ in range(3):
            ncc.all_reduce([total], [total], (), nl.add)
        return handed_over(total, "out")

    xs = [sample((4, 4), np.float32, rank) for rank in range(ranks)]
    for lnc in LNCS:
        for found in quiet(World(ranks, lnc), kernel, [(x,) for x in xs]):
            same(found, (sum(xs) * ranks * ranks).astype(np.float32))


def test_a_source_may_be_the_destination_of_another():
    def kernel(x, y):
        a, b = staged(x, "a"), staged(y, "b")
        ncc.all_reduce(srcs=[a, b], dsts=[b, a], replica_group=(), op=nl.add)
        return handed_over(a, "out_a"), handed_over(b, "out_b")

    xs = [(sample((2, 2), np.float32, r), sample((2, 2), np.float32, r + 9)) for r in range(2)]
    for a, b in quiet(World(2, 2), kernel, xs):
        same(a, xs[0][1] + xs[1][1])
        same(b, xs[0][0] + xs[1][0])


@pytest.mark.parametrize("lnc", LNCS)
@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_lists_of_tensors_of_different_shapes(name, lnc):
    def kernel(x, y):
        srcs = [staged(x, "x"), staged(y, "y")]
        dsts = [
            nl.ndarray(
                received_shape(name, src.shape, 2, 0), src.dtype, nl.shared_hbm, name=f"d{i}"
            )
            for i, src in enumerate(srcs)
        ]
        if name == "all_reduce":
            ncc.all_reduce(srcs, dsts, (), nl.maximum)
        elif name == "all_gather":
            ncc.all_gather(srcs, dsts, (), 0)
        elif name == "reduce_scatter":
            ncc.reduce_scatter(srcs, dsts, (), 0, nl.maximum)
        else:
            ncc.all_to_all(srcs, dsts, (), 0)
        return [handed_over(dst, f"out{i}") for i, dst in enumerate(dsts)]

    inputs = [
        (sample((4, 3), np.float32, rank), sample((2, 5), ml_dtypes.bfloat16, rank))
        for rank in range(2)
    ]
    found = quiet(World(2, lnc), kernel, inputs)
    for rank in range(2):
        for index in range(2):
            xs = [entry[index] for entry in inputs]
            same(found[rank][index], dense(name, xs, [0, 1], rank, "maximum", 0))


def test_views_are_exchanged_and_the_rest_stays():
    def kernel(x):
        buffer = staged(x, "buffer")
        ncc.collective_permute_implicit([[buffer[:, 0:2]]], [[buffer[:, 4:6]]], ())
        return handed_over(buffer, "out")

    xs = [sample((6, 8), np.float32, rank) for rank in range(3)]
    found = quiet(World(3, 2), kernel, [(x,) for x in xs])
    for rank in range(3):
        wanted = xs[rank].copy()
        wanted[:, 4:6] = xs[rank - 1][:, 0:2]
        same(found[rank], wanted)


# Without values


def test_shapes_without_values():
    from nkisim.host import TensorSpec

    spec = TensorSpec((8, 6), nl.bfloat16)
    for name in NAMES:
        inputs = [(spec, name, (), 4, "add", nl.shared_hbm)] * 4
        found, trace = World(4, 2, numerics=False).launch(in_hbm, inputs)
        assert found[0] == TensorSpec(received_shape(name, (8, 6), 4, 0), nl.bfloat16)
        meetings = [i.meeting for core in trace.cores for i in core if i.op == name]
        assert len(meetings) == 8 and len(set(meetings)) == 1
        assert meetings[0].cores == tuple(range(8))
        assert (meetings[0].ranks, meetings[0].bytes_per_rank) == (4, 96)
