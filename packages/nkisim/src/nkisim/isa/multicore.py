"""What the two cores of a rank do together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nkisim.core import Core, current, position
from nkisim.enums import DmaEngine, Engine, MemoryRegion, member
from nkisim.isa import checks
from nkisim.meeting import Description
from nkisim.tensor import NkiTensor
from nkisim.trace import Instruction, Meeting

_BARRIER_ENGINES = (
    Engine.tensor, Engine.vector, Engine.scalar, Engine.gpsimd, Engine.sync,
)  # fmt: skip

# bytes of a partition that GpSimd's own DMA takes, by the size of an element
_GPSIMD_LIMIT = {4: 1024, 2: 512, 1: 256}


def sendrecv(
    src: NkiTensor,
    dst: NkiTensor,
    send_to_rank: int,
    recv_from_rank: int,
    pipe_id: int,
    dma_engine: Any = DmaEngine.dma,
    name: str | None = None,
) -> Instruction:
    """Send `src` to the other core of the rank, and receive its `src` in `dst`.

    Args:
        src, dst: SBUF, of equal shape and dtype.
        send_to_rank, recv_from_rank: the other core, 0 or 1.
        pipe_id: exchanges with equal ids pair up in program order.
        dma_engine: gpsimd_dma is quicker for small tiles, up to 1024 bytes of a partition in 4-byte
            types, 512 in 2-byte and 256 in 1-byte types.

    Raises:
        NkiValidationError: an operand breaks a constraint, or the rank has one core.
        NkiMismatchError: the other core exchanges another shape or dtype.
    """
    core = current("nisa.sendrecv")
    op = "sendrecv"
    core.require_generation(op, 3)
    carrier = member(DmaEngine, dma_engine, f"{op}: dma_engine")
    if core.run.lnc != 2:
        core.violation("constraint", f"{op}: the rank has one core; launch the kernel with [2]")
    for operand_name, tensor in (("src", src), ("dst", dst)):
        if type(tensor) is not NkiTensor:
            raise TypeError(f"{op}: {operand_name} is {tensor!r}; it must be a tensor")
        if tensor.buffer is not MemoryRegion.sbuf:
            core.violation("constraint", f"{op}: {operand_name} is {tensor!r}; it must be in SBUF")
    if src.shape != dst.shape or src.dtype is not dst.dtype:
        core.violation(
            "constraint", f"{op}: src is {src!r}, dst {dst!r}; shape and dtype must be equal"
        )
    peer = 1 - core.number
    for argument, rank in (("send_to_rank", send_to_rank), ("recv_from_rank", recv_from_rank)):
        if rank != peer:
            core.violation(
                "constraint", f"{op}: {argument} is {rank!r} on core {core.number}; it must be {peer}"
            )
    per_partition = src.access().elements * src.dtype.itemsize
    if carrier is DmaEngine.gpsimd_dma and per_partition > _GPSIMD_LIMIT[src.dtype.itemsize]:
        core.violation(
            "constraint",
            f"{op}: src has {per_partition} bytes of each partition; gpsimd_dma takes at most "
            f"{_GPSIMD_LIMIT[src.dtype.itemsize]} of a {src.dtype.itemsize}-byte type",
        )
    details = {"dma_engine": carrier.name}
    instruction = core.issue(op, Engine.gpsimd, (dst,), (src,), name, details)
    instruction.meeting = _pair(core, op, pipe_id, src.access().bytes)
    description = Description.of(op, pipe_id=pipe_id, shape=src.shape, dtype=str(src.dtype))

    def exchange(payloads: dict[int, Any]) -> None:
        if core.numerics:
            sent = {sender: np.array(pair[0].values()) for sender, pair in payloads.items()}
            first, second = sorted(payloads)
            payloads[first][1].assign(sent[second])
            payloads[second][1].assign(sent[first])

    _meet(core, instruction.meeting, description, (src, dst), exchange)
    return instruction


def core_barrier(
    data: NkiTensor,
    cores: Sequence[int],
    engine: Any = Engine.gpsimd,
    name: str | None = None,
) -> Instruction:
    """Wait until both cores are here, and what each wrote to `data` is visible to the other.

    Has no effect in a rank of one core.

    Args:
        data: a shared HBM tensor.
        cores: (0, 1).
        engine: whose queue waits.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.core_barrier")
    op = "core_barrier"
    chosen = checks.choose_engine(core, op, engine, _BARRIER_ENGINES, Engine.gpsimd)
    if type(data) is not NkiTensor:
        raise TypeError(f"{op}: data is {data!r}; it must be a tensor")
    instruction = core.issue(op, chosen, (), (), name)
    if core.run.lnc != 2:
        return instruction
    core.require_generation(op, 3)
    if tuple(cores) != (0, 1):
        core.violation("constraint", f"{op}: cores is {cores!r}; it must be (0, 1)")
    if data.buffer is not MemoryRegion.shared_hbm:
        core.violation("constraint", f"{op}: data is {data!r}; it must be a shared HBM tensor")
    # the barrier neither reads nor writes; what follows on `data` depends on it all the same
    instruction.reads = instruction.writes = (data.access(),)
    instruction.meeting = _pair(core, op, None, 0)
    description = Description.of(op, data=data.name, shape=data.shape)
    _meet(core, instruction.meeting, description, data, lambda payloads: None)
    core.run.hazards.barrier(core, instruction, data.storage.place)
    return instruction


def _pair(core: Core, op: str, pipe: Any, size: int) -> Meeting:
    counter = (op, pipe)
    number = core.meetings.get(counter, 0)
    core.meetings[counter] = number + 1
    first = core.rank * 2
    return Meeting(op, (core.rank, pipe, number), (first, first + 1), 1, size)


def _meet(
    core: Core, meeting: Meeting, description: Description, payload: Any, action: Any
) -> None:
    core.run.communicator.meet(
        core.id,
        (meeting.kind, *meeting.key),
        meeting.cores,
        description,
        position(),
        payload,
        action,
    )
