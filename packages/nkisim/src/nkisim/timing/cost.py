"""What one instruction costs on one generation of the hardware, without regard to any other.

What a rule needs beside the operands stands in `Instruction.details`:

    activation, activate2: `reduces` (bool): the accumulators are written to memory
    tensor_tensor, scalar_tensor_tensor, tensor_reduce: `op0` (and `op1`), names of ALU operators
    memset: `value`
    nc_matmul: `perf_mode` ("none" or "double_row"), `is_transpose`
    topk: `n`, the active elements
    local_gather: `per_index`, elements gathered for each index
    dma_copy, dma_transpose, dma_compute: `dge` ("none", "swdge", "hwdge", "unknown"), `indirect`
        (an offset for each partition takes part), `queue` ("sync", "scalar" or None for either)
    sendrecv: `dma_engine` ("dma" or "gpsimd_dma")

The first of `Instruction.reads` is the tensor that the instruction streams through (`data`, `src`,
`data1`, `on_true`); the first two are stationary and moving for a matmul, and the two tensors where
there are two. The first of `Instruction.writes` is `dst`.
"""

from __future__ import annotations

from typing import NamedTuple

from nkisim.enums import Engine, MemoryRegion
from nkisim.errors import NkiError
from nkisim.machine import Machine
from nkisim.timing.collectives import TRIGGERS
from nkisim.timing.gpsimd import GPSIMD_RULES
from nkisim.timing.matmul import TENSOR_RULES, work
from nkisim.timing.streams import REGISTER_OPS, STREAM_RULES
from nkisim.timing.transfers import TRANSFER_OPS, Transfer, transfer
from nkisim.trace import Instruction

# which of the ports that the engines of Trainium1 share an instruction occupies
SBUF_PORT = 1
PSUM_PORT = 2


class Cost(NamedTuple):
    """What one instruction costs.

    Attributes:
        busy_ns: how long its engine can start nothing else
        latency_ns: from its start until an instruction of the same engine can use the result; for a
            transfer, from its start until the last byte has arrived when nothing else is under way
        flops: multiplications and additions of a matmul
        ideal_ns: the time of these FLOPs at the peak of their kind
        ports: `SBUF_PORT | PSUM_PORT` where engines take turns
        transfer: what it moves by DMA
    """

    busy_ns: float
    latency_ns: float
    flops: int = 0
    ideal_ns: float = 0.0
    ports: int = 0
    transfer: Transfer | None = None


class Costs:
    """The costs on one machine; instructions that are alike share one."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known: dict[tuple[object, ...], Cost] = {}

    def of(self, instruction: Instruction) -> Cost:
        """As `cost`."""
        kind = _kind(instruction)
        found = self._known.get(kind)
        if found is None:
            found = self._known[kind] = cost(instruction, self._machine)
        return found


def _kind(instruction: Instruction) -> tuple[object, ...]:
    """All of an instruction that its cost depends on; where its operands begin is no part of it."""
    kind: list[object] = [instruction.op, instruction.engine, len(instruction.writes)]
    for access in instruction.writes + instruction.reads:
        kind += (
            access.place.region, access.dtype, access.p0, access.p1, access.elements, access.run,
            access.inner_step, access.dynamic,
        )  # fmt: skip
    if instruction.details is not None and instruction.meeting is None:
        kind += instruction.details.items()
    return tuple(kind)


def cost(instruction: Instruction, machine: Machine) -> Cost:
    """The cost of `instruction` on `machine`.

    Raises:
        NkiError: no rule is known for this instruction on this engine, or a detail is missing.
    """
    op = instruction.op
    engine = instruction.engine
    try:
        if op in TRANSFER_OPS:
            return _transfer_cost(instruction, machine)
        if op in TRIGGERS or op in REGISTER_OPS:
            ns = machine.issue_cycles / machine.ghz(engine)
            return Cost(ns, ns + machine.dependent_cycles / machine.ghz(engine))
        if engine is Engine.tensor:
            return _matmul_cost(instruction, machine)
        if engine is Engine.gpsimd:
            cycles = GPSIMD_RULES[op](instruction, machine)
        else:
            streamed = max(STREAM_RULES[op](instruction, machine), machine.issue_cycles)
            cycles = streamed + machine.access_cycles
    except KeyError as missing:
        raise NkiError(
            f"no cost is known for {op} on the {engine.name} engine with details "
            f"{instruction.details} (missing: {missing}), at {instruction.location}"
        ) from None
    if cycles < machine.dynamic_cycles and _is_dynamic(instruction):
        cycles = machine.dynamic_cycles
    ghz = machine.ghz(engine)
    ports = _ports(instruction) if machine.shared_ports else 0
    return Cost(cycles / ghz, (cycles + machine.dependent_cycles) / ghz, ports=ports)


def _matmul_cost(instruction: Instruction, machine: Machine) -> Cost:
    cycles = TENSOR_RULES[instruction.op](instruction, machine)
    flops, kind = work(instruction)
    ideal = flops / machine.peak_flops_per_ns(kind) if flops else 0.0
    ghz = machine.tensor_ghz
    if _is_dynamic(instruction):
        cycles = max(cycles, machine.dynamic_cycles)
    return Cost(cycles / ghz, (cycles + machine.matmul_init_cycles) / ghz, flops, ideal)


def _transfer_cost(instruction: Instruction, machine: Machine) -> Cost:
    moved = transfer(instruction, machine)
    return Cost(0.0, moved.alone_ns, transfer=moved)


def _is_dynamic(instruction: Instruction) -> bool:
    return any(access.dynamic for access in instruction.writes + instruction.reads)


def _ports(instruction: Instruction) -> int:
    """The ports that engines of Trainium1 share: SBUF for Vector and GpSimd, PSUM for Vector and
    Scalar."""
    ports = 0
    engine = instruction.engine
    for access in instruction.writes + instruction.reads:
        if access.place.region is MemoryRegion.psum:
            if engine is Engine.vector or engine is Engine.scalar:
                ports |= PSUM_PORT
        elif access.place.region is MemoryRegion.sbuf and engine in (Engine.vector, Engine.gpsimd):
            ports |= SBUF_PORT
    return ports
