"""Every collective against a dense statement in NumPy: ranks, cores, memories, types, groups."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_support import fails, group_of, handed_over, quiet, share, staged

import nkisim.collectives as ncc
import nkisim.isa as nisa
import nkisim.language as nl
from nkisim.errors import NkiMismatchError, NkiValidationError, NkiWarning
from nkisim.settings import Rules
from nkisim.simulation import World

RANKS = [1, 2, 4, 8]
LNCS = [1, 2]
STRICT = Rules(uninitialized="error")
OPS = {"add": nl.add, "minimum": nl.minimum, "maximum": nl.maximum}
DTYPES = [
    np.float32, ml_dtypes.bfloat16, np.float16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn,
    np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32,
]  # fmt: skip


def sample(shape: tuple[int, ...], dtype: Any, seed: int) -> Any:
    """Whole numbers, so that sums of a few are exact in all types but those of 8 bits."""
    rng = np.random.default_rng(seed)
    low = 0 if np.dtype(dtype).kind == "u" else -9
    return rng.integers(low, 10, shape).astype(np.float32).astype(dtype)


def reduced(arrays: list[Any], op: str) -> Any:
    """`op` over all arrays, exactly, and rounded or saturated once."""
    dtype = arrays[0].dtype
    stack = np.stack([array.astype(np.float64) for array in arrays])
    total = {"add": np.sum, "minimum": np.min, "maximum": np.max}[op](stack, axis=0)
    if dtype.kind in "iu":
        total = np.clip(total, np.iinfo(dtype).min, np.iinfo(dtype).max)
    return total.astype(np.float32).astype(dtype)


def same(found: Any, wanted: Any) -> None:
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))


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


# Permutes


@pytest.mark.parametrize("lnc", LNCS)
def test_permute_leaves_alone_who_is_no_target(lnc):
    pairs = [(0, 2), (1, 0), (3, 3)]

    def kernel(x, y):
        src, dst = staged(x, "src"), staged(y, "dst")
        ncc.collective_permute(srcs=[src], dsts=[dst], source_target_pairs=pairs)
        return handed_over(dst, "out")

    inputs = [(np.full((2, 2), r, np.int32), np.full((2, 2), 10 + r, np.int32)) for r in range(4)]
    found = quiet(World(4, lnc), kernel, inputs)
    assert [int(values[0, 0]) for values in found] == [1, 11, 0, 3]


@pytest.mark.parametrize("lnc", LNCS)
def test_nothing_is_written_where_no_target_is(lnc):
    def kernel(x, pairs):
        src = staged(x, "src")
        dst = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="dst")
        ncc.collective_permute([src], [dst], pairs)
        return handed_over(dst, "out")

    def run(pairs):
        xs = [np.full((2, 2), rank, np.int32) for rank in range(3)]
        return World(3, lnc, rules=STRICT).run(kernel, [(x, pairs) for x in xs])

    assert [int(values[0, 0]) for values in run([(0, 1), (1, 2), (2, 0)])] == [2, 0, 1]
    told = fails(NkiValidationError, lambda: run([(0, 1), (1, 2)]), "nothing has written")
    assert "on rank 0" in told


@pytest.mark.parametrize("buffer", [nl.sbuf, nl.shared_hbm])
@pytest.mark.parametrize("lnc", LNCS)
@pytest.mark.parametrize("op", OPS)
def test_permute_with_a_reduction_on_several_channels(op, lnc, buffer):
    order = (2, 0, 3, 1)
    channels = [3, 0, 1]

    def kernel(x, y):
        if buffer is nl.sbuf:
            a, b, c = (nl.ndarray(x.shape, x.dtype, nl.sbuf) for _ in range(3))
            nisa.dma_copy(a, x)
            nisa.dma_copy(b, y)
        else:
            a, b = staged(x, "a"), staged(y, "b")
            c = nl.ndarray(x.shape, x.dtype, buffer, name="c")
        parts = [slice(0, 1), slice(1, 3), slice(3, 7)]
        ncc.collective_permute_implicit_reduce(
            [[a[:, part]] for part in parts],
            [[b[:, part]] for part in parts],
            [[c[:, part]] for part in parts],
            ncc.ReplicaGroup([order]),
            OPS[op],
            channel_ids=channels,
        )
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        share(out, c)
        return out

    inputs = [
        (sample((4, 7), np.float32, rank), sample((4, 7), np.float32, rank + 50))
        for rank in range(4)
    ]
    found = quiet(World(4, lnc), kernel, inputs)
    for place, rank in enumerate(order):
        same(found[rank], reduced(list(inputs[order[place - 1]]), op))


def test_channels_count_by_themselves():
    """Two channels in one call on some ranks' turn, then one by one, always in the same order."""

    def kernel(x):
        a = staged(x, "a")
        b, c = (nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name=name) for name in "bc")
        ncc.collective_permute_implicit([[a]], [[b]], (), channel_ids=[1])
        ncc.collective_permute_implicit([[b]], [[c]], ())
        return handed_over(c, "out")

    xs = [sample((2, 2), np.float32, rank) for rank in range(5)]
    found = quiet(World(5), kernel, [(x,) for x in xs])
    for rank in range(5):
        same(found[rank], xs[rank - 2])


# Counts for each rank


def ragged_inputs(ranks, gathers, has_rdispls, known, seed):
    """Sources, what was in the destinations, metadata, and both as they must be afterwards."""
    rng = np.random.default_rng(seed)
    room = 6
    sends = rng.integers(0, room + 1, (ranks, ranks))
    if gathers:
        sends[:] = sends[:, :1]
    sources = [rng.integers(1, 1000, (ranks * room,)).astype(np.int32) for _ in range(ranks)]
    before = [np.full((ranks, room), -1 - rank, np.int32) for rank in range(ranks)]
    rows = 4 if has_rdispls else 3
    metadata, after, results = [], [], []
    for rank in range(ranks):
        starts = rng.integers(0, ranks * room - room + 1, ranks)
        table = np.full((rows, ranks), 7, np.uint32)
        table[0], table[1] = sends[rank], starts
        received = sends[:, 0] if gathers else sends[:, rank]
        if known:
            table[2] = received
        if has_rdispls:
            # from the last rank's to the first one's, with a gap at the front
            ends = np.cumsum(received[::-1])[::-1]
            table[3] = ranks * room - ends
        metadata.append(table)
        done = table.copy()
        done[2] = received
        after.append(done)
    for rank in range(ranks):
        flat = before[rank].copy().reshape(-1)
        for sender in range(ranks):
            column = 0 if gathers else rank
            count, start = metadata[sender][0, column], metadata[sender][1, column]
            place = metadata[rank][3, sender] if has_rdispls else sender * room
            flat[place : place + count] = sources[sender][start : start + count]
        results.append(flat.reshape(ranks, room))
    return sources, before, metadata, after, results


def ragged(x, y, table, gathers, known, has_rdispls, in_sbuf):
    src, dst = staged(x, "src"), staged(y, "dst")
    if in_sbuf:
        counts = nl.ndarray((1, *table.shape), table.dtype, nl.sbuf)
        nisa.dma_copy(counts, table.reshape((1, *table.shape)))
    else:
        counts = staged(table, "counts")
    function = ncc.all_gather_v if gathers else ncc.all_to_all_v
    function(
        [src], [dst], (), counts, recv_counts_known=known, has_rdispls=has_rdispls, name="exchange"
    )
    shown = nl.ndarray(table.shape, table.dtype, nl.shared_hbm, name="shown")
    if in_sbuf and nl.program_id(0) == nl.num_programs() - 1:
        nisa.dma_copy(shown.reshape((1, *table.shape)), counts)
    elif not in_sbuf:
        share(shown, counts)
    return handed_over(dst, "out"), shown


@pytest.mark.parametrize("in_sbuf", [False, True])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("has_rdispls", [False, True])
@pytest.mark.parametrize(
    ("gathers", "ranks", "lnc"), [(True, 4, 2), (False, 4, 2), (False, 8, 2), (False, 3, 1)]
)
def test_each_rank_sends_what_it_likes(gathers, ranks, lnc, has_rdispls, known, in_sbuf):
    sources, before, metadata, after, results = ragged_inputs(
        ranks, gathers, has_rdispls, known, ranks
    )
    inputs = [
        (sources[r], before[r], metadata[r], gathers, known, has_rdispls, in_sbuf)
        for r in range(ranks)
    ]
    found = quiet(World(ranks, lnc), ragged, inputs)
    for rank, (values, counts) in enumerate(found):
        same(values, results[rank])
        np.testing.assert_array_equal(counts, after[rank])


def test_only_what_a_ragged_gather_needs_of_the_metadata_must_be_written():
    def kernel(x):
        src = staged(x, "src")
        dst = nl.ndarray((4, x.shape[0]), x.dtype, nl.shared_hbm, name="dst")
        counts = nl.ndarray((1, 3, 4), nl.uint32, nl.sbuf)
        nisa.memset(counts[:, 0, 0:1], x.shape[0])
        nisa.memset(counts[:, 1, 0:1], 0)
        ncc.all_gather_v([src], [dst], (), counts)
        return handed_over(dst, "out")

    xs = [sample((4,), np.int32, rank) for rank in range(4)]
    for found in quiet(World(4, 2), kernel, [(x,) for x in xs]):
        same(found, np.stack(xs))


def test_ragged_counts_must_fit_and_agree():
    def run(change, known=False, lnc=2, ranks=4, gathers=True):
        sources, before, metadata, _, _ = ragged_inputs(ranks, gathers, False, known, 1)
        change(metadata)
        return World(ranks, lnc).run(
            ragged,
            [
                (sources[r], before[r], metadata[r], gathers, known, False, False)
                for r in range(ranks)
            ],
        )

    def too_many(metadata):
        metadata[1][0, 0] = 100

    def unexpected(metadata):
        metadata[2][2, 1] += 1

    fails(NkiValidationError, lambda: run(too_many), "metadata_tensor of rank 1", "100 elements")
    fails(NkiValidationError, lambda: run(unexpected, known=True), "rank 2 expects")
    fails(NkiValidationError, lambda: run(lambda m: None, ranks=3), "4 ranks at LNC2")
    fails(NkiValidationError, lambda: run(lambda m: None, lnc=1), "4 ranks at LNC2")


def test_the_cores_of_a_rank_must_have_the_same_metadata():
    def kernel(x):
        src = staged(x, "src")
        dst = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="dst")
        counts = nl.ndarray((1, 3, 2), nl.uint32, nl.sbuf)
        nisa.memset(counts, nl.program_id(0))
        ncc.all_to_all_v([src], [dst], (), counts)
        return handed_over(dst, "out")

    xs = [sample((4,), np.int32, rank) for rank in range(2)]
    fails(
        NkiValidationError, lambda: World(2, 2).run(kernel, [(x,) for x in xs]), "differs between"
    )


# Registers


@pytest.mark.parametrize("lnc", LNCS)
def test_the_rank_as_an_offset(lnc):
    def kernel(table):
        mine = ncc.rank_id(name="who")
        out = nl.ndarray((1, table.shape[1]), table.dtype, nl.shared_hbm)
        if nl.program_id(0) == nl.num_programs() - 1:
            nisa.dma_copy(out, table.ap([[4, 1], [1, 4]], scalar_offset=mine, indirect_dim=0))
        return out

    table = np.arange(32, dtype=np.float32).reshape(8, 4)
    found, trace = World(8, lnc).launch(kernel, [(table,)] * 8)
    for rank in range(8):
        same(found[rank], table[rank : rank + 1])
    for core in trace.cores:
        assert [(i.op, i.name) for i in core][:1] == [("rank_id", "who")]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 3, 1)])
@pytest.mark.parametrize("lnc", LNCS)
def test_whose_data_a_ring_holds(lnc, order):
    """A gather by a ring: what arrives goes to the row of the rank that it came from."""
    groups = ncc.ReplicaGroup([order])

    def kernel(x):
        n, width = len(order), x.shape[1]
        out = nl.ndarray((n, width), x.dtype, nl.shared_hbm, name="out")
        held = [nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name=f"held{i}") for i in range(n)]
        share(held[0], x)
        for i in range(n):
            whose = ncc.collective_permute_implicit_current_processing_rank_id(
                i, groups, channel_id=2
            )
            if i + 1 < n:
                ncc.collective_permute_implicit(
                    [[held[i]]], [[held[i + 1]]], groups, channel_ids=[2]
                )
            if nl.program_id(0) == 0:
                row = out.ap([[width, 1], [1, width]], scalar_offset=whose, indirect_dim=0)
                nisa.dma_copy(row, held[i])
        return out

    xs = [sample((1, 4), np.float32, rank) for rank in range(4)]
    for found in quiet(World(4, lnc), kernel, [(x,) for x in xs]):
        same(found, np.concatenate(xs))


def test_an_iteration_may_be_a_register():
    def kernel(x, table):
        number = nl.ndarray((1, 1), nl.int32, nl.sbuf)
        nisa.dma_copy(number, table)
        register = nisa.register_alloc()
        nisa.register_load(register, number)
        whose = ncc.collective_permute_implicit_current_processing_rank_id(register, ())
        out = nl.ndarray((1, 1), x.dtype, nl.shared_hbm)
        nisa.dma_copy(out, x.ap([[1, 1], [1, 1]], scalar_offset=whose, indirect_dim=0))
        return out

    x = np.arange(4, dtype=np.float32).reshape(4, 1)
    steps = [np.array([[step]], np.int32) for step in (0, 1, 2, 7)]
    found = quiet(World(4), kernel, [(x, step) for step in steps])
    assert [float(values[0, 0]) for values in found] == [0.0, 0.0, 0.0, 0.0]
    found = World(4, numerics=False).run(kernel, [(x, step) for step in steps])
    assert {values.shape for values in found} == {(1, 1)}


@pytest.mark.parametrize(
    ("iteration", "channel", "text"),
    [(-1, 0, "iteration_id is -1"), (0, 4, "channel_id has channel 4"), (0, -1, "channel -1"),
     (0, True, "channel True"), (1.5, 0, "iteration_id is 1.5"), (0, None, "channel None")],
)  # fmt: skip
def test_what_a_ring_position_needs(iteration, channel, text):
    def kernel(x):
        ncc.collective_permute_implicit_current_processing_rank_id(iteration, (), channel)
        return x

    fails(
        NkiValidationError, lambda: World(2).run(kernel, [(np.ones((1, 1), np.float32),)] * 2), text
    )


def test_an_unset_register_is_no_iteration():
    def kernel(x):
        ncc.collective_permute_implicit_current_processing_rank_id(nisa.register_alloc(), ())
        return x

    xs = [(np.ones((1, 1), np.float32),)]
    fails(NkiValidationError, lambda: World(1).run(kernel, xs), "nothing has set")


# Constraints


def rejected(body, text, kind=NkiValidationError, ranks=2, lnc=1, x=None, **options):
    array = np.ones((4, 512), np.float32) if x is None else x

    def kernel(x):
        body(x)
        return x

    return fails(
        kind, lambda: World(ranks, lnc, **options).run(kernel, [(array.copy(),)] * ranks), text
    )


def hbm(name, shape=(4, 512), dtype=nl.float32, buffer=nl.shared_hbm):
    made = nl.ndarray(shape, dtype, buffer, name=name)
    if buffer is nl.shared_hbm:
        share(made, nl.zeros(shape, dtype))
    return made


def sbuf(shape=(4, 512), dtype=nl.float32):
    return nl.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (lambda x: ncc.all_reduce([hbm("a")], [hbm("b", (4, 4))], (), nl.add),
         NkiValidationError, "dst is NkiTensor('b'"),
        (lambda x: ncc.all_reduce([hbm("a")], [hbm("b", dtype=nl.bfloat16)], (), nl.add),
         NkiValidationError, "dst is bfloat16, src float32"),
        (lambda x: ncc.all_reduce([hbm("a")], [sbuf()], (), nl.add),
         NkiValidationError, "sbuf and shared_hbm"),
        (lambda x: ncc.all_reduce([nl.zeros((4, 512), nl.float32, nl.psum)], [sbuf()], (), nl.add),
         NkiValidationError, "in psum"),
        (lambda x: ncc.all_reduce([sbuf((4, 511))], [sbuf((4, 511))], (), nl.add),
         NkiValidationError, "at least 512"),
        (lambda x: ncc.all_reduce([sbuf(), sbuf()], [sbuf(), sbuf()], (), nl.add),
         NkiValidationError, "srcs has 2 tensors"),
        (lambda x: ncc.all_reduce([hbm("a")], [hbm("b"), hbm("c")], (), nl.add),
         NkiValidationError, "dsts 2"),
        (lambda x: ncc.all_reduce([], [], (), nl.add), NkiValidationError, "at least one"),
        (lambda x: ncc.all_reduce([hbm("a")], [hbm("b")], (), nl.multiply),
         NkiValidationError, "op is 'multiply'"),
        (lambda x: ncc.all_reduce([hbm("a")], [hbm("b")], (), None),
         NkiValidationError, "op is None"),
        (lambda x: ncc.all_reduce(hbm("a"), [hbm("b")], (), nl.add),
         TypeError, "srcs is NkiTensor"),
        (lambda x: ncc.all_reduce([hbm("a")], [3], (), nl.add), TypeError, "dsts is [3]"),
        (lambda x: ncc.all_reduce([hbm("a")], [hbm("b")], (), nl.add, priority=4),
         NkiValidationError, "priority is 4"),
        (lambda x: ncc.all_reduce([hbm("a")], [hbm("b")], [[0]], nl.add),
         NkiValidationError, "must be in one of the groups"),
        (lambda x: ncc.all_reduce([hbm("a")], [hbm("b")], [[0, 5], [1]], nl.add),
         NkiValidationError, "rank 5"),
        (lambda x: ncc.all_gather([hbm("a")], [hbm("b", (8, 512))], (), 1),
         NkiValidationError, "collective_dim is 1; in HBM"),
        (lambda x: ncc.all_gather([hbm("a")], [hbm("b")], (), 0),
         NkiValidationError, "its shape must be [8, 512]"),
        (lambda x: ncc.all_gather([sbuf((2, 3, 4))], [sbuf((2, 6, 4))], (), 1),
         NkiValidationError, "2 dimensions"),
        (lambda x: ncc.reduce_scatter([hbm("a", (3, 2))], [hbm("b", (1, 2))], (), 0, nl.add),
         NkiValidationError, "multiple of the 2 ranks"),
        (lambda x: ncc.all_to_all([sbuf()], [sbuf()], (), 0), NkiValidationError, "must be in HBM"),
        (lambda x: ncc.collective_permute([hbm("a")], [hbm("b")], [(0, 1), (1, 1)]),
         NkiValidationError, "rank 1 as a target twice"),
        (lambda x: ncc.collective_permute([hbm("a")], [hbm("b")], [(0, 1, 1)]),
         NkiValidationError, "(0, 1, 1)"),
        (lambda x: ncc.collective_permute([hbm("a")], [hbm("b")], [(0, 2)]),
         NkiValidationError, "ranks are 0 to 1"),
        (lambda x: ncc.collective_permute_implicit([hbm("a")], [[hbm("b")]], ()),
         TypeError, "srcs_by_channel[0]"),
        (lambda x: ncc.collective_permute_implicit([[hbm("a"), hbm("c")]], [[hbm("b")]], ()),
         NkiValidationError, "srcs_by_channel[0] has 2 tensors"),
        (lambda x: ncc.collective_permute_implicit([[hbm("a")]], [[hbm("b")]], (), [0, 1]),
         NkiValidationError, "channel_ids is [0, 1]"),
        (lambda x: ncc.collective_permute_implicit([[hbm("a")]], [[hbm("b")]], (), [4]),
         NkiValidationError, "channels are 0 to 3"),
        (lambda x: ncc.collective_permute_implicit([], [], (), []), NkiValidationError, "1 to 4"),
        (lambda x: ncc.collective_permute_implicit_reduce(
            [[hbm("a")]], [[sbuf()]], [[hbm("b")]], (), nl.add),
         NkiValidationError, "memory of NkiTensor('a'"),
        (lambda x: ncc.collective_permute_implicit_reduce(
            [[hbm("a")]], [[hbm("c", (2, 2))]], [[hbm("b")]], (), nl.add),
         NkiValidationError, "srcs1_by_channel is NkiTensor('c'"),
    ],
)  # fmt: skip
def test_constraints(body, kind, text):
    rejected(body, text, kind)


def test_a_source_must_have_been_written():
    for lnc in LNCS:
        rejected(
            lambda x: ncc.all_reduce(
                [nl.ndarray((2, 2), nl.float32, nl.shared_hbm, name="a")],
                [hbm("b", (2, 2))],
                (),
                nl.add,
            ),
            "nothing has written",
            lnc=lnc,
            rules=STRICT,
        )


def test_priority_needs_gen4():
    rejected(
        lambda x: ncc.all_reduce([hbm("a")], [hbm("b")], (), nl.add, priority=1),
        "needs gen4",
        target="gen3",
    )


# Which HBM tensors


def reduce_from(src, dst):
    ncc.all_reduce([src], [dst], (), nl.add)


def gather_both_regions(x):
    srcs = [hbm("a"), hbm("c", buffer=nl.private_hbm)]
    ncc.all_gather(srcs, [hbm("b", (8, 512)), hbm("d", (8, 512))], (), 0)


BUFFERS = {
    "argument": (lambda x: reduce_from(x, hbm("b")), 1, "argument of the kernel"),
    "argument at LNC2": (lambda x: reduce_from(hbm("b"), x), 2, "argument of the kernel"),
    "unnamed": (lambda x: reduce_from(hbm(""), hbm("b")), 1, "without a name"),
    "unnamed at LNC2": (lambda x: reduce_from(hbm("a"), hbm("")), 2, "without a name"),
    "mixed": (gather_both_regions, 1, "private and in shared HBM"),
}


@pytest.mark.parametrize("case", BUFFERS)
def test_hbm_tensors_that_a_collective_may_not_use(case):
    body, lnc, text = BUFFERS[case]
    rejected(body, text, lnc=lnc)


def test_private_hbm_does_not_do_for_two_cores():
    def body(x):
        made = nl.ndarray((4, 512), nl.float32, nl.private_hbm, name="a")
        nisa.dma_copy(made, x)
        ncc.all_reduce([made], [hbm("b")], (), nl.add)

    rejected(body, "on shared HBM", lnc=2)


@pytest.mark.parametrize("lnc", LNCS)
def test_the_buffer_rule_has_levels(lnc):
    def kernel(x):
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        ncc.all_reduce([x], [out], (), nl.add)
        return out

    def run(level):
        xs = [np.full((2, 2), rank + 1, np.float32) for rank in range(2)]
        return World(2, lnc, rules=Rules(collective_buffers=level)).run(kernel, [(x,) for x in xs])

    fails(NkiValidationError, lambda: run("error"), "[collective_buffers]")
    with pytest.warns(NkiWarning) as seen:
        found = run("warn")
    told = "\n".join(str(warning.message) for warning in seen)
    for text in ("an argument of the kernel", "without a name", "which a collective used"):
        assert text in told
    assert [float(values[0, 0]) for values in found] == [3.0, 3.0]
    rules = Rules(collective_buffers="off")
    xs = [np.full((2, 2), rank + 1, np.float32) for rank in range(2)]
    found = quiet(World(2, lnc, rules=rules), kernel, [(x,) for x in xs])
    assert [float(values[0, 0]) for values in found] == [3.0, 3.0]


def test_a_result_may_not_be_a_collectives_tensor():
    def kernel(x):
        src = staged(x, "src")
        dst = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="dst")
        ncc.all_reduce([src], [dst], (), nl.add)
        return dst

    xs = [(np.ones((2, 2), np.float32),)] * 2
    fails(NkiValidationError, lambda: World(2).run(kernel, xs), "'dst'", "which a collective used")


def test_the_cores_of_a_rank_must_mean_the_same_bytes():
    def kernel(x):
        src = staged(x, "src")
        dst = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="dst")
        half = slice(0, 1) if nl.program_id(0) == 0 else slice(1, 2)
        ncc.all_reduce([src[half]], [dst[half]], (), nl.add)
        return handed_over(dst, "out")

    xs = [(np.ones((2, 2), np.float32),)] * 2
    fails(
        NkiMismatchError,
        lambda: World(2, 2).run(kernel, xs),
        "same tensors",
        "core 0 at",
        "core 1 at",
    )


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
