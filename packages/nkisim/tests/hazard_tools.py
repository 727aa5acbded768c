"""Accesses and instructions for tests of the race detectors, without a kernel."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from nkisim import dtypes
from nkisim.enums import Engine, MemoryRegion
from nkisim.trace import Access, Instruction, Place

SERIALS = itertools.count()


def tensor(name: str, size: int = 1024, region: MemoryRegion = MemoryRegion.shared_hbm) -> Place:
    core = None if region is MemoryRegion.shared_hbm else 0
    return Place(next(SERIALS), region, name, (size,), dtypes.uint8, 1, size, core)


def part(
    of: Place, lo: int = 0, run: int | None = None, step: int = 0, count: int = 1,
    dynamic: bool = False,
) -> Access:  # fmt: skip
    run = of.bytes_per_partition - lo if run is None else run
    steps = ((step, count),) if count > 1 else ()
    hi = lo + run + step * (count - 1)
    return Access(of, dtypes.uint8, 0, 1, lo, hi, run, steps, run * count, 1, dynamic)


def instruction(
    op: str, line: int, writes: Sequence[Access] = (), reads: Sequence[Access] = ()
) -> Instruction:
    code = compile("", "ring.py", "exec")
    return Instruction(line, op, Engine.dma, tuple(writes), tuple(reads), None, code, line, 0, None)


def write(line: int, access: Access) -> Instruction:
    return instruction("dma_copy", line, [access])


def read(line: int, access: Access) -> Instruction:
    return instruction("dma_copy", line, [], [access])
