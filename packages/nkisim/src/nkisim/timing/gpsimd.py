"""Cycles of the instructions of the GpSimd engine.

Eight processors, each with 16 partitions and one 32-bit element of each of them a cycle (Trainium
architecture guides). Formulas are the cost notes in the docstrings of `nki.isa` of Neuron SDK 2.26
where it says so; the others follow from that width.
"""

from __future__ import annotations

from nkisim.machine import Machine
from nkisim.timing.streams import Rule, elements, wide
from nkisim.trace import Instruction

# log2 of the 16 partitions of a processor: steps of a reduction across them
_LANE_STEPS = 4


def _one_stream(instruction: Instruction, machine: Machine) -> float:
    """150 + N: published for iota and affine_select, taken for all that read one tensor."""
    return machine.gpsimd_start_cycles + elements(instruction) * wide(instruction, machine)


def _two_streams(instruction: Instruction, machine: Machine) -> float:
    return machine.gpsimd_start_cycles + 2 * elements(instruction) * wide(instruction, machine)


def _local_gather(instruction: Instruction, machine: Machine) -> float:
    """150 + (gathered elements) C, with C = ((28 + 4 e) / (4 e)) / min(4 / itemsize, e) (ISA)."""
    details = instruction.details or {}
    return _gather(instruction, machine, details["per_index"])


def _n_gather(instruction: Instruction, machine: Machine) -> float:
    """As local_gather with one element an index; no cost is published."""
    return _gather(instruction, machine, 1)


def _gather(instruction: Instruction, machine: Machine, per_index: int) -> float:
    dst = instruction.writes[0]
    overhead = (28 + 4 * per_index) / (4 * per_index)
    factor = overhead / min(4 / dst.dtype.itemsize, per_index)
    return machine.gpsimd_start_cycles + dst.elements * factor


def _topk(instruction: Instruction, machine: Machine) -> float:
    """4 n + K (docstring of `topk`, NKI 0.6), after the fixed part."""
    details = instruction.details or {}
    found: int = instruction.writes[0].elements
    active: int = details["n"]
    return machine.gpsimd_start_cycles + 4 * active + found


def _partition_reduce(instruction: Instruction, machine: Machine) -> float:
    """Each processor reduces its 16 partitions in four steps an element; then one more pass joins
    the results of the eight. No cost is published; this follows from the widths."""
    n = elements(instruction) * wide(instruction, machine)
    return 2 * machine.gpsimd_start_cycles + n * (1 + _LANE_STEPS) + n


GPSIMD_RULES: dict[str, Rule] = {
    "iota": _one_stream,
    "affine_select": _one_stream,
    "tensor_copy": _one_stream,
    "tensor_scalar": _one_stream,
    "memset": _one_stream,
    "tensor_tensor": _two_streams,
    "rng": _one_stream,
    "rand_set_state": _one_stream,
    "rand_get_state": _one_stream,
    "nonzero_with_count": _one_stream,
    "sequence_bounds": _one_stream,
    "local_gather": _local_gather,
    "nc_n_gather": _n_gather,
    "topk": _topk,
    "tensor_partition_reduce": _partition_reduce,
}
