"""Where the tensors lie that the kernel left to the compiler, and whether they all fit.

AWS's allocator is not published. This one takes tensors in program order, each for as long as an
instruction touches it, and puts each behind the one before (next fit), so that an address is
reused as late as possible and independent work does not have to wait for it. Where that runs out of
room it starts over with what holds most for longest, and then does both again with the lowest
address that is free.
Tensors that the kernel placed stay where they are; nothing else lies on them while they are in use.

A tensor takes its bytes in all partitions: whether the compiler packs tensors with few partitions
side by side is not published either.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from nkisim.enums import MemoryRegion
from nkisim.errors import NkiCapacityError
from nkisim.machine import Machine
from nkisim.trace import CoreTrace, Place

# Tensors begin at multiples of this; AWS publishes no alignment for SBUF.
ALIGNMENT = 32
# How many tensors the second attempt places out of order; each costs time with every other.
_HEAVY = 256
# how many tensors an error lists
_LISTED = 16


@dataclass(frozen=True)
class Usage:
    """The most bytes of each partition that are in use at once, and what there is."""

    sbuf: int
    sbuf_limit: int
    psum: int
    psum_limit: int


def place(core: CoreTrace, machine: Machine) -> Usage:
    """Give every tensor of `core` on chip an address, and say how much is used.

    Sets `address` of all places that the kernel did not place and that an instruction touches.

    Raises:
        NkiCapacityError: they do not fit; the text lists who holds what at that moment.
    """
    sbuf = _place_region(core, MemoryRegion.sbuf, machine.sbuf_bytes_per_partition, 0)
    psum = _place_region(
        core, MemoryRegion.psum, machine.psum_bytes_per_partition, machine.psum_bank_bytes
    )
    return Usage(sbuf, machine.sbuf_bytes_per_partition, psum, machine.psum_bytes_per_partition)


def check(core: CoreTrace, machine: Machine) -> None:
    """As `place`, for those who only want to know whether everything fits.

    Where all tensors of a memory fit side by side there is nothing to arrange, which saves a tenth
    of the time of a small run.
    """
    sbuf, psum = MemoryRegion.sbuf, MemoryRegion.psum
    if not _fit_at_once(core, sbuf, machine.sbuf_bytes_per_partition, ALIGNMENT):
        _place_region(core, sbuf, machine.sbuf_bytes_per_partition, 0)
    bank = machine.psum_bank_bytes
    if not _fit_at_once(core, psum, machine.psum_bytes_per_partition, bank):
        _place_region(core, psum, machine.psum_bytes_per_partition, bank)


def _fit_at_once(core: CoreTrace, region: MemoryRegion, limit: int, unit: int) -> bool:
    """Whether all tensors fit when each takes whole units, and the kernel placed none."""
    total = 0
    for tensor in core.places:
        if tensor.region is region:
            if tensor.addressed:
                return False
            total += -(-tensor.bytes_per_partition // unit) * unit
    return total <= limit


def _place_region(core: CoreTrace, region: MemoryRegion, limit: int, bank: int) -> int:
    touched = [p for p in core.places if p.region is region and p.first >= 0]
    free = sorted((p for p in touched if not p.addressed), key=lambda p: (p.first, p.serial))
    fixed = _Fixed([p for p in touched if p.addressed])
    peak, at = _peak(touched)
    if peak > limit:
        raise NkiCapacityError(_overflow(core, region, touched, at, peak, limit))
    if free:
        attempts: list[Callable[[], Place | None]] = [
            lambda: _in_order(free, fixed, limit, bank, rotate=True),
            lambda: _heavy_first(free, fixed, limit, bank, rotate=True),
            lambda: _in_order(free, fixed, limit, bank, rotate=False),
            lambda: _heavy_first(free, fixed, limit, bank, rotate=False),
        ]
        failed = None
        for attempt in attempts:
            failed = attempt()
            if failed is None:
                break
        if failed is not None:
            raise NkiCapacityError(_fragmented(core, region, touched, failed, limit))
    return peak


def _size(tensor: Place) -> int:
    return max(tensor.bytes_per_partition, 1)


class _Fixed:
    """The ranges that the kernel's own tensors take, each with the times when it is taken."""

    def __init__(self, tensors: list[Place]) -> None:
        self._tensors = tensors
        times: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for tensor in tensors:
            assert tensor.address is not None
            window = (tensor.address, tensor.address + _size(tensor))
            times.setdefault(window, []).append((tensor.first, tensor.last))
        self._windows = [(window, *_merge(spans)) for window, spans in sorted(times.items())]

    def extended(self, tensors: Iterable[Place]) -> _Fixed:
        """With more tensors that have their address."""
        return _Fixed([*self._tensors, *tensors])

    def during(self, first: int, last: int) -> list[tuple[int, int]]:
        """The ranges in use at any time from `first` to `last`, by their start."""
        taken = []
        for window, starts, ends in self._windows:
            k = bisect_right(starts, last) - 1
            if k >= 0 and ends[k] >= first:
                taken.append(window)
        return taken


def _merge(spans: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Sorted disjoint spans of time, as starts and ends."""
    starts: list[int] = []
    ends: list[int] = []
    for first, last in sorted(spans):
        if starts and first <= ends[-1]:
            ends[-1] = max(ends[-1], last)
        else:
            starts.append(first)
            ends.append(last)
    return starts, ends


class _Gaps:
    """The free ranges of one memory, sorted and never touching each other."""

    def __init__(self, limit: int) -> None:
        self.starts = [0]
        self.ends = [limit]

    def take(self, start: int, end: int) -> None:
        """Occupy a range that lies in one gap."""
        k = bisect_right(self.starts, start) - 1
        low, high = self.starts[k], self.ends[k]
        pieces = [(a, b) for a, b in ((low, start), (end, high)) if a < b]
        self.starts[k : k + 1] = [a for a, _ in pieces]
        self.ends[k : k + 1] = [b for _, b in pieces]

    def give(self, start: int, end: int) -> None:
        """Free a range."""
        k = bisect_left(self.starts, start)
        if k < len(self.starts) and self.starts[k] == end:
            end = self.ends[k]
            del self.starts[k], self.ends[k]
        if k > 0 and self.ends[k - 1] == start:
            self.ends[k - 1] = end
            return
        self.starts.insert(k, start)
        self.ends.insert(k, end)

    def fit(self, size: int, begin: int, bank: int, taken: list[tuple[int, int]]) -> int | None:
        """The lowest address from `begin` on, or failing that from 0 on, with `size` free bytes."""
        k = max(bisect_right(self.starts, begin) - 1, 0)
        for index in range(k, len(self.starts)):
            start = _fit_in(max(self.starts[index], begin), self.ends[index], size, bank, taken)
            if start is not None:
                return start
        for index in range(min(k + 1, len(self.starts))):
            start = _fit_in(self.starts[index], self.ends[index], size, bank, taken)
            if start is not None:
                return start
        return None


def _fit_in(low: int, high: int, size: int, bank: int, taken: list[tuple[int, int]]) -> int | None:
    """The lowest address in low ... high for `size` bytes clear of all ranges in `taken`."""
    start = _align(low, size, bank)
    for a, b in taken:
        if a >= start + size:
            break
        if b > start:
            start = _align(b, size, bank)
    return start if start + size <= high else None


def _align(address: int, size: int, bank: int) -> int:
    """The first address from `address` on where a tensor may begin.

    In PSUM a tensor lies within one bank if it fits into one, else it begins with a bank.
    """
    address = -(-address // ALIGNMENT) * ALIGNMENT
    if bank and (size > bank or address % bank + size > bank):
        address = -(-address // bank) * bank
    return address


def _in_order(
    tensors: list[Place], fixed: _Fixed, limit: int, bank: int, rotate: bool
) -> Place | None:
    """Place `tensors` in program order; returns the first that does not fit, if any."""
    gaps = _Gaps(limit)
    live: list[tuple[int, int, int]] = []
    cursor = 0
    for tensor in tensors:
        while live and live[0][0] < tensor.first:
            _, start, end = heapq.heappop(live)
            gaps.give(start, end)
        size = _size(tensor)
        taken = fixed.during(tensor.first, tensor.last)
        address = gaps.fit(size, cursor if rotate else 0, bank, taken)
        if address is None:
            return tensor
        gaps.take(address, address + size)
        heapq.heappush(live, (tensor.last, address, address + size))
        tensor.address = address
        cursor = address + size
        if bank:
            # the next one goes to a bank of its own if it can
            cursor = -(-cursor // bank) * bank
        if cursor >= limit:
            cursor = 0
    return None


def _heavy_first(
    tensors: list[Place], fixed: _Fixed, limit: int, bank: int, rotate: bool
) -> Place | None:
    """Place those that hold most memory for longest first, then the others in program order."""
    by_weight = sorted(tensors, key=lambda p: (-_size(p) * (p.last - p.first + 1), p.serial))
    heavy = set(by_weight[:_HEAVY])
    failed = _largest_first(list(heavy), fixed, limit, bank)
    if failed is not None:
        return failed
    rest = [tensor for tensor in tensors if tensor not in heavy]
    return _in_order(rest, fixed.extended(heavy), limit, bank, rotate)


def _largest_first(tensors: list[Place], fixed: _Fixed, limit: int, bank: int) -> Place | None:
    """Place the largest first, each at the lowest address that is free during all of its time."""
    placed: list[tuple[int, int, int, int]] = []
    for tensor in sorted(tensors, key=lambda p: (-_size(p), p.first, p.serial)):
        size = _size(tensor)
        taken = fixed.during(tensor.first, tensor.last)
        taken.extend(
            (a, b) for a, b, first, last in placed if first <= tensor.last and last >= tensor.first
        )
        taken.sort()
        address = _fit_in(0, limit, size, bank, taken)
        if address is None:
            return tensor
        tensor.address = address
        placed.append((address, address + size, tensor.first, tensor.last))
    return None


def _peak(tensors: list[Place]) -> tuple[int, int]:
    """The most bytes in use at once and the instruction where that is.

    Tensors of the kernel's own placing count once for every byte that any of them covers.
    """
    covered = _Cover([p for p in tensors if p.addressed])
    events: list[tuple[int, int, Place]] = []
    for tensor in tensors:
        events.append((tensor.first, 1, tensor))
        events.append((tensor.last + 1, 0, tensor))
    events.sort(key=lambda event: event[:2])
    live = peak = at = 0
    for time, begins, tensor in events:
        if tensor.addressed:
            covered.change(tensor, 1 if begins else -1)
        else:
            live += _size(tensor) if begins else -_size(tensor)
        if begins and live + covered.bytes > peak:
            peak, at = live + covered.bytes, time
    return peak, at


class _Cover:
    """How many bytes at least one of some placed tensors covers."""

    def __init__(self, tensors: list[Place]) -> None:
        edges: set[int] = set()
        for tensor in tensors:
            assert tensor.address is not None
            edges.update((tensor.address, tensor.address + _size(tensor)))
        self._edges = sorted(edges)
        self._counts = [0] * len(self._edges)
        self.bytes = 0

    def change(self, tensor: Place, by: int) -> None:
        assert tensor.address is not None
        low = bisect_left(self._edges, tensor.address)
        high = bisect_left(self._edges, tensor.address + _size(tensor))
        for k in range(low, high):
            was = self._counts[k]
            self._counts[k] = was + by
            if (was == 0) != (was + by == 0):
                length = self._edges[k + 1] - self._edges[k]
                self.bytes += length if by > 0 else -length


def _overflow(
    core: CoreTrace, region: MemoryRegion, tensors: list[Place], at: int, need: int, limit: int
) -> str:
    return (
        f"{region.value.upper()} of rank {core.rank} core {core.core} holds {limit} bytes per "
        f"partition, and {need} are needed at {_where(core, at)}:\n{_table(core, tensors, at)}"
    )


def _fragmented(
    core: CoreTrace, region: MemoryRegion, tensors: list[Place], failed: Place, limit: int
) -> str:
    return (
        f"no {_size(failed)} contiguous bytes per partition are free in {region.value.upper()} "
        f"({limit} bytes per partition) of rank {core.rank} core {core.core} "
        f"for {failed!r} at {_where(core, failed.first)}:\n{_table(core, tensors, failed.first)}"
    )


def _where(core: CoreTrace, index: int) -> str:
    return repr(core.instructions[index]) if index < len(core.instructions) else f"#{index}"


def _table(core: CoreTrace, tensors: list[Place], at: int) -> str:
    """Who holds what while instruction `at` runs, the largest first."""
    held = [p for p in tensors if p.first <= at <= p.last]
    held.sort(key=lambda p: (-_size(p), p.serial))
    lines = [f"{'bytes/partition':>16}  {'name':<24} {'shape':<20} {'dtype':<16} allocated at"]
    for p in held[:_LISTED]:
        address = f" (the kernel's, at byte {p.address})" if p.addressed else ""
        lines.append(
            f"{_size(p):>16}  {p.name:<24} {list(p.shape)!s:<20} {p.dtype!s:<16} "
            f"{p.location}{address}"
        )
    if len(held) > _LISTED:
        rest = held[_LISTED:]
        lines.append(f"{sum(_size(p) for p in rest):>16}  {len(rest)} more")
    return "\n".join(lines)
