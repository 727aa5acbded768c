"""Cycles of the instructions that stream a tile through the Vector or the Scalar engine.

N is the number of elements in each partition. Unless said otherwise, formulas are the cost notes in
the docstrings of `nki.isa` of Neuron SDK 2.26, and the faster modes those of the Trainium2 and
Trainium3 architecture guides.
"""

from __future__ import annotations

from collections.abc import Callable

from nkisim.dtypes import DType, bfloat16, float16
from nkisim.enums import Engine, MemoryRegion
from nkisim.machine import Machine
from nkisim.trace import Access, Instruction

Rule = Callable[[Instruction, Machine], float]

_SIXTEEN_BIT = frozenset({bfloat16, float16})


def elements(instruction: Instruction) -> int:
    """N: the most elements in each partition of any operand."""
    most = 0
    for access in instruction.writes:
        if access.elements > most:
            most = access.elements
    for access in instruction.reads:
        if access.elements > most:
            most = access.elements
    return most


def wide(instruction: Instruction, machine: Machine) -> int:
    """2 if an operand has its elements so far apart that it gets half the bandwidth, else 1."""
    limit = machine.wide_step_bytes
    for access in instruction.writes:
        if access.inner_step > limit and access.elements > 1:
            return 2
    for access in instruction.reads:
        if access.inner_step > limit and access.elements > 1:
            return 2
    return 1


def _contiguous(access: Access) -> bool:
    return access.elements <= 1 or access.inner_step == access.dtype.itemsize


def _all(instruction: Instruction, dtypes: frozenset[DType]) -> bool:
    """Whether `dst` and all tensors that are streamed have one of `dtypes`."""
    dst = instruction.writes[0]
    if dst.dtype not in dtypes:
        return False
    return all(
        access.dtype in dtypes for access in instruction.reads if access.elements == dst.elements
    )


def _one_pass(instruction: Instruction, machine: Machine) -> float:
    return elements(instruction) * wide(instruction, machine)


def _two_passes(instruction: Instruction, machine: Machine) -> float:
    return 2 * elements(instruction) * wide(instruction, machine)


def _copy(instruction: Instruction, machine: Machine) -> float:
    """tensor_copy and tensor_scalar, with the modes that need no asking for."""
    n = elements(instruction)
    dst, src = instruction.writes[0], instruction.reads[0]
    if dst.dtype not in machine.fast_dtypes or src.dtype not in machine.fast_dtypes:
        return n * wide(instruction, machine)
    if instruction.engine is Engine.scalar and not machine.fast_scalar:
        return n * wide(instruction, machine)
    contiguous = _contiguous(dst) and _contiguous(src)
    in_psum = (dst.place.region is MemoryRegion.psum) + (src.place.region is MemoryRegion.psum)
    if in_psum == 0:
        speed = 4 if contiguous else 2
    elif in_psum == 1 and contiguous:
        speed = 2
    else:
        speed = 1
    if instruction.engine is Engine.scalar:
        speed = min(speed, 2)
    return n * wide(instruction, machine) / speed


def _memset(instruction: Instruction, machine: Machine) -> float:
    n = elements(instruction) * wide(instruction, machine)
    details = instruction.details or {}
    if details["value"] == 0 and instruction.writes[0].dtype in _SIXTEEN_BIT:
        return n / 2
    return n


def _tensor_reduce(instruction: Instruction, machine: Machine) -> float:
    details = instruction.details or {}
    n = elements(instruction) * wide(instruction, machine)
    both = instruction.writes[0].dtype is bfloat16 and instruction.reads[0].dtype is bfloat16
    if both and details["op0"] in ("add", "maximum", "max"):
        return n / 2
    return n


def _tensor_tensor(instruction: Instruction, machine: Machine) -> float:
    """Two streams, so two passes, unless they come from two memories or both are 16 bits wide."""
    details = instruction.details or {}
    op = details["op0"]
    n = elements(instruction) * wide(instruction, machine)
    dst = instruction.writes[0]
    first, second = instruction.reads[0], instruction.reads[1]
    in_psum = (first.place.region is MemoryRegion.psum) + (second.place.region is MemoryRegion.psum)
    if in_psum == 1:
        return n
    if in_psum == 0 and _all(instruction, _SIXTEEN_BIT):
        if machine.fast_dtypes:
            return n
        contiguous = _contiguous(first) and _contiguous(second) and _contiguous(dst)
        if contiguous and op in ("add", "multiply", "subtract"):
            return n
    return 2 * n


def _scalar_tensor_tensor(instruction: Instruction, machine: Machine) -> float:
    details = instruction.details or {}
    ops = details["op0"], details["op1"]
    n = elements(instruction)
    streams = [access for access in instruction.reads if access.elements == n]
    narrow = instruction.writes[0].dtype is bfloat16 and all(a.dtype is bfloat16 for a in streams)
    if narrow and ops == ("subtract", "multiply") and n % 2 == 0:
        return n * wide(instruction, machine)
    return 2 * n * wide(instruction, machine)


def _copy_predicated(instruction: Instruction, machine: Machine) -> float:
    n = elements(instruction) * wide(instruction, machine)
    operands = instruction.writes + instruction.reads
    if any(access.place.region is MemoryRegion.psum for access in operands):
        return n
    return 2 * n


def _activation(instruction: Instruction, machine: Machine) -> float:
    details = instruction.details or {}
    if details["reduces"]:
        return _activation_reduce(instruction, machine)
    return _one_pass(instruction, machine)


def _activation_reduce(instruction: Instruction, machine: Machine) -> float:
    """N, and writing the accumulators out, which is an instruction of its own."""
    n = max(_one_pass(instruction, machine), machine.issue_cycles)
    return n + machine.access_cycles + machine.accumulator_cycles


def _reciprocal(instruction: Instruction, machine: Machine) -> float:
    """8 N (nki.api.shared: the accurate reciprocal of the Vector engine)."""
    return 8 * elements(instruction) * wide(instruction, machine)


def _bn_aggr(instruction: Instruction, machine: Machine) -> float:
    return 13 * (elements(instruction) / 3)


def _quarter(instruction: Instruction, machine: Machine) -> float:
    """Four elements a cycle: quantize_mx, exponential, rand2 (Trainium3 architecture guide)."""
    return elements(instruction) * wide(instruction, machine) / 4


STREAM_RULES: dict[str, Rule] = {
    "tensor_copy": _copy,
    "tensor_scalar": _copy,
    "memset": _memset,
    "tensor_reduce": _tensor_reduce,
    "tensor_tensor": _tensor_tensor,
    "scalar_tensor_tensor": _scalar_tensor_tensor,
    "tensor_copy_predicated": _copy_predicated,
    "tensor_scalar_reduce": _activation_reduce,
    # one stream and one pass, as tensor_scalar; no cost is published
    "tensor_scalar_cumulative": _one_pass,
    "tensor_tensor_scan": _two_passes,
    "select_reduce": _one_pass,
    "range_select": _one_pass,
    "nc_transpose": _one_pass,
    "nc_stream_shuffle": _one_pass,
    "bn_stats": _one_pass,
    "bn_aggr": _bn_aggr,
    "reciprocal": _reciprocal,
    "max8": _one_pass,
    "nc_find_index8": _one_pass,
    "nc_match_replace8": _one_pass,
    "rng": _one_pass,
    "dropout": _one_pass,
    "set_rng_seed": _one_pass,
    "rand_set_state": _one_pass,
    "rand_get_state": _one_pass,
    "rand2": _quarter,
    "exponential": _quarter,
    "quantize_mx": _quarter,
    "activation": _activation,
    "activation_reduce": _activation_reduce,
    "activate2": _activation,
}

# moves between registers of a sequencer and memory; no cost is published beyond the issue of it
REGISTER_OPS = frozenset(
    {
        "register_move",
        "register_load",
        "register_store",
        "rank_id",
        "collective_permute_implicit_current_processing_rank_id",
    }
)
