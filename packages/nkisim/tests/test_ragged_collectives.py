"""Collectives whose counts each rank chooses: what arrives where, and the metadata afterwards."""

from __future__ import annotations

import numpy as np
import pytest
from rank_support import fails, handed_over, quiet, same, sample, share, staged

import nkisim.collectives as ncc
import nkisim.isa as nisa
import nkisim.language as nl
from nkisim.errors import NkiValidationError
from nkisim.simulation import World


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
