"""When every instruction of a trace runs: a list schedule over the engines of all cores.

Each engine of a core, and its DMA as a whole, takes the first instruction in program order that is
ready, among the next `LOOKAHEAD` that it has not started: this stands for the order in which AWS's
compiler fills the engines' queues, which is not published. With a look-ahead of 1 the queues are in
program order. An instruction is ready when what it depends on is done:

    the same engine, result needed    when it is out of the pipeline (`Cost.latency_ns`)
    the same engine, place needed     when the engine is free again
    another engine                    when it is out of the pipeline, plus a semaphore
    a transfer                        the same without the semaphore, which its start time includes

A transfer starts without keeping an engine (but for the descriptors that the GpSimd engine writes);
its bytes then queue at its DMA engines and at the core's share of HBM. The next one starts early
enough for its bytes to follow without a gap. Collectives start when all cores are there, and move
one after the other through the links of a rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from nkisim import machine as machines
from nkisim.enums import Engine
from nkisim.errors import NkiDeadlockError
from nkisim.machine import Machine
from nkisim.timing import dependencies, placement
from nkisim.timing.collectives import exchange
from nkisim.timing.cost import Cost, Costs
from nkisim.timing.dependencies import ANTI, FLOW, ORDER
from nkisim.timing.dma import DmaEngines
from nkisim.timing.placement import Usage
from nkisim.timing.transfers import Transfer
from nkisim.trace import Instruction, Meeting, Trace

# Instructions of one engine that the compiler is taken to choose from. Not published.
LOOKAHEAD = 64

ENGINES = (Engine.tensor, Engine.vector, Engine.scalar, Engine.gpsimd, Engine.sync, Engine.dma)
_NUMBER = {engine: number for number, engine in enumerate(ENGINES)}
_NEVER = float("inf")
_ALL = (FLOW, ANTI, ORDER)
_GPSIMD, _DMA = _NUMBER[Engine.gpsimd], _NUMBER[Engine.dma]


@dataclass(frozen=True)
class CoreSchedule:
    """When the instructions of one core run, by their index in its trace. Times in ns.

    Attributes:
        start: [n] when each is taken from its queue
        end: [n] when its engine is free again; for a transfer or an exchange, when it is over
        done: [n] when its result can be used
        cause: [n, 2] core and index of what it waited for last; -1 where it waited for nothing
        costs: what each costs
        dma_busy_ns: by DMA engine
        usage: of SBUF and PSUM
    """

    start: npt.NDArray[np.float64]
    end: npt.NDArray[np.float64]
    done: npt.NDArray[np.float64]
    cause: npt.NDArray[np.int64]
    costs: list[Cost]
    dma_busy_ns: tuple[float, ...]
    usage: Usage


@dataclass(frozen=True)
class Step:
    """One instruction of the critical path: `ns` of the total pass before the next one starts."""

    core: int
    index: int
    ns: float


@dataclass(frozen=True)
class Schedule:
    """When all instructions of a trace run, and the chain of them that makes it last so long."""

    trace: Trace
    machine: Machine
    cores: tuple[CoreSchedule, ...]
    total_ns: float
    critical: tuple[Step, ...]


def make(trace: Trace, lookahead: int = LOOKAHEAD) -> Schedule:
    """The schedule of `trace` on the machine it was recorded for.

    Args:
        lookahead: instructions of each engine to choose from; 1 for program order

    Raises:
        ValueError: `lookahead` is below 1.
        NkiCapacityError: the tensors of a core do not fit.
        NkiDeadlockError: cores wait for each other for ever.
        NkiError: an instruction or a meeting has no known cost.
    """
    if lookahead < 1:
        raise ValueError(f"lookahead is {lookahead}; it must be at least 1")
    machine = machines.of(trace.target)
    run = _Run(trace, machine, lookahead)
    run.run()
    return run.result()


class _Queue:
    """One engine's instructions: what is left of them, and which are ready."""

    __slots__ = ("free", "head", "items", "last", "ready", "waiting", "wake")

    def __init__(self) -> None:
        self.items: list[int] = []
        self.head = 0
        self.free = 0.0
        # the one started last
        self.last = -1
        # heaps: (time from which on it can start, position) and position of those that can
        self.waiting: list[tuple[float, int]] = []
        self.ready: list[int] = []
        self.wake = _NEVER


class _Run:
    """The state of the machine while the events of a trace are played in order of time.

    Instructions are numbered through all cores; queues are numbered core by core.
    """

    def __init__(self, trace: Trace, machine: Machine, lookahead: int) -> None:
        self.trace = trace
        self.machine = machine
        self.lookahead = lookahead
        self.instructions: list[Instruction] = []
        self.base = [0]
        for core in trace.cores:
            self.instructions += core.instructions
            self.base.append(len(self.instructions))
        n = len(self.instructions)
        self.usage = [placement.place(core, machine) for core in trace.cores]
        costs = Costs(machine)
        self.costs = [costs.of(instruction) for instruction in self.instructions]
        self.queues = [_Queue() for _ in range(len(trace.cores) * len(ENGINES))]
        self.queue_of = [0] * n
        self.position = [0] * n
        self._fill_queues()
        self.missing = [0] * n
        self.after_first: list[int] = []
        self.after: list[int] = []
        self.after_kind: list[int] = []
        self._link_dependencies()
        self.ready_at = [0.0] * n
        self.start = [-1.0] * n
        self.end = [0.0] * n
        self.done = [0.0] * n
        # what an instruction waited for last, and from when on it waited for nothing
        self.cause = [-1] * n
        self.bound = [0.0] * n
        self.events: list[tuple[float, int]] = []
        self.dma = [DmaEngines(machine) for _ in trace.cores]
        self.link_free = [0.0] * len(trace.cores)
        # of Trainium1: until when each is taken, and by whom
        self.ports = [[(0.0, -1), (0.0, -1)] for _ in trace.cores]
        # meetings that some core still has to come to
        self.open: dict[tuple[object, ...], list[int]] = {}

    def _fill_queues(self) -> None:
        for c, core in enumerate(self.trace.cores):
            for k, instruction in enumerate(core.instructions, self.base[c]):
                number = c * len(ENGINES) + _NUMBER.get(instruction.engine, _DMA)
                if self.costs[k].transfer is not None:
                    number = c * len(ENGINES) + _DMA
                queue = self.queues[number]
                self.queue_of[k] = number
                self.position[k] = len(queue.items)
                queue.items.append(k)

    def _link_dependencies(self) -> None:
        """Turn what each instruction waits for into what each is waited for by."""
        waits, befores, kinds = [], [], []
        for c, core in enumerate(self.trace.cores):
            found = dependencies.find(core)
            counts = np.diff(found.first)
            self.missing[self.base[c] : self.base[c + 1]] = counts.tolist()
            waits.append(np.repeat(np.arange(len(counts)), counts) + self.base[c])
            befores.append(found.before.astype(np.int64) + self.base[c])
            kinds.append(found.kind)
        before = np.concatenate(befores) if befores else np.zeros(0, np.int64)
        order = np.argsort(before, kind="stable")
        bounds = np.searchsorted(before[order], np.arange(len(self.instructions) + 1))
        self.after_first = bounds.tolist()
        self.after = np.concatenate(waits)[order].tolist() if waits else []
        self.after_kind = np.concatenate(kinds)[order].tolist() if kinds else []

    def run(self) -> None:
        """Play all events.

        Raises:
            NkiDeadlockError: some instructions never become ready.
        """
        for k, count in enumerate(self.missing):
            if count == 0:
                self._make_ready(k)
        events = self.events
        while events:
            time, number = heappop(events)
            queue = self.queues[number]
            if time == queue.wake:
                queue.wake = _NEVER
                self._advance(queue, number, time)
        self._check_all_ran()

    def _make_ready(self, k: int) -> None:
        number = self.queue_of[k]
        queue = self.queues[number]
        heappush(queue.waiting, (self.ready_at[k], self.position[k]))
        self._wake(queue, number, max(self.ready_at[k], queue.free))

    def _wake(self, queue: _Queue, number: int, time: float) -> None:
        if time < queue.wake:
            queue.wake = time
            heappush(self.events, (time, number))

    def _advance(self, queue: _Queue, number: int, time: float) -> None:
        """Start what `queue` can start at `time`, and say when to look at it again."""
        waiting, ready = queue.waiting, queue.ready
        if time >= queue.free:
            while waiting and waiting[0][0] <= time:
                heappush(ready, heappop(waiting)[1])
            if ready and ready[0] < queue.head + self.lookahead:
                self._start(queue, number, heappop(ready), time)
        if ready and ready[0] < queue.head + self.lookahead:
            self._wake(queue, number, queue.free)
        elif waiting:
            self._wake(queue, number, max(waiting[0][0], queue.free))

    def _start(self, queue: _Queue, number: int, position: int, time: float) -> None:
        k = queue.items[position]
        core = number // len(ENGINES)
        if time > self.ready_at[k] and queue.last >= 0:
            self.cause[k] = queue.last
        charge = self.costs[k]
        if charge.ports:
            time = self._take_ports(k, core, charge, time)
        self.start[k] = self.bound[k] = time
        self.end[k] = queue.free = time + charge.busy_ns
        self.done[k] = time + charge.latency_ns
        if charge.transfer is not None:
            self._move(queue, k, core, charge.transfer, time)
        queue.last = k
        items, head = queue.items, queue.head
        while head < len(items) and self.start[items[head]] >= 0:
            head += 1
        queue.head = head
        meeting = self.instructions[k].meeting
        if meeting is None:
            self._release(k, _ALL)
        else:
            self._release(k, (ORDER,))
            self._meet(k, meeting, queue)

    def _take_ports(self, k: int, core: int, charge: Cost, time: float) -> float:
        """When the ports that engines of Trainium1 share are free; takes them from then on."""
        ports = self.ports[core]
        used = [bit for bit in (0, 1) if charge.ports >> bit & 1]
        for bit in used:
            free, holder = ports[bit]
            if free > time:
                time, self.cause[k] = free, holder
        for bit in used:
            ports[bit] = (time + charge.busy_ns, k)
        return time

    def _move(self, queue: _Queue, k: int, core: int, moved: Transfer, time: float) -> None:
        """Queue a transfer's bytes; the next transfer starts so that its bytes follow at once."""
        dma = self.dma[core]
        written = time
        if moved.dge == "swdge":
            gpsimd = self.queues[core * len(ENGINES) + _GPSIMD]
            gpsimd.free = max(gpsimd.free, time) + moved.dge_ns
            written = gpsimd.free
        elif moved.dge == "hwdge":
            details = self.instructions[k].details or {}
            written = dma.generate(details["queue"], time, moved.dge_ns)
        begin = written + self.machine.dma_start_ns
        first, arrived, behind = dma.move(k, moved, begin)
        if behind >= 0 and first > begin:
            self.cause[k], self.bound[k] = behind, first
        self.end[k] = self.done[k] = arrived
        queue.free = time + (first - begin)

    def _release(self, k: int, kinds: tuple[int, ...]) -> None:
        """Tell those that wait for `k` when it lets them start."""
        semaphore = self.machine.semaphore_ns
        number, done, end, start = self.queue_of[k], self.done[k], self.end[k], self.start[k]
        from_dma = number % len(ENGINES) == _DMA
        for edge in range(self.after_first[k], self.after_first[k + 1]):
            kind = self.after_kind[edge]
            if kind not in kinds:
                continue
            waiter = self.after[edge]
            other = self.queue_of[waiter]
            if kind == ORDER:
                time = start
            elif other % len(ENGINES) == _DMA:
                time = done
            elif other == number and not from_dma:
                time = done if kind == FLOW else end
            else:
                time = done + semaphore
            if time > self.ready_at[waiter] or self.cause[waiter] < 0:
                self.ready_at[waiter] = max(time, self.ready_at[waiter])
                self.cause[waiter] = k
            self.missing[waiter] -= 1
            if self.missing[waiter] == 0:
                self._make_ready(waiter)

    def _meet(self, k: int, meeting: Meeting, queue: _Queue) -> None:
        """Wait for the others; the last to come lets all go on."""
        key = (meeting.kind, *meeting.key)
        here = self.open.setdefault(key, [])
        here.append(k)
        if meeting.kind == "core_barrier":
            queue.free = _NEVER
        if len(here) < len(meeting.cores):
            return
        del self.open[key]
        details = self.instructions[k].details or {}
        takes = exchange(
            meeting, self.trace.lnc, self.machine, details.get("dma_engine") == "gpsimd_dma"
        )
        cores = [self.queue_of[member] // len(ENGINES) for member in here]
        begin = max([self.start[k]] + [self.link_free[core] for core in cores])
        over = begin + takes.latency_ns + takes.moving_ns
        for member, core in zip(here, cores, strict=True):
            self.link_free[core] = begin + takes.moving_ns
            self.end[member] = self.done[member] = max(over, self.done[member])
            if member != k:
                self.cause[member], self.bound[member] = k, self.start[k]
            if meeting.kind == "core_barrier":
                number = self.queue_of[member]
                self.queues[number].free = over
                self._wake_again(number)
            self._release(member, (FLOW, ANTI))

    def _wake_again(self, number: int) -> None:
        queue = self.queues[number]
        if queue.ready or queue.waiting:
            self._wake(queue, number, queue.free)

    def _check_all_ran(self) -> None:
        stuck = [k for k, start in enumerate(self.start) if start < 0]
        stuck += [k for here in self.open.values() for k in here]
        if not stuck:
            return
        lines = []
        for c in range(len(self.trace.cores)):
            mine = [k for k in stuck if self.base[c] <= k < self.base[c + 1]]
            if mine:
                lines.append(f"  core {c}: {self.instructions[min(mine)]!r}")
        raise NkiDeadlockError("cores wait for each other for ever:\n" + "\n".join(lines))

    def result(self) -> Schedule:
        cause = np.array(self.cause, np.int64)
        bounds = np.array(self.base)
        owner = np.searchsorted(bounds, cause, side="right") - 1
        where = np.stack([owner, cause - bounds[np.clip(owner, 0, None)]], axis=1)
        where[cause < 0] = -1
        start, end, done = (np.array(t, np.float64) for t in (self.start, self.end, self.done))
        cores = []
        for c, dma in enumerate(self.dma):
            part = slice(self.base[c], self.base[c + 1])
            cores.append(
                CoreSchedule(
                    start[part], end[part], done[part], where[part],
                    self.costs[part], tuple(dma.busy), self.usage[c],
                )
            )  # fmt: skip
        total = float(done.max()) if len(done) else 0.0
        return Schedule(self.trace, self.machine, tuple(cores), total, self._critical(total))

    def _critical(self, total: float) -> tuple[Step, ...]:
        """Back from the instruction that ends last, each time to what was waited for last."""
        steps = []
        until = total
        k = int(np.argmax(self.done)) if self.done else -1
        while k >= 0:
            core = self.queue_of[k] // len(ENGINES)
            begin = min(self.bound[k], until)
            steps.append(Step(core, k - self.base[core], until - begin))
            until = begin
            k = self.cause[k]
        return tuple(reversed(steps))
