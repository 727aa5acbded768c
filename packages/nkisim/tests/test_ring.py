"""A ring of permutes with prefetch: equal to the dense result, and races where one is planted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rank_support import bounded, fails, handed_over, line_of, my_rows, quiet, share, staged

import nkisim.collectives as ncc
import nkisim.isa as nisa
import nkisim.language as nl
from nkisim.errors import NkiValidationError, NkiWarning
from nkisim.settings import Rules
from nkisim.simulation import World

SHAPE = (6, 32)
RINGS = [(ranks, depth) for ranks in (2, 4, 8) for depth in range(1, ranks)]


def ring(x, ranks, depth):
    """Half of what was there plus the block of each rank in turn, beginning with the own one.

    `depth` permutes are under way before a block is used; there is a buffer more than that.
    """
    buffers = [
        nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name=f"buffer{i}") for i in range(depth + 1)
    ]
    share(buffers[0], x)
    rows = my_rows(x.shape[0])
    total = nl.zeros((rows.stop - rows.start, x.shape[1]), nl.float32)
    sent = 0
    for step in range(ranks):
        while sent < min(step + depth, ranks - 1):
            src, dst = buffers[sent % (depth + 1)], buffers[(sent + 1) % (depth + 1)]
            ncc.collective_permute_implicit([[src]], [[dst]], ())
            sent += 1
        block = nl.ndarray(total.shape, x.dtype, nl.sbuf)
        nisa.dma_copy(block, buffers[step % (depth + 1)][rows])
        nisa.scalar_tensor_tensor(total, total, nl.multiply, 0.5, nl.add, block)
    out = nl.ndarray(x.shape, nl.float32, nl.shared_hbm, name="out")
    nisa.dma_copy(out[rows], total)
    return out


def blocks(ranks: int) -> list[Any]:
    rng = np.random.default_rng(ranks)
    return [rng.standard_normal(SHAPE).astype(np.float32) for _ in range(ranks)]


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize(("ranks", "depth"), RINGS)
def test_a_ring_with_prefetch_is_the_dense_result_bit_for_bit(ranks, depth, lnc):
    xs = blocks(ranks)
    found = quiet(World(ranks, lnc), ring, [(x, ranks, depth) for x in xs])
    for rank in range(ranks):
        wanted = np.zeros(SHAPE, np.float32)
        for step in range(ranks):
            wanted = wanted * np.float32(0.5) + xs[(rank - step) % ranks]
        np.testing.assert_array_equal(found[rank], wanted)


def test_a_ring_runs_alike_every_time():
    xs = blocks(8)
    world = World(8, 2)
    first = quiet(world, ring, [(x, 8, 3) for x in xs])
    for _ in range(5):
        again = quiet(world, ring, [(x, 8, 3) for x in xs])
        assert all(a.tobytes() == b.tobytes() for a, b in zip(first, again, strict=True))


def test_a_ring_on_several_channels_at_a_time():
    """Each channel carries its columns; the two halves are two permutes in flight at once."""

    def kernel(x, ranks):
        held = staged(x, "held0")
        half = x.shape[1] // 2
        parts = [slice(0, half), slice(half, x.shape[1])]
        for step in range(1, ranks):
            new = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name=f"held{step}")
            ncc.collective_permute_implicit(
                [[held[:, part]] for part in parts],
                [[new[:, part]] for part in parts],
                (),
                channel_ids=[0, 1],
            )
            held = new
        return handed_over(held, "out")

    xs = blocks(4)
    for lnc in (1, 2):
        found = quiet(World(4, lnc), kernel, [(x, 4) for x in xs])
        for rank in range(4):
            np.testing.assert_array_equal(found[rank], xs[(rank + 1) % 4])


# Planted races. Each computes the right thing here, where a permute is done when it is issued.


def writes_the_source(x):
    src = staged(x, "src")
    dst = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="dst")
    ncc.collective_permute_implicit([[src]], [[dst]], ())  # sent
    rows = my_rows(x.shape[0])
    nisa.dma_copy(src[rows], x[rows])  # written
    return handed_over(dst, "out")


def writes_part_of_the_source(x):
    src = staged(x, "src")
    dst = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="dst")
    ncc.collective_permute_implicit([[src[:, 8:16]]], [[dst[:, 8:16]]], ())  # sent
    nisa.dma_copy(src[:, 15:20], x[:, 15:20])  # written
    return handed_over(dst, "out")


def overwrites_the_destination(x):
    src = staged(x, "src")
    dst = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="dst")
    ncc.collective_permute_implicit([[src]], [[dst]], ())  # sent
    rows = my_rows(x.shape[0])
    nisa.dma_copy(dst[rows], x[rows])  # written
    return handed_over(dst, "out")


def sends_twice(x):
    src = staged(x, "src")
    dst = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="dst")
    ncc.collective_permute_implicit([[src]], [[dst]], ())  # sent
    ncc.collective_permute_implicit([[src]], [[dst]], ())  # written
    return handed_over(dst, "out")


def reduces_over_the_source(x):
    a, b, dst = staged(x, "a"), staged(x, "src"), staged(x, "dst")
    ncc.collective_permute_implicit_reduce([[a]], [[b]], [[dst]], (), nl.add)  # sent
    rows = my_rows(x.shape[0])
    nisa.dma_copy(b[rows], x[rows])  # written
    return handed_over(dst, "out")


def gathers_over_the_destination(x):
    src = staged(x, "src")
    dst = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="dst")
    other = staged(x, "other")
    ncc.collective_permute_implicit([[src]], [[dst]], ())  # sent
    ncc.all_reduce([other], [dst], (), nl.maximum)  # written
    return handed_over(dst, "out")


RACES = [
    (writes_the_source, "source", "src"),
    (overwrites_the_destination, "destination", "dst"),
    (sends_twice, "destination", "dst"),
    (reduces_over_the_source, "source", "src"),
    (gathers_over_the_destination, "destination", "dst"),
]


@pytest.mark.parametrize("lnc", [1, 2])
@pytest.mark.parametrize(("kernel", "role", "tensor"), RACES)
def test_a_planted_race_is_reported_with_both_lines(kernel, role, tensor, lnc):
    def run():
        return World(4, lnc).run(kernel, [(x,) for x in blocks(4)])

    told = fails(
        NkiValidationError, run, "is in flight on those bytes", f"as its {role}, {tensor!r}",
        "[collective_race]",
    )  # fmt: skip
    assert f"at {line_of(kernel, '# sent')} is in flight" in told
    assert f"at {line_of(kernel, '# written')} writes" in told


def test_bytes_decide():
    def run():
        return World(4).run(writes_part_of_the_source, [(x,) for x in blocks(4)])

    sent = line_of(writes_part_of_the_source, "# sent")
    written = line_of(writes_part_of_the_source, "# written")
    fails(NkiValidationError, run, f"dma_copy at {written} writes 'src'", f"at {sent} is in flight")


def test_bytes_beside_those_in_flight_may_be_written():
    def kernel(x):
        src = staged(x, "src")
        dst = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="dst")
        ncc.collective_permute_implicit([[src[:, 8:16]]], [[dst[:, 8:16]]], ())
        nisa.dma_copy(src[:, 16:20], x[:, 16:20])
        nisa.dma_copy(dst[:, 0:8], x[:, 0:8])
        nisa.dma_copy(dst[:, 16:32], x[:, 16:32])
        return handed_over(dst, "out")

    xs = blocks(4)
    found = quiet(World(4), kernel, [(x,) for x in xs])
    for rank in range(4):
        np.testing.assert_array_equal(found[rank][:, 8:16], xs[rank - 1][:, 8:16])


def test_what_has_arrived_may_be_overwritten():
    def kernel(x):
        src, dst = staged(x, "src"), staged(x, "dst")
        seen = nl.ndarray(x.shape, x.dtype, nl.sbuf)
        for _ in range(3):
            ncc.collective_permute_implicit([[src]], [[dst]], ())
            nisa.dma_copy(seen, dst)
            share(src, x)
            share(dst, x)
        return handed_over(dst, "out")

    # with two cores, one would read what the other writes
    quiet(World(4), kernel, [(x,) for x in blocks(4)])


def test_a_barrier_on_a_buffer_in_flight_is_no_write():
    def kernel(x):
        src = staged(x, "src")
        dst = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="dst")
        ncc.collective_permute_implicit([[src]], [[dst]], ())
        nisa.core_barrier(src, (0, 1))
        nisa.core_barrier(dst, (0, 1))
        return handed_over(dst, "out")

    xs = blocks(4)
    found = quiet(World(4, 2), kernel, [(x,) for x in xs])
    np.testing.assert_array_equal(found[0], xs[3])


def test_a_barrier_on_the_destination_waits_for_the_permute():
    def kernel(x):
        src = staged(x, "src")
        dst = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="dst")
        ncc.collective_permute_implicit([[src]], [[dst]], ())
        nisa.core_barrier(dst, (0, 1))
        share(src, x)
        return handed_over(dst, "out")

    xs = blocks(4)
    found = quiet(World(4, 2), kernel, [(x,) for x in xs])
    np.testing.assert_array_equal(found[0], xs[3])


def test_in_sbuf_too():
    def kernel(x):
        src, dst = (nl.ndarray(x.shape, x.dtype, nl.sbuf) for _ in range(2))
        nisa.dma_copy(src, x)
        ncc.collective_permute_implicit([[src]], [[dst]], ())  # sent
        nisa.memset(src, 0)  # written
        return x

    for lnc in (1, 2):
        world = World(2, lnc)
        fails(
            NkiValidationError,
            lambda world=world: world.run(kernel, [(x,) for x in blocks(2)]),
            f"memset at {line_of(kernel, '# written')} writes",
            f"at {line_of(kernel, '# sent')} is in flight",
        )


def test_the_level_of_the_rule():
    def run(level):
        world = World(4, 2, rules=Rules(collective_race=level))
        return bounded(lambda: world.run(writes_the_source, [(x,) for x in xs]))

    xs = blocks(4)
    with pytest.raises(NkiValidationError, match="collective_race"):
        run("error")
    with pytest.warns(NkiWarning, match="is in flight on those bytes"):
        found = run("warn")
    quietly = quiet(
        World(4, 2, rules=Rules(collective_race="off")), writes_the_source, [(x,) for x in xs]
    )
    for rank in range(4):
        np.testing.assert_array_equal(found[rank], xs[rank - 1])
        np.testing.assert_array_equal(quietly[rank], xs[rank - 1])


# Two cores on one buffer


def without_a_barrier(x, writer):
    """One core fetches, and both use it."""
    buffer = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="buffer")
    tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
    if nl.program_id(0) == writer:
        for _ in range(100):
            # the other is there first
            nisa.memset(tile, 0)
        nisa.dma_copy(buffer, x)  # written
    nisa.dma_copy(tile, buffer)  # read
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="out")
    share(out, tile)
    return out


@pytest.mark.parametrize("writer", [0, 1])
@pytest.mark.parametrize("ranks", [1, 4])
def test_a_missing_barrier_is_reported_with_both_lines(ranks, writer):
    for _ in range(5):
        fails(
            NkiValidationError,
            lambda: World(ranks, 2).run(without_a_barrier, [(x, writer) for x in blocks(ranks)]),
            "shared tensor 'buffer'",
            f"core {writer} writes in dma_copy at {line_of(without_a_barrier, '# written')}",
            f"core {1 - writer} reads in dma_copy at {line_of(without_a_barrier, '# read')}",
            "[core_race]",
        )


def test_a_ring_whose_halves_are_not_handed_over():
    """Each core stores its half of what it has made of a block, and loads all of it."""

    def kernel(x, barrier):
        held = staged(x, "held")
        new = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="new")
        ncc.collective_permute_implicit([[held]], [[new]], ())
        made = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="made")
        share(made, new)
        if barrier:
            nisa.core_barrier(made, (0, 1))
        tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
        nisa.dma_copy(tile, made)
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm, name="out")
        share(out, tile)
        return out

    xs = blocks(4)
    found = quiet(World(4, 2), kernel, [(x, True) for x in xs])
    for rank in range(4):
        np.testing.assert_array_equal(found[rank], xs[rank - 1])
    for _ in range(5):
        fails(
            NkiValidationError,
            lambda: World(4, 2).run(kernel, [(x, False) for x in xs]),
            "shared tensor 'made'",
        )
