"""The core that a kernel runs on: its memories, its registers, and the record of what it does."""

from __future__ import annotations

import math
import operator
import sys
import warnings
from collections.abc import Sequence
from contextvars import ContextVar
from functools import cached_property
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from nkisim import machine
from nkisim.address_map import AddressMap
from nkisim.dtypes import DType
from nkisim.enums import Engine, MemoryRegion, NcVersion
from nkisim.errors import (
    NkiCapacityError,
    NkiError,
    NkiOutsideKernelError,
    NkiValidationError,
    NkiWarning,
)
from nkisim.psum import Accumulation, Products
from nkisim.random_streams import RandomStreams
from nkisim.storage import Bytes, Storage, fresh_storage, poisoned
from nkisim.tensor import NkiTensor, whole
from nkisim.trace import Access, CoreTrace, Instruction, Place
from nkisim.watch import as_touched

if TYPE_CHECKING:
    from nkisim.run import Run

# the frequent instructions that store every byte of what they write, if no index takes part
_STORES_ALL = frozenset(
    {
        "activation", "dma_copy", "memset", "nc_matmul", "nc_transpose", "reciprocal",
        "tensor_copy", "tensor_reduce", "tensor_scalar", "tensor_tensor",
    }
)  # fmt: skip

_current: ContextVar[Core | None] = ContextVar("nkisim_core", default=None)


def current(what: str) -> Core:
    """The core that runs the calling kernel.

    Raises:
        NkiOutsideKernelError: none does; `what` is the function that needed one.
    """
    core = _current.get()
    if core is None:
        raise NkiOutsideKernelError(
            f"{what} was called outside a kernel; run the kernel with nkisim.simulate(kernel)(...)"
        )
    return core


def current_or_none() -> Core | None:
    """The core that runs the calling kernel, if any."""
    return _current.get()


def enter(core: Core) -> Any:
    """Make `core` the current one of this context; returns what `leave` takes."""
    return _current.set(core)


def leave(token: Any) -> None:
    """Undo `enter`."""
    _current.reset(token)


class Core:
    """One physical NeuronCore in a run.

    Attributes:
        run: what all cores of the run share
        rank, number, id: its rank, its number within the rank, and `rank * lnc + number`
        target: the generation
        numerics: whether values are computed
        trace: its instructions
        accumulators: the reduction registers of the Vector and the Scalar engine, fp32 [128] each
        progress: how many instructions it has issued
    """

    def __init__(self, run: Run, rank: int, number: int) -> None:
        self.run = run
        self.rank = rank
        self.number = number
        self.id = rank * run.lnc + number
        self.settings = run.settings
        self.rules = run.settings.rules
        self.target: NcVersion = run.settings.target
        self.machine = machine.of(self.target)
        self.numerics = run.settings.numerics
        self.trace = CoreTrace(rank, number)
        self.keeps_trace = run.settings.trace
        self.accumulators = {
            Engine.vector: np.zeros(128, np.float32),
            Engine.scalar: np.zeros(128, np.float32),
        }
        self.reorder_scope = 0
        self.reorder_scopes = 0
        self.progress = 0
        self.shared_allocations = 0
        self._allocations = 0
        self.meetings: dict[Any, int] = {}
        self.products = Products()
        # what a kernel may use of a partition
        self._partition_bytes = {
            MemoryRegion.sbuf: self.machine.sbuf_bytes_per_partition,
            MemoryRegion.psum: self.machine.psum_bytes_per_partition,
        }
        self._memory: dict[MemoryRegion, Bytes] = {}
        self._addressed = {MemoryRegion.sbuf: AddressMap(), MemoryRegion.psum: AddressMap()}

    @cached_property
    def random_streams(self) -> RandomStreams:
        """Made for those that want them: 0.1 ms, a third of the time of the smallest runs."""
        return RandomStreams(np.random.default_rng((self.settings.seed, self.id)))

    def close(self) -> None:
        """Let go of what it holds that may hold it."""
        self.products = Products()
        self._memory.clear()

    # Rules

    def violation(self, rule: str, message: str) -> None:
        """Report the breach of a rule at its level.

        Raises:
            NkiValidationError: the level is `error`; for the rule `capacity` its own kind.
        """
        level = getattr(self.rules, rule)
        if level == "off":
            return
        code, line = kernel_position(sys._getframe(1))
        file = code.co_filename if code is not None else "unknown"
        if level == "error":
            kind = NkiCapacityError if rule == "capacity" else NkiValidationError
            raise kind(f"{message} [{rule}] at {file}:{line}")
        warnings.warn_explicit(
            f"{message} [{rule}]", NkiWarning, file, line, registry=self.run.warned
        )

    def require_generation(self, what: str, generation: int) -> None:
        """Raise where the target is older than `generation`."""
        if self.target < generation:
            self.violation(
                "constraint", f"{what} needs gen{generation}; the target is {self.target.name}"
            )

    # Memory

    def memory(self, region: MemoryRegion) -> Bytes:
        """All bytes of SBUF or PSUM, partition after partition."""
        found = self._memory.get(region)
        if found is None:
            found = poisoned(self.machine.partitions * self._partition_bytes[region])
            self._memory[region] = found
        return found

    def allocate(
        self,
        shape: tuple[int, ...],
        dtype: DType,
        region: MemoryRegion,
        name: str = "",
        address: tuple[int, int] | None = None,
    ) -> NkiTensor:
        """A new tensor with undefined contents.

        `address` is the first partition and the first byte in it, on chip only.
        """
        if region is MemoryRegion.sbuf or region is MemoryRegion.psum:
            return self._allocate_on_chip(shape, dtype, region, name, address)
        if region is MemoryRegion.shared_hbm:
            return self.run.shared_tensor(self, shape, dtype, name)
        size = math.prod(shape) * dtype.itemsize
        place = self._place(region, name, shape, dtype, 1, size)
        return whole(Storage(place, poisoned(size) if self.numerics else None, 0, 0))

    def _allocate_on_chip(
        self,
        shape: tuple[int, ...],
        dtype: DType,
        region: MemoryRegion,
        name: str,
        address: tuple[int, int] | None,
    ) -> NkiTensor:
        size = math.prod(shape[1:]) * dtype.itemsize
        place = self._place(region, name, shape, dtype, shape[0], size)
        self._check_size(place)
        if address is not None:
            storage = self._addressed_storage(place, address)
        else:
            storage = fresh_storage(place, self.numerics)
        if region is MemoryRegion.psum:
            storage.accumulation = Accumulation(self, shape[0], size)
        return whole(storage)

    def _place(
        self,
        region: MemoryRegion,
        name: str,
        shape: tuple[int, ...],
        dtype: DType,
        partitions: int,
        size: int,
    ) -> Place:
        """The record of a new tensor."""
        # each core counts for itself, so that how the cores take turns makes no difference
        serial = self._allocations
        self._allocations = serial + 1
        place = Place(serial, region, name, shape, dtype, partitions, size, self.id)
        place.code, place.line = kernel_position(sys._getframe(2))
        if self.keeps_trace:
            self.trace.places.append(place)
        return place

    def _check_size(self, place: Place) -> None:
        if place.partitions > self.machine.partitions:
            self.violation(
                "constraint",
                f"{place}: {place.partitions} partitions; on chip a tensor has at most "
                f"{self.machine.partitions}",
            )
        limit = self._partition_bytes[place.region]
        if place.bytes_per_partition > limit:
            self.violation(
                "capacity",
                f"{place} takes {place.bytes_per_partition} bytes of each partition; "
                f"{place.region.value.upper()} has {limit}",
            )

    def _addressed_storage(self, place: Place, address: tuple[int, int]) -> Storage:
        partition, byte = _checked_address(place, address)
        limit = self._partition_bytes[place.region]
        if partition + place.partitions > self.machine.partitions:
            self.violation(
                "capacity",
                f"{place} at partition {partition} takes {place.partitions} partitions, past "
                f"{self.machine.partitions}",
            )
        if byte + place.bytes_per_partition > limit:
            self.violation(
                "capacity",
                f"{place} at byte {byte} ends at byte {byte + place.bytes_per_partition} of each "
                f"partition; {place.region.value.upper()} has {limit}",
            )
        if place.region is MemoryRegion.psum and byte % self.machine.psum_bank_bytes:
            self.violation(
                "bank_start",
                f"{place} begins at byte {byte}, inside a PSUM bank; banks begin at multiples of "
                f"{self.machine.psum_bank_bytes}",
            )
        place.base_partition, place.address, place.addressed = partition, byte, True
        data = self.memory(place.region) if self.numerics else None
        storage = Storage(place, data, partition * limit + byte, limit)
        storage.neighbours = self._addressed[place.region]
        return storage

    # Instructions

    def issue(
        self,
        op: str,
        engine: Engine,
        writes: Sequence[NkiTensor],
        reads: Sequence[NkiTensor],
        name: str | None = None,
        details: dict[str, Any] | None = None,
        collective: bool = False,
    ) -> Instruction:
        """Record an instruction, after its constraints were checked and before it computes.

        Checks that what it reads was written, and notes what it writes. A collective is looked at
        for races when it meets.
        """
        index = self.progress
        self.progress = index + 1
        code, line = kernel_position(sys._getframe(2))
        read = []
        written = []
        followed = []
        for tensor in reads:
            access = tensor._access or tensor.access()
            read.append(access)
            access.place.touch(index)
            if access.dynamic:
                followed.append(tensor)
            storage = tensor.storage
            if not storage.coverage.full and not storage.was_written(access):
                self._report_unwritten(op, tensor, access)
        for tensor in writes:
            access = tensor._access or tensor.access()
            written.append(access)
            access.place.touch(index)
            if access.dynamic:
                followed.append(tensor)
        if followed:
            read += self._follow(op, followed, reads, index)
        instruction = Instruction(
            index,
            op,
            engine,
            tuple(written),
            tuple(read),
            name,
            code,
            line,
            self.reorder_scope,
            details,
        )
        for tensor in writes:
            storage = tensor.storage
            if storage.fresh and (followed or op not in _STORES_ALL):
                storage.settle()
            storage.version += 1
            if storage.coverage.full and storage.neighbours is None:
                continue
            touched = None if tensor.dynamic is None else tensor.touched()
            for part in (tensor.access(),) if touched is None else touched:
                storage.mark_written(part, instruction)
        if self.run.watches and not collective:
            seen = as_touched(instruction, writes, reads) if followed else instruction
            self.run.hazards.look(self, seen)
        if self.keeps_trace:
            self.trace.instructions.append(instruction)
        else:
            self.trace.dropped += 1
        return instruction

    def _follow(
        self, op: str, tensors: list[NkiTensor], reads: Sequence[NkiTensor], index: int
    ) -> list[Access]:
        """The indices that operands with dynamic addresses read, all of them checked."""
        found = []
        for tensor in tensors:
            assert tensor.dynamic is not None
            chosen = tensor.dynamic.index
            if isinstance(chosen, NkiTensor):
                access = chosen.access()
                access.place.touch(index)
                if not chosen.storage.was_written(access):
                    self._report_unwritten(op, chosen, access)
                found.append(access)
            if not tensor.storage.coverage.full and any(tensor is other for other in reads):
                for part in tensor.touched() or ():
                    if not tensor.storage.was_written(part):
                        self._report_unwritten(op, tensor, part)
        return found

    def _report_unwritten(self, op: str, tensor: NkiTensor, access: Access) -> None:
        storage = tensor.storage
        storage.settle()
        operand = operand_name(sys._getframe(2), tensor)
        where = f"partitions {access.p0}:{access.p1}, bytes {access.lo}:{access.hi}"
        rule = storage.breach(access)
        if rule == "overwritten":
            why = f"{storage.clobbered_by} overwrote through another tensor at the same address"
        elif rule == "aliased":
            why = "was written only through another tensor at the same address"
        else:
            why = "nothing has written"
        self.violation(rule, f"{op}: {operand} reads {where} of {tensor!r}, part of which {why}")


def kernel_position(frame: FrameType | None) -> tuple[CodeType | None, int]:
    """The code and line of the innermost frame outside nkisim."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not (module.startswith("nkisim.") or module == "nkisim"):
            return frame.f_code, frame.f_lineno
        frame = frame.f_back
    return None, 0


def position() -> str:
    """`file:line` of the kernel that calls."""
    code, line = kernel_position(sys._getframe(1))
    return f"{code.co_filename}:{line}" if code is not None else "unknown"


def operand_name(frame: FrameType | None, tensor: NkiTensor) -> str:
    """What the instruction function calls `tensor`; `frame` is the function's, or one below it."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith("nkisim"):
            break
        if module != __name__:
            for name, value in frame.f_locals.items():
                if value is tensor:
                    return name
        frame = frame.f_back
    return "an operand"


def _checked_address(place: Place, address: Any) -> tuple[int, int]:
    try:
        partition, byte = address
        partition, byte = operator.index(partition), operator.index(byte)
    except (TypeError, ValueError):
        raise NkiError(
            f"address of {place} is {address!r}; on chip it must be (partition, byte)"
        ) from None
    if partition < 0 or byte < 0:
        raise NkiValidationError(f"address of {place} is {address!r}; neither may be negative")
    return partition, byte
