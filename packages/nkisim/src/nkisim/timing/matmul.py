"""Cycles and FLOPs of the Tensor engine.

A matmul costs as long as the PE array takes before the next one can follow (initiation interval,
Trainium architecture guide): loading the next stationary tile is hidden behind the current matmul.
"""

from __future__ import annotations

from nkisim.dtypes import float32
from nkisim.enums import NcVersion
from nkisim.machine import Machine
from nkisim.timing.streams import Rule, wide
from nkisim.trace import Instruction

_FP32_PASSES = 4
# the transpose mode of Trainium2 and later moves fp32 in two passes (Trainium2 architecture guide)
_FP32_TRANSPOSE_PASSES = 2


def _matmul(instruction: Instruction, machine: Machine) -> float:
    """max(min(64, M), N), four times that for fp32 (docstrings of `nki.isa`, SDK 2.26).

    The double-row mode takes as long as an ordinary matmul with the same N.
    """
    dst = instruction.writes[0]
    interval = max(min(machine.matmul_init_cycles, dst.partitions), dst.elements)
    return interval * _passes(instruction, machine) * wide(instruction, machine)


def _passes(instruction: Instruction, machine: Machine) -> int:
    if all(access.dtype is not float32 for access in instruction.reads[:2]):
        return 1
    details = instruction.details or {}
    if details["is_transpose"] and machine.target >= NcVersion.gen3:
        return _FP32_TRANSPOSE_PASSES
    return _FP32_PASSES


def _matmul_mx(instruction: Instruction, machine: Machine) -> float:
    """As an ordinary matmul with a quarter of K (Trainium3 architecture guide)."""
    dst = instruction.writes[0]
    return max(min(machine.matmul_init_cycles, dst.partitions), dst.elements)


def _transpose(instruction: Instruction, machine: Machine) -> float:
    """max(P, min(64, F)) (docstrings of `nki.isa`, SDK 2.26), in two or four passes for fp32."""
    data = instruction.reads[0]
    interval = max(data.partitions, min(machine.matmul_init_cycles, data.elements))
    if data.dtype is not float32:
        return interval
    transpose_mode = machine.target >= NcVersion.gen3
    return interval * (_FP32_TRANSPOSE_PASSES if transpose_mode else _FP32_PASSES)


TENSOR_RULES: dict[str, Rule] = {
    "nc_matmul": _matmul,
    "nc_matmul_mx": _matmul_mx,
    "nc_transpose": _transpose,
}


def work(instruction: Instruction) -> tuple[int, str]:
    """FLOPs of a matmul, 2 K M N, and its kind as `Machine.peak_flops_per_ns` takes it.

    A transpose does none.
    """
    if instruction.op == "nc_transpose":
        return 0, "bf16"
    dst, rows = instruction.writes[0], instruction.reads[0].partitions
    flops = 2 * rows * dst.partitions * dst.elements
    if instruction.op == "nc_matmul_mx":
        return 4 * flops, "mx"
    details = instruction.details or {}
    if details["is_transpose"]:
        return 0, "bf16"
    if details["perf_mode"] == "double_row":
        return 2 * flops, "fp8"
    if any(access.dtype is float32 for access in instruction.reads[:2]):
        return flops, "fp32"
    return flops, "bf16"
