"""What a run leaves behind: every instruction with its engine, operands and source line.

A trace holds no tensor data, so it can outlive the run. Reports, schedules and counts are made of
it and of nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from nkisim.dtypes import DType
from nkisim.enums import Engine, MemoryRegion, NcVersion

# the collectives that move each source to one other rank, and that complete when waited for
PERMUTES = frozenset(
    {"collective_permute", "collective_permute_implicit", "collective_permute_implicit_reduce"}
)


@dataclass(frozen=True)
class Source:
    """What is left of a code object in a trace that was pickled."""

    co_filename: str
    co_name: str


def _state(kept: Place | Instruction) -> dict[str, Any]:
    """The attributes of `kept` for `pickle`, which cannot take a code object."""
    state = {name: getattr(kept, name) for name in kept.__slots__}
    code = kept.code
    if code is not None:
        state["code"] = Source(code.co_filename, code.co_name)
    return state


def _restore(kept: Place | Instruction, state: dict[str, Any]) -> None:
    for name, value in state.items():
        setattr(kept, name, value)


class Place:
    """Where one allocated tensor lives, and when it is used; what is left of it in a trace.

    Attributes:
        serial: tells it from the other tensors of its core, or of what its core shares
        region: SBUF, PSUM, private or shared HBM
        given_name: what the kernel calls it, or empty
        partitions: partitions on chip; 1 in HBM
        bytes_per_partition: bytes of each partition; all bytes in HBM
        base_partition, address: the first partition and the first byte in it, where the kernel or
            the allocator placed the tensor on chip; `address` is None before that, and in HBM
            unless the kernel gave one
        addressed: the kernel gave the address itself
        core: the core (`rank * lnc + core`) that owns it; None for shared HBM
        code, line: the source position of the allocation
        first, last: the indices, in its core's trace, of the first and last instruction that
            touches it; -1 where there is none. They say nothing where several cores touch it.
    """

    __slots__ = (
        "address", "addressed", "base_partition", "bytes_per_partition", "code", "core", "dtype",
        "first", "given_name", "kind", "last", "line", "partitions", "region", "serial", "shape",
    )  # fmt: skip

    def __init__(
        self,
        serial: int,
        region: MemoryRegion,
        name: str,
        shape: tuple[int, ...],
        dtype: DType,
        partitions: int,
        bytes_per_partition: int,
        core: int | None,
    ) -> None:
        self.serial = serial
        self.region = region
        self.given_name = name
        self.shape = shape
        self.dtype = dtype
        self.partitions = partitions
        self.bytes_per_partition = bytes_per_partition
        self.core = core
        self.kind = "internal"  # "input", "output" for what a launch hands in and gets back
        self.base_partition = 0
        self.address: int | None = None
        self.addressed = False
        self.code: CodeType | Source | None = None
        self.line = 0
        self.first = -1
        self.last = -1

    @property
    def name(self) -> str:
        """What the kernel calls it; where it says nothing, one made of the serial."""
        return self.given_name or f"{self.region.value}#{self.serial}"

    @property
    def on_chip(self) -> bool:
        return self.region is MemoryRegion.sbuf or self.region is MemoryRegion.psum

    def touch(self, index: int) -> None:
        """Note that instruction `index` uses this tensor."""
        if self.first < 0:
            self.first = index
        self.last = index

    def meets(self, other: Place) -> bool:
        """Whether both have addresses in the same memory, and bytes in common there."""
        if self.address is None or other.address is None or self.region is not other.region:
            return False
        return (
            self.base_partition < other.base_partition + other.partitions
            and other.base_partition < self.base_partition + self.partitions
            and self.address < other.address + other.bytes_per_partition
            and other.address < self.address + self.bytes_per_partition
        )

    @property
    def location(self) -> str:
        """`file:line` of the allocation in the kernel."""
        return f"{self.code.co_filename}:{self.line}" if self.code is not None else "argument"

    __getstate__ = _state
    __setstate__ = _restore

    def __repr__(self) -> str:
        return f"{self.region.value} tensor {self.name!r} {list(self.shape)} {self.dtype}"


class Access:
    """The bytes that one operand of one instruction touches.

    The bytes, in each of the partitions `p0 <= p < p1` (physical ones), are the runs of `run` bytes
    that begin at `lo + sum(i_k * steps[k][0])` for all `0 <= i_k < steps[k][1]`; outermost step
    first. Offsets count from the start of the tensor's partition (in HBM: of the tensor), so
    physically from `place.address`. All lie in `lo <= byte < hi`.

    Attributes:
        elements: elements per partition on chip; all elements in HBM
        inner_step: bytes from one element to the next along the innermost dimension that has more
            than one; `dtype.itemsize` when it is contiguous, 0 for a broadcast
        dynamic: an index known only at run time takes part; `lo` and `hi` are then all that it may
            reach, `run` and `steps` the pattern that it moves
    """

    __slots__ = (
        "dtype", "dynamic", "elements", "hi", "inner_step", "lo", "p0", "p1", "place", "run",
        "steps",
    )  # fmt: skip

    def __init__(
        self,
        place: Place,
        dtype: DType,
        p0: int,
        p1: int,
        lo: int,
        hi: int,
        run: int,
        steps: tuple[tuple[int, int], ...],
        elements: int,
        inner_step: int,
        dynamic: bool,
    ) -> None:
        self.place = place
        self.dtype = dtype
        self.p0 = p0
        self.p1 = p1
        self.lo = lo
        self.hi = hi
        self.run = run
        self.steps = steps
        self.elements = elements
        self.inner_step = inner_step
        self.dynamic = dynamic

    @property
    def partitions(self) -> int:
        return self.p1 - self.p0

    @property
    def bytes(self) -> int:
        """Bytes moved: elements times their size, over all partitions."""
        return self.elements * self.dtype.itemsize * (self.p1 - self.p0)

    def __repr__(self) -> str:
        return (
            f"Access({self.place.name!r}, partitions {self.p0}:{self.p1}, "
            f"bytes {self.lo}:{self.hi}, runs of {self.run}, steps {self.steps})"
        )


class Instruction:
    """One instruction of a trace; also what every instruction returns to the kernel.

    Attributes:
        index: its place in the program order of its core
        op: the instruction's name, `nc_matmul` for instance
        engine: the engine whose queue it is in
        writes, reads: its operands; one that is updated in place stands in both
        name: the `name=` of the call
        code, line: the source position of the call
        reorder_scope: which `nl.no_reorder` block it stands in; 0 for none
        details: what its cost needs beside the operands (see `nkisim.timing.cost`), or None
        meeting: for a collective, a barrier or an exchange: which one, the same on every core that
            takes part; else None
        after: instructions that it waits for because the kernel said `depends_on`
    """

    __slots__ = (
        "after", "code", "details", "engine", "index", "line", "meeting", "name", "op", "reads",
        "reorder_scope", "writes",
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        op: str,
        engine: Engine,
        writes: tuple[Access, ...],
        reads: tuple[Access, ...],
        name: str | None,
        code: CodeType | None,
        line: int,
        reorder_scope: int,
        details: dict[str, Any] | None,
    ) -> None:
        self.index = index
        self.op = op
        self.engine = engine
        self.writes = writes
        self.reads = reads
        self.name = name
        self.code: CodeType | Source | None = code
        self.line = line
        self.reorder_scope = reorder_scope
        self.details = details
        self.meeting: Meeting | None = None
        self.after: tuple[Instruction, ...] = ()

    def depends_on(self, *producers: Instruction) -> Instruction:
        """Say that this instruction starts after `producers`; returns itself."""
        for producer in producers:
            if not isinstance(producer, Instruction):
                raise TypeError(f"depends_on takes instructions, not {producer!r}")
        self.after += producers
        return self

    @property
    def location(self) -> str:
        """`file:line` of the call in the kernel."""
        return f"{self.code.co_filename}:{self.line}" if self.code is not None else "unknown"

    def __copy__(self) -> Instruction:
        """The same instruction again, code object included."""
        made = Instruction.__new__(Instruction)
        for name in self.__slots__:
            setattr(made, name, getattr(self, name))
        return made

    __getstate__ = _state
    __setstate__ = _restore

    def __repr__(self) -> str:
        return f"<{self.op} #{self.index} on {self.engine.name} at {self.location}>"


@dataclass(frozen=True)
class Meeting:
    """A collective, a barrier or an exchange that several cores take part in.

    Attributes:
        kind: `all_reduce`, `core_barrier`, `sendrecv`, ...
        key: tells it from every other of its run; equal on all cores that take part
        cores: who takes part, as `rank * lnc + core`
        ranks: how many ranks exchange data (1 for what stays within a rank)
        bytes_per_rank: what each rank puts in
    """

    kind: str
    key: tuple[Any, ...]
    cores: tuple[int, ...]
    ranks: int
    bytes_per_rank: int


@dataclass
class CoreTrace:
    """The instructions of one core in program order.

    `dropped` counts instructions that were run but not kept.
    """

    rank: int
    core: int
    instructions: list[Instruction] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.instructions)

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions)


@dataclass
class Trace:
    """The traces of all cores of a run, rank by rank, and what they ran on."""

    target: NcVersion
    ranks: int
    lnc: int
    cores: list[CoreTrace]
