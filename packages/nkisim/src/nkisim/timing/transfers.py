"""What a DMA instruction moves and how long its DMA engines take.

A transfer is made of descriptors, each one run of bytes that is contiguous on both sides. Every
core has 16 DMA engines; each serves 8 of the 128 partitions of SBUF, so a transfer that touches P
partitions keeps ceil(P / 8) of them busy; one within HBM is spread over all.
"""

from __future__ import annotations

from typing import NamedTuple

from nkisim.enums import MemoryRegion
from nkisim.machine import Machine
from nkisim.trace import Access, Instruction

# partitions that one DMA engine serves
PARTITIONS_PER_ENGINE = 8
# A processor of the GpSimd engine writes one descriptor of two 16-byte addresses a cycle: half of
# its 512 bits. Not published; it follows from the width.
_GPSIMD_PROCESSORS = 8
# rows and columns that the DMA engines transpose best (Trainium2 architecture guide)
_TRANSPOSE_ROWS = 128
_TRANSPOSE_COLUMNS = 16

TRANSFER_OPS = frozenset({"dma_copy", "dma_transpose", "dma_compute"})


class Transfer(NamedTuple):
    """What a DMA instruction moves.

    Attributes:
        bytes: of the payload
        read, written: bytes of it that come from and go to HBM
        descriptors: how many
        first, engines: the DMA engines that take part: `engines` of them from number `first`
        engine_ns: how long each of them is busy
        best_ns: how long they would be at the bandwidth that they can reach
        dge: who writes the descriptors: "none" (beforehand), "swdge" or "hwdge"
        dge_ns: how long that keeps the GpSimd engine or the hardware DGE busy
        alone_ns: from the start of it to the last byte when nothing else is under way
    """

    bytes: int
    read: int
    written: int
    descriptors: int
    first: int
    engines: int
    engine_ns: float
    best_ns: float
    dge: str
    dge_ns: float
    alone_ns: float


def transfer(instruction: Instruction, machine: Machine) -> Transfer:
    """The transfer of a dma_copy, dma_transpose or dma_compute.

    Raises:
        KeyError: a detail is missing.
    """
    dst = instruction.writes[0]
    sources = instruction.reads[:1]
    if instruction.op == "dma_compute":
        # the others have as many elements; what has not is an index, which the descriptors hold
        count = dst.elements * dst.partitions
        sources = tuple(s for s in instruction.reads if s.elements * s.partitions == count)
    first, engines, share = _engines(dst, sources[0], machine)
    descriptors, engine_ns = 0, 0.0
    for src in sources:
        count, ns = _descriptors(dst, src, machine)
        descriptors += count
        engine_ns += ns * share
    best_ns = max(dst.bytes, sum(src.bytes for src in sources)) * share / machine.dma_bytes_per_ns
    if instruction.op == "dma_transpose":
        engine_ns = _transpose_ns(dst, sources[0], machine)
        first, engines = 0, machine.dma_engines
        best_ns = dst.bytes / machine.dma_engines / machine.dma_bytes_per_ns
    elif instruction.op == "dma_compute":
        engine_ns /= machine.dma_add
    dge, dge_ns = _generation(instruction, descriptors, machine)
    read = sum(src.bytes for src in sources if not src.place.on_chip)
    written = 0 if dst.place.on_chip else dst.bytes
    hbm_ns = (read + written) / machine.hbm_share_bytes_per_ns
    return Transfer(
        max(dst.bytes, sum(src.bytes for src in sources)),
        read,
        written,
        descriptors,
        first,
        engines,
        engine_ns,
        best_ns,
        dge,
        dge_ns,
        dge_ns + machine.dma_start_ns + max(engine_ns, hbm_ns),
    )


def _engines(dst: Access, src: Access, machine: Machine) -> tuple[int, int, float]:
    """The first engine, how many, and the largest share of the transfer that falls to one."""
    side = dst if dst.place.region is MemoryRegion.sbuf else src
    if side.place.region is not MemoryRegion.sbuf:
        return 0, machine.dma_engines, 1 / machine.dma_engines
    first = side.p0 // PARTITIONS_PER_ENGINE
    last = (side.p1 - 1) // PARTITIONS_PER_ENGINE
    rows = side.p1 - side.p0
    return first, last - first + 1, min(PARTITIONS_PER_ENGINE, rows) / rows


def _descriptors(dst: Access, src: Access, machine: Machine) -> tuple[int, float]:
    """How many descriptors move `src` to `dst`, and how long one DMA engine would take for all."""
    wider = max(dst.dtype.itemsize, src.dtype.itemsize)
    payload = max(dst.bytes, src.bytes)
    # contiguous elements; a broadcast repeats its run
    run = min(dst.run // dst.dtype.itemsize, src.run // src.dtype.itemsize)
    run_bytes = min(max(run, 1) * wider, payload)
    count = -(-payload // run_bytes) if run_bytes else 0
    overhead_bound = run_bytes / machine.dma_peak_bytes_per_ns + machine.dma_descriptor_ns
    return count, count * max(run_bytes / machine.dma_bytes_per_ns, overhead_bound)


def _transpose_ns(dst: Access, src: Access, machine: Machine) -> float:
    """All engines work on one tile of 128 partitions and 16 columns at a time."""
    rows = -(-dst.partitions // _TRANSPOSE_ROWS) * _TRANSPOSE_ROWS
    columns = -(-dst.elements // _TRANSPOSE_COLUMNS) * _TRANSPOSE_COLUMNS
    share = machine.dma_transpose_sbuf if src.place.on_chip else machine.dma_transpose_hbm
    moved = rows * columns * dst.dtype.itemsize
    return moved / (machine.dma_engines * machine.dma_bytes_per_ns * share)


def _generation(instruction: Instruction, descriptors: int, machine: Machine) -> tuple[str, float]:
    """Who writes the descriptors, and how long that takes.

    "unknown" leaves it to the compiler, which takes the software for an indirect transfer (it must)
    and is taken to have written all others beforehand.
    """
    details = instruction.details or {}
    dge = details["dge"]
    if dge == "unknown":
        dge = "swdge" if details["indirect"] else "none"
    if dge == "hwdge":
        return dge, machine.hwdge_ns
    if dge == "swdge":
        cycles = machine.gpsimd_start_cycles + -(-descriptors // _GPSIMD_PROCESSORS)
        return dge, cycles / machine.gpsimd_ghz
    return "none", 0.0
