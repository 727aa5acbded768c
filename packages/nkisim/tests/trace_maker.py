"""Traces made by hand: tensors, operands and instructions without a kernel."""

from __future__ import annotations

from typing import Any

from nkisim.dtypes import DType, float32
from nkisim.enums import Engine, MemoryRegion, NcVersion
from nkisim.trace import Access, CoreTrace, Instruction, Meeting, Place, Trace

# the details of an ordinary transfer and an ordinary matmul
TRANSFER: dict[str, Any] = {"dge": "none", "indirect": False, "queue": None}
MATMUL: dict[str, Any] = {"perf_mode": "none", "is_transpose": False}


class Maker:
    """One core's trace under construction."""

    def __init__(self, rank: int = 0, core: int = 0, lnc: int = 1) -> None:
        self.id = rank * lnc + core
        self.trace = CoreTrace(rank, core)
        self._serial = self.id * 1_000_000

    def tensor(
        self,
        region: MemoryRegion,
        shape: tuple[int, ...],
        dtype: DType = float32,
        address: int | None = None,
        name: str = "",
    ) -> Place:
        """A tensor; on chip the first dimension is the partitions."""
        on_chip = region in (MemoryRegion.sbuf, MemoryRegion.psum)
        size = dtype.itemsize
        for extent in shape[1:] if on_chip else shape:
            size *= extent
        self._serial += 1
        place = Place(
            self._serial, region, name or f"t{self._serial}", shape, dtype,
            shape[0] if on_chip else 1, size, self.id,
        )  # fmt: skip
        if address is not None:
            place.address, place.addressed = address, True
        self.trace.places.append(place)
        return place

    def sbuf(self, *shape: int, dtype: DType = float32, address: int | None = None) -> Place:
        return self.tensor(MemoryRegion.sbuf, shape, dtype, address)

    def psum(self, *shape: int, dtype: DType = float32, address: int | None = None) -> Place:
        return self.tensor(MemoryRegion.psum, shape, dtype, address)

    def hbm(self, *shape: int, dtype: DType = float32) -> Place:
        return self.tensor(MemoryRegion.private_hbm, shape, dtype)

    def issue(
        self,
        op: str,
        engine: Engine,
        writes: tuple[Place | Access, ...] = (),
        reads: tuple[Place | Access, ...] = (),
        meeting: Meeting | None = None,
        scope: int = 0,
        **details: Any,
    ) -> Instruction:
        """The next instruction; a whole tensor stands for an operand that covers it."""
        index = len(self.trace.instructions)
        made = [
            tuple(whole(x) if isinstance(x, Place) else x for x in side) for side in (writes, reads)
        ]
        for access in made[0] + made[1]:
            if access.place.first < 0:
                access.place.first = index
            access.place.last = index
        instruction = Instruction(
            index, op, engine, made[0], made[1], None, None, 0, scope, details or None
        )
        instruction.meeting = meeting
        self.trace.instructions.append(instruction)
        return instruction

    # the instructions that tests need most, with all their details

    def load(self, dst: Place | Access, src: Place | Access, **details: Any) -> Instruction:
        return self.issue("dma_copy", Engine.dma, (dst,), (src,), **(TRANSFER | details))

    def matmul(
        self, dst: Place | Access, stationary: Place | Access, moving: Place | Access,
        add: bool = False, **details: Any,
    ) -> Instruction:  # fmt: skip
        reads = (stationary, moving, dst) if add else (stationary, moving)
        return self.issue("nc_matmul", Engine.tensor, (dst,), reads, **(MATMUL | details))

    def copy(
        self,
        dst: Place | Access,
        src: Place | Access,
        engine: Engine = Engine.vector,
        scope: int = 0,
    ) -> Instruction:
        return self.issue("tensor_copy", engine, (dst,), (src,), scope=scope)

    def activation(
        self, dst: Place | Access, src: Place | Access, reduces: bool = False
    ) -> Instruction:
        return self.issue("activation", Engine.scalar, (dst,), (src,), reduces=reduces)


def whole(place: Place) -> Access:
    """All of a tensor."""
    on_chip = place.on_chip
    p0 = place.base_partition if on_chip else 0
    p1 = p0 + place.partitions if on_chip else 1
    size = place.bytes_per_partition
    item = place.dtype.itemsize
    return Access(place, place.dtype, p0, p1, 0, size, size, (), size // item, item, False)


def part(
    place: Place,
    lo: int,
    run: int,
    steps: tuple[tuple[int, int], ...] = (),
    partitions: tuple[int, int] | None = None,
    dtype: DType | None = None,
    inner_step: int | None = None,
    dynamic: bool = False,
) -> Access:
    """Runs of `run` bytes of a tensor, from byte `lo` on, repeated as `steps` say."""
    dtype = dtype or place.dtype
    p0, p1 = partitions or ((0, place.partitions) if place.on_chip else (0, 1))
    hi, count = lo + run, 1
    for step, repeats in steps:
        hi += step * (repeats - 1)
        count *= repeats
    step = dtype.itemsize if inner_step is None else inner_step
    elements = run // dtype.itemsize * count
    return Access(place, dtype, p0, p1, lo, hi, run, steps, elements, step, dynamic)


def trace(
    *makers: Maker, target: NcVersion = NcVersion.gen3, ranks: int = 1, lnc: int = 1
) -> Trace:
    return Trace(target, ranks, lnc, [maker.trace for maker in makers])
