"""What the two cores of a rank do together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nkisim.core import Core, current, position
from nkisim.enums import DmaEngine, Engine, MemoryRegion, member
from nkisim.errors import NkiMismatchError, NkiValidationError
from nkisim.isa import checks
from nkisim.meeting import Action, Description
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
        TypeError: `src` or `dst` is no tensor, or `pipe_id` no integer.
    """
    core = current("nisa.sendrecv")
    op = "sendrecv"
    core.require_generation(op, 3)
    carrier = member(DmaEngine, dma_engine, f"{op}: dma_engine")
    if core.run.lnc != 2:
        raise NkiValidationError(f"{op}: the rank has one core; launch the kernel with [2]")
    _check_tiles(core, op, src, dst)
    _check_peers(core, op, send_to_rank, recv_from_rank)
    if isinstance(pipe_id, bool) or not isinstance(pipe_id, int):
        raise TypeError(f"{op}: pipe_id is {pipe_id!r}; it must be an integer")
    if carrier is DmaEngine.gpsimd_dma:
        _check_gpsimd(core, op, src)
    details = {"dma_engine": carrier.name}
    instruction = core.issue(op, Engine.gpsimd, (dst,), (src,), name, details)
    instruction.meeting = _pair(core, op, pipe_id, src.access().bytes)
    description = Description.of(
        op,
        pipe_id=pipe_id,
        shape=src.shape,
        dtype=str.__str__(src.dtype),
        dma_engine=carrier.name,
    )

    def exchange(payloads: dict[int, Any]) -> None:
        if core.numerics:
            sent = {sender: np.array(pair[0].values()) for sender, pair in payloads.items()}
            first, second = sorted(payloads)
            payloads[first][1].assign(sent[second])
            payloads[second][1].assign(sent[first])

    _meet(core, instruction.meeting, description, (src, dst), exchange)
    return instruction


def _check_tiles(core: Core, op: str, src: NkiTensor, dst: NkiTensor) -> None:
    for operand, tensor in (("src", src), ("dst", dst)):
        if type(tensor) is not NkiTensor:
            raise TypeError(f"{op}: {operand} is {tensor!r}; it must be a tensor")
        if tensor.buffer is not MemoryRegion.sbuf:
            core.violation("constraint", f"{op}: {operand} is {tensor!r}; it must be in SBUF")
    if src.shape != dst.shape or src.dtype is not dst.dtype:
        core.violation(
            "constraint", f"{op}: src is {src!r}, dst {dst!r}; shape and dtype must be equal"
        )


def _check_peers(core: Core, op: str, send_to_rank: int, recv_from_rank: int) -> None:
    peer = 1 - core.number
    for argument, rank in (("send_to_rank", send_to_rank), ("recv_from_rank", recv_from_rank)):
        if isinstance(rank, bool) or rank != peer:
            raise NkiValidationError(
                f"{op}: {argument} is {rank!r} on core {core.number}; it must be {peer}"
            )


def _check_gpsimd(core: Core, op: str, src: NkiTensor) -> None:
    limit = _GPSIMD_LIMIT[src.dtype.itemsize]
    size = src.access().elements * src.dtype.itemsize
    if size > limit:
        core.violation(
            "constraint",
            f"{op}: src has {size} bytes of each partition; gpsimd_dma takes at most {limit} of a "
            f"{src.dtype.itemsize}-byte type",
        )


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
        NkiMismatchError: the other core waits for another tensor.
        TypeError: `data` is no tensor.
    """
    core = current("nisa.core_barrier")
    op = "core_barrier"
    chosen = checks.choose_engine(core, op, engine, _BARRIER_ENGINES, Engine.gpsimd)
    if type(data) is not NkiTensor:
        raise TypeError(f"{op}: data is {data!r}; it must be a tensor")
    if core.run.lnc != 2:
        return core.issue(op, chosen, (), (), name)
    core.require_generation(op, 3)
    if not isinstance(cores, (list, tuple)) or list(cores) != [0, 1]:
        core.violation("constraint", f"{op}: cores is {cores!r}; it must be (0, 1)")
    if data.buffer is not MemoryRegion.shared_hbm:
        core.violation("constraint", f"{op}: data is {data!r}; it must be a shared HBM tensor")
    instruction = core.issue(op, chosen, (), (), name)
    instruction.meeting = _pair(core, op, None, 0)
    description = Description.of(op, data=data.name, shape=data.shape)

    def compare(payloads: dict[int, NkiTensor]) -> None:
        first, second = payloads.values()
        if first.storage is not second.storage:
            raise NkiMismatchError(f"{op}: the cores wait for two tensors named {first.name!r}")

    _meet(core, instruction.meeting, description, data, compare)
    # it waits for a permute into `data`, and touches nothing
    instruction.reads = (data.access(),)
    core.run.hazards.barrier(core, instruction, data.storage.place)
    # what follows on `data` waits for it in a schedule as if it had written there
    instruction.writes = instruction.reads
    return instruction


def _pair(core: Core, op: str, pipe: Any, size: int) -> Meeting:
    counter = (op, pipe)
    number = core.meetings.get(counter, 0)
    core.meetings[counter] = number + 1
    first = core.rank * 2
    return Meeting(op, (core.rank, pipe, number), (first, first + 1), 1, size)


def _meet(
    core: Core, meeting: Meeting, description: Description, payload: Any, action: Action
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
