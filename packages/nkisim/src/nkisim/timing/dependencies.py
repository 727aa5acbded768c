"""Which instructions of a core have to wait for which, by the bytes that they share.

On chip, bytes are compared by their physical address, so two tensors at one address (placed there
by the kernel, or one after the other by the allocator) depend on each other as on the chip. HBM is
compared tensor by tensor. Cores wait for each other in meetings only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nkisim.enums import Engine, MemoryRegion
from nkisim.errors import NkiValidationError
from nkisim.extents import overlap
from nkisim.trace import Access, CoreTrace, Instruction, Place

# Kinds of dependency, strongest first: on the result (read after write, `depends_on`), on the place
# (write after read or write), and on the order of starting.
FLOW, ANTI, ORDER = 0, 1, 2

# Memory is tracked in buckets of so many bytes, so that only neighbours are looked at. What has
# gaps and lies in more than `_SPREAD` of them is kept in one that everybody looks at. None of this
# changes what has to wait for what.
_SBUF_SHIFT = 10
_PSUM_SHIFT = 11
# in HBM so many buckets, or fewer that are not smaller than this
_HBM_BUCKETS = 64
_HBM_SHIFT = 14
_SPREAD = 8
_EVERYWHERE = -1


@dataclass(frozen=True)
class Dependencies:
    """For each instruction of a core those it waits for.

    Attributes:
        first: [n + 1]; instruction i waits for `before[first[i]:first[i + 1]]`
        before: indices of instructions, all smaller than i
        kind: `FLOW`, `ANTI` or `ORDER`; the strongest where there are several
    """

    first: npt.NDArray[np.int64]
    before: npt.NDArray[np.int32]
    kind: npt.NDArray[np.int8]

    def of(self, index: int) -> dict[int, int]:
        """What instruction `index` waits for, and how."""
        low, high = self.first[index], self.first[index + 1]
        return dict(zip(self.before[low:high].tolist(), self.kind[low:high].tolist(), strict=True))


def find(core: CoreTrace) -> Dependencies:
    """The dependencies of all instructions of `core`.

    Instructions of one `nl.no_reorder` block start in program order, transfers excepted; so do all
    that meet other cores, as these would wait for each other for ever otherwise.

    Raises:
        NkiValidationError: a tensor on chip has no address yet (see `placement.place`), or
            `depends_on` names an instruction that does not come before.
    """
    memories = _Memories(core)
    first: list[int] = [0]
    before: list[int] = []
    kind: list[int] = []
    engines = [instruction.engine for instruction in core.instructions]
    in_scope: dict[tuple[int, Engine], int] = {}
    last_meeting = -1
    for i, instruction in enumerate(core.instructions):
        found: dict[int, int] = {}
        for access in instruction.reads:
            memory = memories.of(access)
            if memory is not None:
                memory.read(access, i, found)
        for access in instruction.writes:
            memory = memories.of(access)
            if memory is not None:
                memory.write(access, i, found)
        found.pop(i, None)
        if engines[i] is Engine.tensor:
            _accumulate_in_order(found, engines)
        for producer in instruction.after:
            if producer.index >= i or core.instructions[producer.index] is not producer:
                raise NkiValidationError(
                    f"{instruction!r} depends on {producer!r}, which is not before it on its core"
                )
            found[producer.index] = FLOW
        scope = instruction.reorder_scope
        if scope and engines[i] is not Engine.dma:
            # each engine has a queue of its own: a block orders every one of them
            queue = scope, engines[i]
            if queue in in_scope:
                found.setdefault(in_scope[queue], ORDER)
            in_scope[queue] = i
        if instruction.meeting is not None:
            if last_meeting >= 0:
                found.setdefault(last_meeting, ORDER)
            last_meeting = i
        before.extend(found.keys())
        kind.extend(found.values())
        first.append(len(before))
    return Dependencies(
        np.array(first, np.int64), np.array(before, np.int32), np.array(kind, np.int8)
    )


def _accumulate_in_order(found: dict[int, int], engines: list[Engine]) -> None:
    """The PE array reads PSUM only to add to it, and does that without waiting."""
    for other, kind in found.items():
        if kind == FLOW and engines[other] is Engine.tensor:
            found[other] = ANTI


class _Memories:
    """The memories that one core reaches: SBUF, PSUM and each HBM tensor."""

    def __init__(self, core: CoreTrace) -> None:
        self._sbuf = _Memory(_SBUF_SHIFT)
        self._psum = _Memory(_PSUM_SHIFT)
        # whoever reads what this core never writes does not have to wait
        self._hbm = {
            place: _Memory(
                max((place.bytes_per_partition // _HBM_BUCKETS).bit_length(), _HBM_SHIFT)
            )
            for place in _written_hbm(core.instructions)
        }

    def of(self, access: Access) -> _Memory | None:
        place = access.place
        region = place.region
        if region is MemoryRegion.sbuf or region is MemoryRegion.psum:
            if place.address is None:
                raise NkiValidationError(f"{place!r} has no address yet")
            return self._sbuf if region is MemoryRegion.sbuf else self._psum
        return self._hbm.get(place)


def _written_hbm(instructions: list[Instruction]) -> set[Place]:
    written = set()
    for instruction in instructions:
        for access in instruction.writes:
            if not access.place.on_chip:
                written.add(access.place)
    return written


# lo, hi, p0, p1, whether every byte between is touched, the operand, the instruction
_Write = tuple[int, int, int, int, bool, Access, int]
# the same with all instructions that have read exactly these bytes
_Read = tuple[int, int, int, int, bool, Access, list[int]]
# lo, hi, p0, p1, run, steps, dynamic
_Extent = tuple[int, int, int, int, int, tuple[tuple[int, int], ...], bool]


class _Memory:
    """Who wrote and who read which bytes last, as far as a later instruction may have to wait.

    What a write covers is forgotten: whoever waits for the write waits for that too. For the same
    reason a write that waits for a reader does not have to wait for what that has waited for.
    """

    __slots__ = ("_reader", "_reads", "_shift", "_writes")

    def __init__(self, shift: int) -> None:
        self._shift = shift
        # by bucket; entries without gaps are cut to it, so that each is forgotten bucket by bucket
        self._writes: dict[int, list[_Write]] = {}
        self._reads: dict[int, dict[_Extent, _Read]] = {}
        # of each writer the last reader
        self._reader: dict[int, int] = {}

    def read(self, access: Access, index: int, found: dict[int, int]) -> None:
        base = access.place.address or 0
        lo, hi, p0, p1 = base + access.lo, base + access.hi, access.p0, access.p1
        if hi <= lo:
            return
        solid = access.run >= hi - lo
        shift, writes = self._shift, self._writes
        near = range(lo >> shift, ((hi - 1) >> shift) + 1)
        for bucket in (_EVERYWHERE, *near) if _EVERYWHERE in writes else near:
            for e_lo, e_hi, e_p0, e_p1, e_solid, other, writer in writes.get(bucket, ()):
                if e_lo >= hi or lo >= e_hi or e_p0 >= p1 or p0 >= e_p1:
                    continue
                if found.get(writer) == FLOW:
                    continue
                if (solid and e_solid) or overlap(access, other):
                    found[writer] = FLOW
                    self._reader[writer] = index
        key = (lo, hi, p0, p1, access.run, access.steps, access.dynamic)
        for bucket in near if solid or len(near) <= _SPREAD else (_EVERYWHERE,):
            reads = self._reads.get(bucket)
            if reads is None:
                reads = self._reads[bucket] = {}
            known = reads.get(key)
            if known is not None:
                known[6].append(index)
                continue
            low, high = _cut(lo, hi, bucket, shift) if solid else (lo, hi)
            reads[key] = (low, high, p0, p1, solid, access, [index])

    def write(self, access: Access, index: int, found: dict[int, int]) -> None:
        base = access.place.address or 0
        lo, hi, p0, p1 = base + access.lo, base + access.hi, access.p0, access.p1
        if hi <= lo:
            return
        solid = access.run >= hi - lo
        shift = self._shift
        near = range(lo >> shift, ((hi - 1) >> shift) + 1)
        whole = (lo, hi, p0, p1, solid, access, index)
        if _EVERYWHERE in self._writes or _EVERYWHERE in self._reads:
            self._overwrite(_EVERYWHERE, whole, found)
        if not solid and len(near) > _SPREAD:
            for bucket in near:
                self._overwrite(bucket, whole, found)
            self._writes.setdefault(_EVERYWHERE, []).append(whole)
            return
        for bucket in near:
            entry = whole
            if solid:
                low, high = _cut(lo, hi, bucket, shift)
                entry = (low, high, p0, p1, solid, access, index)
            self._overwrite(bucket, entry, found)
            self._writes.setdefault(bucket, []).append(entry)

    def _overwrite(self, bucket: int, entry: _Write, found: dict[int, int]) -> None:
        """Wait for what is in `bucket`, and forget what `entry` covers."""
        reads = self._reads.get(bucket)
        if reads:
            self._reads[bucket] = _forget_reads(entry, reads, found)
        writes = self._writes.get(bucket)
        if writes:
            self._writes[bucket] = self._after(entry, writes, found)

    def _after(self, entry: _Write, writes: list[_Write], found: dict[int, int]) -> list[_Write]:
        """What is left of `writes` to remember after one more."""
        lo, hi, p0, p1, solid, access, _ = entry
        reader = self._reader
        kept = []
        for old in writes:
            e_lo, e_hi, e_p0, e_p1, e_solid, other, writer = old
            if e_lo >= hi or lo >= e_hi or e_p0 >= p1 or p0 >= e_p1:
                kept.append(old)
                continue
            if not (solid and e_solid) and not overlap(access, other):
                kept.append(old)
                continue
            if reader.get(writer) not in found:
                found.setdefault(writer, ANTI)
            for low, high, q0, q1 in _left(entry, old):
                kept.append((low, high, q0, q1, e_solid, other, writer))
        return kept


def _cut(lo: int, hi: int, bucket: int, shift: int) -> tuple[int, int]:
    return max(lo, bucket << shift), min(hi, (bucket + 1) << shift)


def _forget_reads(
    entry: _Write, reads: dict[_Extent, _Read], found: dict[int, int]
) -> dict[_Extent, _Read]:
    """Wait for those that read what is overwritten; the reads to remember after that."""
    lo, hi, p0, p1, solid, access, _ = entry
    kept: dict[_Extent, _Read] = {}
    for key, old in reads.items():
        e_lo, e_hi, e_p0, e_p1, e_solid, other, readers = old
        if e_lo >= hi or lo >= e_hi or e_p0 >= p1 or p0 >= e_p1:
            kept[key] = old
            continue
        if not (solid and e_solid) and not overlap(access, other):
            kept[key] = old
            continue
        for reader in readers:
            found.setdefault(reader, ANTI)
        for low, high, q0, q1 in _left(entry, old):
            if low == e_lo and high == e_hi and q0 == e_p0 and q1 == e_p1:
                kept[key] = old
                continue
            # what is left is no longer what `key` stands for
            rest = (low, high, q0, q1, high - low, (), False)
            if rest in kept:
                kept[rest][6].extend(readers)
            else:
                kept[rest] = (low, high, q0, q1, True, other, list(readers))
    return kept


def _left(entry: _Write, old: _Write | _Read) -> list[tuple[int, int, int, int]]:
    """What of `old` remains to be waited for after the write `entry`: (lo, hi, p0, p1) each."""
    lo, hi, p0, p1, solid, access, _ = entry
    e_lo, e_hi, e_p0, e_p1, e_solid, other, _ = old
    if access.dynamic:
        # it may leave any of these bytes as they were, even where its pattern is as large as its
        # tensor: rows can be skipped
        return [(e_lo, e_hi, e_p0, e_p1)]
    inside = p0 <= e_p0 and e_p1 <= p1
    if not solid:
        same = access.run == other.run and access.steps == other.steps
        covered = inside and same and not other.dynamic and lo == e_lo and hi == e_hi
        return [] if covered else [(e_lo, e_hi, e_p0, e_p1)]
    if inside and lo <= e_lo and e_hi <= hi:
        return []
    if not e_solid:
        return [(e_lo, e_hi, e_p0, e_p1)]
    left = []
    if e_lo < lo:
        left.append((e_lo, lo, e_p0, e_p1))
    if hi < e_hi:
        left.append((hi, e_hi, e_p0, e_p1))
    low, high = max(lo, e_lo), min(hi, e_hi)
    if e_p0 < p0:
        left.append((low, high, e_p0, p0))
    if p1 < e_p1:
        left.append((low, high, p1, e_p1))
    return left
