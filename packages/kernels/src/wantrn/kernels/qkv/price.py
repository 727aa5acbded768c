"""How long a plan would take, estimated from what each engine has to do.

Not for use in a kernel. While one group of columns is multiplied, every engine has its own work,
and the longest decides. The constants are those of `nkisim.machine`, and so are the formulas, in
the coarse; see `docs/time-model.md`.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkisim.machine import Machine
from wantrn.kernels.qkv.options import Sizes
from wantrn.kernels.qkv.plan import AHEAD, Plan, columns_of
from wantrn.kernels.qkv.slabs import (
    TILE,
    Slab,
    alike_segments,
    depth_tiles,
    later_segments,
    slabs_of,
    summed_segments,
)


@dataclass
class Work:
    """Busy times of the engines, in ns; `stored` is what rows on their way to the result take of
    the DMA engines, `dma` all the rest."""

    tensor: float = 0.0
    vector: float = 0.0
    scalar: float = 0.0
    gpsimd: float = 0.0
    dma: float = 0.0
    stored: float = 0.0

    def computing(self) -> float:
        """Of the engine that has most to do, transfers left out."""
        return max(self.tensor, self.vector, self.scalar, self.gpsimd)

    def longest(self) -> float:
        """Of the engine that has most to do."""
        return max(self.computing(), self.dma + self.stored)

    def add(self, other: Work, times: float = 1.0) -> None:
        """Add another's, so many times."""
        self.tensor += times * other.tensor
        self.vector += times * other.vector
        self.scalar += times * other.scalar
        self.gpsimd += times * other.gpsimd
        self.dma += times * other.dma
        self.stored += times * other.stored


@dataclass(frozen=True)
class Price:
    """What a plan is estimated to take.

    Attributes:
        total_ns: the whole launch
        bound_ns: of the busiest engine, had it nothing to wait for
        work: of all engines
        weight_loads: how often each part of the weight is loaded, in tiles of its depth
    """

    total_ns: float
    bound_ns: float
    work: Work
    weight_loads: float


class Prices:
    """Prices of the parts of a call on one machine."""

    def __init__(self, sizes: Sizes, machine: Machine) -> None:
        self.sizes = sizes
        self.machine = machine
        self.depth = depth_tiles(sizes.words())

    def transfer(self, size: float, run: int) -> float:
        """Bytes to or from all partitions, in descriptors of `run` bytes."""
        m = self.machine
        each = max(run / m.dma_bytes_per_ns, run / m.dma_peak_bytes_per_ns + m.dma_descriptor_ns)
        return size / run * each / m.dma_engines

    def streamed(self, columns: float) -> float:
        """An instruction of Vector or Scalar over so many columns."""
        m = self.machine
        return (max(columns, m.issue_cycles) + m.access_cycles) / m.vector_ghz

    def weights(self, width: int) -> float:
        """DMA of a group's weight and vectors."""
        s = self.sizes
        run = width * s.word_bytes()
        vectors = (4 if s.packed else 0) + s.bias_bytes + (4 if s.norm else 0)
        return self.transfer(s.words() * run, run) + self.transfer(
            TILE * width * vectors, max(width * 4, 1)
        )

    def tokens(self) -> float:
        """DMA of a tile of tokens."""
        m = self.machine
        size = len(self.depth) * TILE * TILE * self.sizes.word_bytes()
        moved = size / (m.dma_engines * m.dma_bytes_per_ns * m.dma_transpose_hbm)
        return moved + (self.transfer(TILE * 4, 4) if self.sizes.packed else 0.0)

    def store(self, width: int, stride: int, cached: int = 0) -> float:
        """DMA of a tile's columns to the result, `cached` of them to caches."""
        s, found, left = self.sizes, 0.0, width - cached
        if left:
            run = 2 * (s.head_dim * stride if s.heads_first else left)
            found += self.transfer(2 * TILE * left, run)
        if cached:
            found += self.transfer(2 * TILE * cached, 2 * (cached if stride == 1 else s.head_dim))
        if cached and s.mapped:
            found += self.transfer(TILE * 4, 4)
        return found

    def cached(self, first: int, width: int) -> int:
        """How many of the columns from `first` on go to caches."""
        if not self.sizes.cached:
            return 0
        return max(first + width - max(first, self.sizes.heads * self.sizes.head_dim), 0)

    def sums(self) -> float:
        """DMA of a tile's sums of squares to the result."""
        segments = len(summed_segments(self.sizes))
        return self.transfer(TILE * 4 * segments, 4 * segments) if self.sizes.squared_sums else 0.0

    def slab(self, slab: Slab) -> Work:
        """Products and eviction of one tile's slab."""
        s, m = self.sizes, self.machine
        issues = sum(len(runs) for runs in self.depth)
        cycles = sum(max(hi - lo, m.matmul_init_cycles) for lo, hi in slab.pieces())
        found = Work(tensor=issues * cycles / m.tensor_ghz)
        # squares are taken of what is in PSUM, so what comes out of it is one step more
        squared = slab.segment.number < len(summed_segments(s))
        steps = (1 if s.packed else 0) + (1 if s.bias_bytes else 0) + (1 if squared else 0)
        found.vector = max(steps, 1) * self.streamed(slab.width)
        found.scalar = (1 if s.packed else 0) * self.streamed(slab.width)
        if squared:
            found.scalar += self.streamed(slab.width + m.accumulator_cycles)
        return found

    def finish(self, plan: Plan) -> Work:
        """Norm and rotation of one tile, with its way to the result."""
        s, m = self.sizes, self.machine
        found = Work()
        columns = 0
        for alike in alike_segments(s):
            width = sum(segment.width for segment in alike)
            columns += width
            if s.per_head:
                # squares; their sums; the row times its factors, both in SBUF
                found.scalar += self.streamed(width)
                found.vector += self.streamed(width) + self.streamed(2 * width)
            if s.centred:
                # sums again, and the row less its means
                found.vector += self.streamed(width) + self.streamed(2 * width)
            if s.shifted:
                found.vector += self.streamed(2 * width) * (2 if s.rope else 1)
            if s.rope:
                found.vector += self.streamed(width) + 2 * self.streamed(width / 2)
                found.gpsimd += (m.gpsimd_start_cycles + 2 * width) / m.gpsimd_ghz
                found.scalar += 3 * len(alike) * self.streamed(s.head_dim)
            elif s.per_head:
                found.vector += self.streamed(2 * width)
            else:
                found.scalar += len(alike) * self.streamed(width / len(alike) / 2)
        if plan.choice.finish_slots == 1:
            # the next segment waits for the sum of this one
            found.vector += found.gpsimd
        found.stored = self.store(columns, plan.choice.stride, self.cached(0, columns))
        if s.rope:
            found.dma += self.transfer(TILE * s.head_dim * 4, s.head_dim * 2)
        if not plan.choice.held:
            run = columns if plan.choice.stride == 1 else s.head_dim
            found.dma += self.transfer(2 * TILE * columns, 2 * run)
        return found


def price_of(plan: Plan, machine: Machine) -> Price:
    """The price of a plan."""
    sizes = plan.sizes
    prices = Prices(sizes, machine)
    slabs = slabs_of(sizes)
    works = [_group(prices, plan, number, slabs) for number in range(len(plan.groups))]
    trailing = Work()
    later = plan.later_groups
    if later:
        finish = prices.finish(plan)
        exchanges = sizes.norm and sizes.ranks > 1
        spread = works[later if exchanges else later - 1 :]
        for work in spread:
            work.add(finish, plan.tiles / len(spread))
        if not spread:
            trailing.add(finish, plan.tiles)
    total, all_work = prices.machine.dma_start_ns + prices.tokens(), Work()
    loads = prices.weights(columns_of(slabs, plan.groups[0]))
    all_work.dma += loads
    for number, work in enumerate(works):
        transfers = work.dma if number == len(works) - 1 else work.dma + work.stored
        computing = work.computing()
        if number == 0:
            transfers += loads
            computing += _first_wait(prices, plan, slabs, loads)
        total += max(computing, transfers)
        if number == 0 or not plan.tokens_stay():
            total += plan.tiles * _token_stall(prices, plan, work.tensor / plan.tiles)
        all_work.add(work)
    all_work.add(trailing)
    spacing = (trailing if trailing.computing() else works[-1]).computing() / plan.tiles
    total += max(trailing.computing(), trailing.dma) + _tail(prices, plan, slabs, spacing)
    width = sizes.width()
    loads = sum(columns_of(slabs, group) for group in plan.groups) / width * len(prices.depth)
    return Price(total, all_work.longest(), all_work, loads)


def _group(prices: Prices, plan: Plan, number: int, slabs: list[Slab]) -> Work:
    """All tiles of one group, and the loads of the next one."""
    start, stop = plan.groups[number]
    found = Work()
    for slab in slabs[start:stop]:
        found.add(prices.slab(slab), plan.tiles)
    if number == 0 or not plan.tokens_stay():
        found.dma += plan.tiles * prices.tokens()
    if number + 1 < len(plan.groups):
        found.dma += prices.weights(columns_of(slabs, plan.groups[number + 1]))
    width = columns_of(slabs, plan.groups[number])
    if number >= plan.later_groups:
        cached = prices.cached(slabs[start].first, width)
        found.stored += plan.tiles * prices.store(width, plan.choice.stride, cached)
    elif not plan.choice.held:
        found.dma += plan.tiles * prices.transfer(2 * TILE * width, 2 * width)
    if number == len(plan.groups) - 1:
        found.stored += plan.tiles * prices.sums()
    return found


def _token_stall(prices: Prices, plan: Plan, meanwhile: float) -> float:
    """How long the products of a tile, which take `meanwhile`, wait for its tokens.

    A load begins when its slot is free, and shares the DMA engines with what else is under way.
    """
    latency = prices.machine.dma_start_ns + 2 * prices.tokens()
    ahead = min(plan.choice.token_slots - 1, AHEAD) * meanwhile
    return max(latency - ahead, 0.0)


def _first_wait(prices: Prices, plan: Plan, slabs: list[Slab], loads: float) -> float:
    """How long the Tensor engine waits at the start: until the first slab has left PSUM it works on
    as many as PSUM holds, and for the first one the whole weight has to arrive."""
    first = prices.slab(slabs[0])
    ahead = min(plan.choice.token_slots, AHEAD) - 1
    evicted = loads + ahead * prices.tokens() + first.vector + first.scalar
    count = min(len(plan.slab_banks()), plan.tiles * (plan.groups[0][1] - plan.groups[0][0]))
    return max(evicted - count * first.tensor, 0.0)


def _tail(prices: Prices, plan: Plan, slabs: list[Slab], spacing: float) -> float:
    """How long rows are still on their way when the last product is done.

    Args:
        spacing: time between two tiles of the last group.
    """
    work = prices.slab(slabs[-1])
    chain = work.vector + work.scalar
    width = columns_of(slabs, plan.groups[-1]) if plan.later_groups < len(plan.groups) else 0
    cached = prices.cached(slabs[plan.groups[-1][0]].first, width)
    if plan.later_groups:
        finish = prices.finish(plan)
        chain += finish.vector + finish.gpsimd + (0.0 if prices.sizes.rope else finish.scalar)
        later = sum(segment.width for segment in later_segments(prices.sizes))
        cached += prices.cached(0, later)
        width += later
    free = -plan.tiles * spacing
    for first in range(0, plan.tiles, plan.choice.stride):
        count = min(plan.choice.stride, plan.tiles - first)
        ready = chain - (plan.tiles - first - count) * spacing
        free = max(free, ready) + count * prices.store(width, count, cached)
    return max(free, chain) + prices.machine.dma_start_ns
