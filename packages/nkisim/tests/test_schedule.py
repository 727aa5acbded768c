"""Schedules against times worked out by hand, and properties that any schedule has."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_maker import Maker, part, trace

from nkisim import machine
from nkisim.dtypes import bfloat16
from nkisim.enums import Engine, NcVersion
from nkisim.errors import NkiCapacityError, NkiDeadlockError
from nkisim.timing import dependencies, schedule
from nkisim.timing.dependencies import FLOW, ORDER
from nkisim.timing.schedule import Schedule
from nkisim.trace import Meeting, Trace

GEN2, GEN3 = NcVersion.gen2, NcVersion.gen3
MACHINE = machine.of(GEN3)
SEMAPHORE = MACHINE.semaphore_ns
# a copy of 512 fp32 elements by Vector, 60 cycles of access and one an element, and its way through
# the pipeline
COPY = (60 + 512) / 0.96
PIPE = 100 / 0.96


def starts(found: Schedule, core: int = 0) -> list[float]:
    return [float(t) for t in found.cores[core].start]


def test_an_empty_trace_takes_no_time() -> None:
    found = schedule.make(trace(Maker()))
    assert found.total_ns == 0
    assert found.critical == ()


def test_independent_instructions_follow_each_other_at_once() -> None:
    maker = Maker()
    for _ in range(4):
        maker.copy(maker.sbuf(128, 512), maker.sbuf(128, 512))
    found = schedule.make(trace(maker))
    assert starts(found) == pytest.approx([k * COPY for k in range(4)])
    assert found.total_ns == pytest.approx(4 * COPY + PIPE)


def test_a_dependent_instruction_waits_for_the_pipeline() -> None:
    maker = Maker()
    tiles = [maker.sbuf(128, 512) for _ in range(3)]
    maker.copy(tiles[1], tiles[0])
    maker.copy(tiles[2], tiles[1])
    assert starts(schedule.make(trace(maker))) == pytest.approx([0, COPY + PIPE])


def test_another_engine_waits_for_a_semaphore_too() -> None:
    maker = Maker()
    tiles = [maker.sbuf(128, 512) for _ in range(3)]
    maker.copy(tiles[1], tiles[0])
    maker.activation(tiles[2], tiles[1])
    assert starts(schedule.make(trace(maker))) == pytest.approx([0, COPY + PIPE + SEMAPHORE])


def test_two_engines_run_a_pipeline() -> None:
    """Vector makes tiles, Scalar uses them: in the steady state the slower one sets the pace."""
    maker = Maker()
    n = 20
    for _ in range(n):
        tile = maker.sbuf(128, 512)
        maker.copy(tile, maker.sbuf(128, 512))
        maker.activation(maker.sbuf(128, 512), tile)
    found = schedule.make(trace(maker))
    last = (60 + 512) / 1.2 + 100 / 1.2
    assert found.total_ns == pytest.approx(n * COPY + PIPE + SEMAPHORE + last)


def pipeline(banks: int, n: int = 12) -> Schedule:
    """PE fills a bank, Vector empties it, with so many banks to take turns."""
    maker = Maker()
    a, b = maker.sbuf(128, 128, dtype=bfloat16), maker.sbuf(128, 512, dtype=bfloat16)
    for k in range(n):
        bank = maker.psum(128, 512, address=2048 * (k % banks))
        maker.matmul(bank, a, b)
        maker.copy(maker.sbuf(128, 512), bank)
    return schedule.make(trace(maker))


def test_one_psum_bank_serialises_and_two_overlap() -> None:
    matmul, latency = 512 / 2.4, 64 / 2.4
    turn = matmul + latency + SEMAPHORE + COPY + PIPE + SEMAPHORE
    single = pipeline(1)
    assert starts(single)[::2] == pytest.approx([k * turn for k in range(12)])
    # with two, Vector is never idle after the first tile
    double = pipeline(2)
    assert double.total_ns == pytest.approx(matmul + latency + SEMAPHORE + 12 * COPY + PIPE)


def test_accumulating_matmuls_do_not_wait_for_each_other() -> None:
    maker = Maker()
    a, b = maker.sbuf(128, 128, dtype=bfloat16), maker.sbuf(128, 512, dtype=bfloat16)
    out = maker.psum(128, 512)
    for k in range(8):
        maker.matmul(out, a, b, add=k > 0)
    assert schedule.make(trace(maker)).total_ns == pytest.approx(8 * 512 / 2.4 + 64 / 2.4)


def test_a_kernel_of_transfers_runs_at_the_bandwidth_of_dma() -> None:
    maker = Maker()
    n = 40
    for _ in range(n):
        maker.load(maker.sbuf(128, 1024), maker.hbm(128, 1024))
    found = schedule.make(trace(maker))
    moving = n * 128 * 4096 / 368
    assert found.total_ns == pytest.approx(1300 + moving, rel=1e-6)
    assert found.cores[0].dma_busy_ns == pytest.approx([moving] * 16)


def test_hbm_bounds_what_dma_could_do() -> None:
    maker = Maker()
    n = 8
    # within HBM every byte counts twice
    for _ in range(n):
        maker.load(maker.hbm(1 << 20), maker.hbm(1 << 20))
    found = schedule.make(trace(maker))
    assert found.total_ns == pytest.approx(1300 + n * 2 * (4 << 20) / 375, rel=1e-6)


def test_transfers_of_different_partitions_share_no_engine() -> None:
    maker = Maker()
    tile, rows = maker.sbuf(128, 2048), maker.hbm(128, 2048)
    for k in range(16):
        rows_here = part(rows, 8 * k * 8192, 8 * 8192)
        maker.load(part(tile, 0, 8192, partitions=(8 * k, 8 * k + 8)), rows_here)
    found = schedule.make(trace(maker))
    assert found.total_ns == pytest.approx(1300 + 8 * 8192 / 23)


def test_hardware_descriptors_take_600_ns_on_each_of_two_generators() -> None:

    def total(queue: str | None) -> float:
        maker = Maker()
        tile = maker.sbuf(128, 8)
        for k in range(4):
            # each on a DMA engine of its own
            rows = part(tile, 0, 32, partitions=(8 * k, 8 * k + 8))
            maker.load(rows, maker.hbm(8, 8), dge="hwdge", queue=queue)
        return schedule.make(trace(maker)).total_ns

    assert total("sync") - total(None) == pytest.approx(2 * 600)


def test_software_descriptors_keep_gpsimd_busy() -> None:
    maker = Maker()
    maker.load(maker.sbuf(128, 512), maker.hbm(128, 512), dge="swdge")
    maker.issue("iota", Engine.gpsimd, (maker.sbuf(128, 64),))
    writing = (150 + 128 / 8) / 1.2
    found = schedule.make(trace(maker))
    iota = (150 + 64) / 1.2
    begins = min(starts(found)[1], writing)
    # one of the two waits for the other
    assert begins in (pytest.approx(0), pytest.approx(writing))
    assert found.total_ns >= 1300 + writing
    assert found.cores[0].end[1] <= writing + iota + 1e-9


def test_trainium1_engines_take_turns_on_sbuf() -> None:
    def total(target: NcVersion) -> float:
        maker = Maker()
        maker.copy(maker.sbuf(128, 4096), maker.sbuf(128, 4096))
        maker.issue("iota", Engine.gpsimd, (maker.sbuf(128, 4096),))
        return schedule.make(trace(maker, target=target)).total_ns

    one = machine.of(GEN2)
    assert total(GEN2) >= 4096 / one.vector_ghz + (150 + 4096) / one.gpsimd_ghz
    assert total(GEN3) < 4096 / MACHINE.vector_ghz + (150 + 4096) / MACHINE.gpsimd_ghz


def blocked(scope: int = 0) -> Maker:
    """Vector's first instruction waits for a transfer; the second could start at once."""
    maker = Maker()
    tile = maker.sbuf(128, 512)
    maker.load(tile, maker.hbm(128, 512))
    maker.copy(maker.sbuf(128, 512), tile, scope=scope)
    maker.copy(maker.sbuf(128, 512), maker.sbuf(128, 512), scope=scope)
    return maker


def test_an_engine_takes_what_is_ready() -> None:
    found = schedule.make(trace(blocked()))
    assert starts(found)[2] == 0
    assert starts(found)[1] > 1300


def test_queues_in_program_order_wait_for_their_head() -> None:
    found = schedule.make(trace(blocked()), lookahead=1)
    assert starts(found)[2] == pytest.approx(starts(found)[1] + COPY)


def test_no_reorder_keeps_the_program_order() -> None:
    found = schedule.make(trace(blocked(scope=1)))
    assert starts(found)[2] == pytest.approx(starts(found)[1] + COPY)


def test_no_reorder_leaves_other_engines_alone() -> None:
    maker = blocked(scope=1)
    maker.copy(maker.sbuf(128, 512), maker.sbuf(128, 512), Engine.gpsimd, scope=1)
    begins = starts(schedule.make(trace(maker)))
    assert begins[3] == 0
    assert begins[1] > 1300


def test_a_block_does_not_hold_what_stands_outside() -> None:
    maker = blocked(scope=1)
    maker.copy(maker.sbuf(128, 512), maker.sbuf(128, 512))
    begins = starts(schedule.make(trace(maker)))
    assert begins[3] == 0


def test_the_look_ahead_is_bounded() -> None:
    maker = Maker()
    tile = maker.sbuf(128, 512)
    maker.load(tile, maker.hbm(128, 512))
    maker.copy(maker.sbuf(128, 512), tile)
    for _ in range(3):
        maker.copy(maker.sbuf(128, 512), maker.sbuf(128, 512))
    begins = starts(schedule.make(trace(maker), lookahead=3))
    # two are within reach while the head waits, the third is not
    assert begins[2:4] == pytest.approx([0, COPY])
    assert begins[4] > begins[1] > 1300


def meet(
    maker: Maker, kind: str, key: object, cores: tuple[int, ...], ranks: int, size: int = 0
) -> None:
    tile = maker.hbm(max(size // 4, 1))
    maker.issue(
        kind, Engine.gpsimd, (maker.hbm(max(size // 4, 1)),), (tile,),
        meeting=Meeting(kind, (key,), cores, ranks, size),
    )  # fmt: skip


def test_a_collective_starts_when_the_last_rank_comes() -> None:
    early, late = Maker(0), Maker(1)
    for maker in (early, late):
        send, got = maker.hbm(1 << 18), maker.hbm(1 << 18)
        if maker is late:
            # fills what it sends first
            maker.load(send, maker.hbm(1 << 18))
        maker.issue(
            "collective_permute", Engine.gpsimd, (got,), (send,),
            meeting=Meeting("collective_permute", ("k",), (0, 1), 2, 1 << 20),
        )  # fmt: skip
        maker.load(maker.hbm(1 << 18), got)
    found = schedule.make(trace(early, late, ranks=2))
    ready = float(found.cores[1].done[0]) + SEMAPHORE
    over = ready + 1000 + (1 << 20) / 368
    assert starts(found, 1)[1] == pytest.approx(ready)
    assert float(found.cores[0].done[0]) == pytest.approx(over)
    assert float(found.cores[1].done[1]) == pytest.approx(over)
    # what needs the result waits on both; the early rank's time is the late one's fault
    assert starts(found, 0)[1] == pytest.approx(over)
    assert found.cores[0].cause[0].tolist() == [1, 1]


def test_exchanges_of_one_rank_share_its_links() -> None:
    makers = [Maker(0), Maker(1)]
    for maker in makers:
        for key in range(3):
            meet(maker, "collective_permute", key, (0, 1), 2, 1 << 22)
    found = schedule.make(trace(*makers, ranks=2))
    assert found.total_ns >= 3 * (1 << 22) / 368 + 1000
    assert found.total_ns < 3 * ((1 << 22) / 368 + 1000)


def test_a_barrier_holds_the_engine_of_the_core_that_waits() -> None:
    early, late = Maker(0, 0, 2), Maker(0, 1, 2)
    late.issue("iota", Engine.gpsimd, (late.sbuf(128, 4096),))
    for maker in (early, late):
        meet(maker, "core_barrier", 0, (0, 1), 1)
        maker.issue("iota", Engine.gpsimd, (maker.sbuf(128, 64),))
    found = schedule.make(trace(early, late, lnc=2), lookahead=1)
    busy = (150 + 4096) / 1.2
    assert starts(found, 0)[1] == pytest.approx(busy + 1000)
    assert starts(found, 1)[2] == pytest.approx(busy + 1000)


def test_both_cores_of_a_rank_make_one_collective() -> None:
    makers = [Maker(r, c, 2) for r in range(2) for c in range(2)]
    for maker in makers:
        meet(maker, "all_reduce", 0, (0, 1, 2, 3), 2, 1 << 16)
    found = schedule.make(trace(*makers, ranks=2, lnc=2))
    assert len({float(core.done[0]) for core in found.cores}) == 1


def test_a_meeting_that_nobody_else_comes_to_is_a_deadlock() -> None:
    makers = [Maker(0), Maker(1)]
    meet(makers[0], "all_gather", 0, (0, 1), 2, 64)
    makers[1].copy(makers[1].sbuf(8, 8), makers[1].sbuf(8, 8))
    with pytest.raises(NkiDeadlockError, match=r"core 0: <all_gather #0"):
        schedule.make(trace(*makers, ranks=2))


def test_crossed_meetings_are_a_deadlock() -> None:
    makers = [Maker(0), Maker(1)]
    for maker, order in zip(makers, ((0, 1), (1, 0)), strict=True):
        for key in order:
            meet(maker, "core_barrier", key, (0, 1), 1)
    with pytest.raises(NkiDeadlockError, match=r"core 0.*\n.*core 1"):
        schedule.make(trace(*makers, lnc=2))


def test_what_does_not_fit_is_not_scheduled() -> None:
    maker = Maker()
    maker.copy(maker.sbuf(128, 40000), maker.sbuf(128, 40000))
    with pytest.raises(NkiCapacityError):
        schedule.make(trace(maker))


def test_lookahead_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="lookahead is 0"):
        schedule.make(trace(Maker()), lookahead=0)


def test_critical_path_of_a_chain_is_the_chain() -> None:
    maker = Maker()
    tile, result = maker.sbuf(128, 512), maker.sbuf(128, 512)
    maker.load(tile, maker.hbm(128, 512))
    maker.copy(maker.sbuf(128, 512), maker.sbuf(128, 512))
    maker.activation(result, tile)
    maker.load(maker.hbm(128, 512), result)
    found = schedule.make(trace(maker))
    assert [step.index for step in found.critical] == [0, 2, 3]
    assert sum(step.ns for step in found.critical) == pytest.approx(found.total_ns)


@st.composite
def traces(draw: st.DrawFn, targets: tuple[NcVersion, ...] = tuple(NcVersion)) -> Trace:
    """Random work of one core on a few tiles, some of it in blocks that are not reordered."""
    maker = Maker()
    tiles = [maker.sbuf(128, 256 * (1 + k % 3)) for k in range(6)]
    banks = [maker.psum(128, 512) for _ in range(3)]
    weights = maker.sbuf(128, 128, dtype=bfloat16)
    outside = maker.hbm(128, 1024)
    scope = 0
    for _ in range(draw(st.integers(1, 40))):
        what = draw(st.integers(0, 5))
        scope = draw(st.sampled_from((0, 0, 1, 2)))
        one, two = draw(st.sampled_from(tiles)), draw(st.sampled_from(tiles))
        bank = draw(st.sampled_from(banks))
        if what == 0:
            maker.load(one, part(outside, 0, one.bytes_per_partition, ((4096, 128),)))
        elif what == 1:
            maker.load(part(outside, 0, one.bytes_per_partition, ((4096, 128),)), one)
        elif what == 2:
            maker.matmul(bank, weights, one, add=draw(st.booleans()))
        elif what == 3:
            maker.copy(one, bank, scope=scope)
        elif what == 4:
            maker.activation(one, two)
        else:
            maker.copy(one, two, Engine.gpsimd, scope=scope)
    return trace(maker, target=draw(st.sampled_from(targets)))


@settings(deadline=None, max_examples=150)
@given(traces(), st.sampled_from((1, 2, 5, 64)))
def test_what_every_schedule_obeys(made: Trace, lookahead: int) -> None:
    found = schedule.make(made, lookahead)
    core, instructions = found.cores[0], made.cores[0].instructions
    chosen = machine.of(made.target)
    close = 1e-6
    assert np.all(core.start >= 0)
    assert found.total_ns == core.done.max()
    # an engine does one thing at a time, and its queue is in order without a look-ahead
    for engine in {i.engine for i in instructions} - {Engine.dma}:
        mine = [i.index for i in instructions if i.engine is engine]
        if lookahead > 1:
            mine.sort(key=lambda k: float(core.start[k]))
        for before, after in pairwise(mine):
            assert core.start[after] >= core.end[before] - close
        assert found.total_ns >= sum(core.costs[k].busy_ns for k in mine) - close
    assert found.total_ns >= max(core.dma_busy_ns) - close
    # nothing starts before what it depends on lets it
    waits = dependencies.find(made.cores[0])
    for instruction in instructions:
        after = instruction.index
        for before, kind in waits.of(after).items():
            same = instructions[before].engine is instruction.engine is not Engine.dma
            if kind == ORDER:
                assert core.start[after] >= core.start[before] - close
            elif same:
                limit = core.done[before] if kind == FLOW else core.end[before]
                assert core.start[after] >= limit - close
            elif instruction.engine is Engine.dma:
                assert core.start[after] >= core.done[before] - close
            else:
                assert core.start[after] >= core.done[before] + chosen.semaphore_ns - close
    # the critical path accounts for all of the time, in order
    assert sum(step.ns for step in found.critical) == pytest.approx(found.total_ns)
    assert all(step.ns >= -close for step in found.critical)
    path = [core.start[step.index] for step in found.critical]
    assert path == sorted(path)


@settings(deadline=None, max_examples=60)
@given(traces())
def test_a_schedule_is_the_same_every_time(made: Trace) -> None:
    first, second = schedule.make(made), schedule.make(made)
    assert np.array_equal(first.cores[0].start, second.cores[0].start)
    assert first.critical == second.critical


# the engines of Trainium1 take turns, so there a later instruction can be in the way
@settings(deadline=None, max_examples=60)
@given(traces(targets=(GEN3, NcVersion.gen4)), st.data())
def test_in_program_order_nothing_is_late_because_of_what_comes_after(
    made: Trace, data: st.DataObject
) -> None:
    """With queues in order, cutting a trace short leaves the times of the rest as they were."""
    whole = schedule.make(made, lookahead=1)
    n = data.draw(st.integers(1, len(made.cores[0].instructions)))
    core = made.cores[0]
    kept = core.instructions[:n]
    addresses = {p: p.address for p in core.places}
    for place, address in addresses.items():
        # where it was, whatever is left of its use
        place.addressed = address is not None
    core.instructions = kept
    for place in core.places:
        place.last = min(place.last, n - 1)
        if place.first >= n:
            place.first = place.last = -1
    cut = schedule.make(made, lookahead=1)
    assert np.allclose(cut.cores[0].start, whole.cores[0].start[:n])
