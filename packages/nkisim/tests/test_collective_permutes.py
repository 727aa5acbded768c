"""Permutes among ranks: by pairs, around a ring, with a reduction, on channels."""

from __future__ import annotations

import numpy as np
import pytest
from isa_tiles import STRICT
from rank_support import LNCS, OPS, fails, handed_over, quiet, reduced, same, sample, share, staged

import nkisim.collectives as ncc
import nkisim.isa as nisa
import nkisim.language as nl
from nkisim.errors import NkiValidationError
from nkisim.simulation import World


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
