"""Registers that hold a rank: one's own, and whose data a ring has brought."""

from __future__ import annotations

import numpy as np
import pytest
from rank_support import LNCS, fails, quiet, same, sample, share

import nkisim.collectives as ncc
import nkisim.isa as nisa
import nkisim.language as nl
from nkisim.errors import NkiValidationError
from nkisim.simulation import World


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
