"""How long a plan would take, estimated from what each engine has to do.

Not for use in a kernel. While one group of columns is multiplied, every engine has its own work,
and the longest decides. The constants are those of `nkisim.machine`, and so are the formulas, in
the coarse; see `docs/time-model.md`.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkisim.machine import Machine
from wantrn.kernels.qkv.options import Sizes
from wantrn.kernels.qkv.plan import Plan, columns_of, later_segments
from wantrn.kernels.qkv.slabs import TILE, Slab, depth_tiles, slabs_of


@dataclass
class Work:
    """Busy times of the engines, in ns."""

    tensor: float = 0.0
    vector: float = 0.0
    scalar: float = 0.0
    gpsimd: float = 0.0
    dma: float = 0.0

    def longest(self) -> float:
        """Of the engine that has most to do."""
        return max(self.tensor, self.vector, self.scalar, self.gpsimd, self.dma)

    def add(self, other: Work, times: float = 1.0) -> None:
        """Add another's, so many times."""
        self.tensor += times * other.tensor
        self.vector += times * other.vector
        self.scalar += times * other.scalar
        self.gpsimd += times * other.gpsimd
        self.dma += times * other.dma


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

    def store(self, width: int) -> float:
        """DMA of a tile's columns to the result."""
        run = 2 * (self.sizes.head_dim if self.sizes.heads_first else width)
        return self.transfer(2 * TILE * width, run)

    def slab(self, slab: Slab) -> Work:
        """Products and eviction of one tile's slab."""
        s, m = self.sizes, self.machine
        issues = sum(len(runs) for runs in self.depth)
        cycles = sum(max(hi - lo, m.matmul_init_cycles) for lo, hi in slab.pieces())
        found = Work(tensor=issues * cycles / m.tensor_ghz)
        normed = s.norm and slab.segment.finished_later
        steps = (1 if s.packed else 0) + (1 if s.bias_bytes else 0) + (1 if normed else 0)
        found.vector = max(steps, 1) * self.streamed(slab.width)
        found.scalar = (1 if s.packed else 0) * self.streamed(slab.width)
        if normed:
            found.scalar += self.streamed(slab.width + m.accumulator_cycles)
        return found

    def finish(self, held: bool) -> Work:
        """Norm and rotation of one tile, with its way to the result."""
        s, m = self.sizes, self.machine
        found = Work()
        columns = 0
        for segment in later_segments(s):
            columns += segment.width
            if s.rope:
                found.vector += self.streamed(segment.width) + 2 * self.streamed(segment.width / 2)
                found.gpsimd += (m.gpsimd_start_cycles + 2 * segment.width) / m.gpsimd_ghz
                found.scalar += 3 * self.streamed(s.head_dim)
            else:
                found.vector += self.streamed(segment.width / 4)
        found.dma = self.store(columns)
        if s.rope:
            found.dma += self.transfer(TILE * s.head_dim * 4, s.head_dim * 2)
        if not held:
            found.dma += self.transfer(2 * TILE * columns, 2 * columns)
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
        finish = prices.finish(plan.choice.held)
        exchanges = sizes.norm and sizes.ranks > 1
        spread = works[later if exchanges else later - 1 :]
        for work in spread:
            work.add(finish, plan.tiles / len(spread))
        if not spread:
            trailing.add(finish, plan.tiles)
    total, all_work = _lead_in(prices, plan, slabs, works[0]), Work()
    for work in works:
        total += work.longest()
        all_work.add(work)
    all_work.add(trailing)
    total += trailing.longest() + _tail(prices, plan, slabs)
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
    if number == 0:
        found.dma += prices.weights(columns_of(slabs, plan.groups[0]))
    width = columns_of(slabs, plan.groups[number])
    if number >= plan.later_groups:
        found.dma += plan.tiles * prices.store(width)
    elif not plan.choice.held:
        found.dma += plan.tiles * prices.transfer(2 * TILE * width, 2 * width)
    return found


def _lead_in(prices: Prices, plan: Plan, slabs: list[Slab], first: Work) -> float:
    """Until the Tensor engine is no longer held up by the first group's weight."""
    loads = prices.weights(columns_of(slabs, plan.groups[0])) + prices.tokens()
    meanwhile = first.tensor / plan.tiles
    return prices.machine.dma_start_ns + prices.tokens() + max(loads - meanwhile, 0.0)


def _tail(prices: Prices, plan: Plan, slabs: list[Slab]) -> float:
    """What follows the last product: eviction, and the last tile's way out."""
    work = prices.slab(slabs[-1])
    found = work.vector + work.scalar + prices.machine.dma_start_ns
    if plan.later_groups == len(plan.groups):
        last = prices.finish(plan.choice.held)
        return found + last.vector + last.gpsimd + last.dma
    return found + prices.store(columns_of(slabs, plan.groups[-1]))
