"""Constraints that many instructions share; each breach names the instruction and the operand."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from nkisim import dtypes
from nkisim.alu import AluOp
from nkisim.core import Core
from nkisim.dtypes import DType
from nkisim.enums import Engine, MemoryRegion, member
from nkisim.tensor import NkiTensor

Float32 = npt.NDArray[np.float32]

SBUF = frozenset({MemoryRegion.sbuf})
PSUM = frozenset({MemoryRegion.psum})
ON_CHIP = SBUF | PSUM

_PLAIN = frozenset({dtypes.float32, dtypes.bfloat16})

# an access pattern has the partitions and up to four free dimensions, sizes are 16-bit
MAX_DIMENSIONS = 5
_MAX_ELEMENTS = 65536


def operand(
    core: Core, op: str, name: str, tensor: Any, regions: frozenset[MemoryRegion] = ON_CHIP
) -> None:
    """An operand of a compute engine: on chip, on legal partitions, of a size that it takes.

    Start partitions: any count of up to 32 starts at 0, 32, 64 or 96, up to 64 at 0 or 64, more at
    0 (NKI access pattern guide; measured on Trainium2 by the authors of triton-viz).
    """
    if type(tensor) is not NkiTensor:
        raise TypeError(f"{op}: {name} is {tensor!r}; it must be a tensor")
    access = tensor._access or tensor.access()
    if access.place.region not in regions:
        allowed = " or ".join(sorted(region.value.upper() for region in regions))
        core.violation(
            "constraint", f"{op}: {name} is {tensor!r}; it must be in {allowed} for this engine"
        )
        return
    first = access.p0
    count = tensor.shape[0]
    if (
        first == 0
        and access.p1 == count <= 128
        and access.elements <= _MAX_ELEMENTS
        and len(tensor.shape) <= MAX_DIMENSIONS
    ):
        return
    if count > 128:
        core.violation(
            "constraint", f"{op}: {name} has {count} partitions; at most 128 are allowed"
        )
    if access.p1 - first != count:
        core.violation(
            "partition_start",
            f"{op}: {name} takes every {(access.p1 - first - 1) // max(count - 1, 1)}th partition "
            f"of {tensor!r}; its partitions must follow one another",
        )
    if first and not start_allowed(first, count):
        core.violation(
            "partition_start",
            f"{op}: {name} starts at partition {first} with {count} partitions; {_starts(count)}",
        )
    if _dimensions(tensor) > MAX_DIMENSIONS or access.elements > _MAX_ELEMENTS:
        core.violation(
            "constraint",
            f"{op}: {name} is {tensor!r}; an instruction takes at most 4 free dimensions and "
            f"{_MAX_ELEMENTS} elements of a partition",
        )


def plain(regions: frozenset[MemoryRegion], first: Any, *others: Any) -> bool:
    """Whether these are tiles of fp32 or bf16 and of one shape, from partition 0 on, in `regions`.

    Such tiles break none of the rules that one operand can break, or that equal sizes are asked
    for. Most operands are such, and this takes a quarter of the time of the rules one by one, which
    took half of the time of an instruction on small tiles.
    """
    if type(first) is not NkiTensor:
        return False
    shape = first.shape
    count = shape[0]
    if count > 128 or len(shape) > MAX_DIMENSIONS:
        return False
    for tensor in (first, *others):
        if type(tensor) is not NkiTensor or tensor.shape != shape:
            return False
        access = tensor._access or tensor.access()
        if (
            # from partition 0, and without a step
            access.p1 != count
            or access.elements > _MAX_ELEMENTS
            or access.place.region not in regions
            or tensor.dtype not in _PLAIN
        ):
            return False
    return True


def _dimensions(tensor: NkiTensor) -> int:
    """Dimensions of the access pattern: those that continue one another are one."""
    found = 1
    inner = 0, 0
    for size, stride in zip(tensor.shape[:0:-1], tensor.strides[:0:-1], strict=True):
        if size == 1:
            continue
        if found == 1 or stride != inner[0] * inner[1]:
            found += 1
            inner = stride, size
        else:
            inner = inner[0], inner[1] * size
    return found


def start_allowed(first: int, count: int) -> bool:
    """Whether `count` partitions may begin at partition `first`."""
    if count > 64:
        return first == 0
    if count > 32:
        return first in (0, 64)
    return first in (0, 32, 64, 96)


def _starts(count: int) -> str:
    if count > 64:
        return "more than 64 partitions must start at 0"
    if count > 32:
        return "33 to 64 partitions must start at 0 or 64"
    return "up to 32 partitions must start at 0, 32, 64 or 96"


def same_size(core: Core, op: str, a_name: str, a: NkiTensor, b_name: str, b: NkiTensor) -> None:
    """Equal partitions and equal elements of each; ranks may differ."""
    if a.shape == b.shape:
        return
    if a.shape[0] != b.shape[0]:
        core.violation(
            "constraint",
            f"{op}: {b_name} has {b.shape[0]} partitions, {a_name} {a.shape[0]}; they must be "
            "equal",
        )
    elif a.access().elements != b.access().elements:
        core.violation(
            "constraint",
            f"{op}: {b_name} is {b!r} with {b.access().elements} elements of each partition, "
            f"{a_name} is {a!r} with {a.access().elements}; they must be equal",
        )


def column(core: Core, op: str, name: str, tensor: NkiTensor, like: NkiTensor) -> None:
    """One element of each partition of `like`: a `[P, 1]` operand."""
    if tensor.shape[0] != like.shape[0] or tensor.access().elements != 1:
        core.violation(
            "constraint",
            f"{op}: {name} is {tensor!r}; it must have one element for each of {like.shape[0]} "
            "partitions",
        )


def scalar_operand(
    core: Core, op: str, name: str, value: Any, like: NkiTensor, reads: list[NkiTensor]
) -> None:
    """A number, or a `[P, 1]` tensor, which is then added to `reads`."""
    if type(value) is NkiTensor:
        operand(core, op, name, value)
        column(core, op, name, value, like)
        reads.append(value)
    elif not is_number(value):
        raise TypeError(f"{op}: {name} is {value!r}; it must be a number or a [P, 1] tensor")


def is_number(value: Any) -> bool:
    """Whether `value` is a Python or NumPy number."""
    return isinstance(value, (int, float, np.integer, np.floating))


def choose_engine(
    core: Core, op: str, engine: Any, allowed: Collection[Engine], default: Engine
) -> Engine:
    """The engine of an instruction: the one asked for, which must be allowed, or the default."""
    if engine is Engine.unknown:
        return default
    chosen = member(Engine, engine, f"{op}: engine")
    if chosen is Engine.unknown:
        return default
    if chosen not in allowed:
        names = ", ".join(sorted(e.name for e in allowed))
        core.violation("constraint", f"{op}: engine is {chosen}; it must be one of {names}")
    return chosen


def reach(core: Core, op: str, engine: Engine, **operands: NkiTensor) -> None:
    """GpSimd cannot see PSUM."""
    if engine is not Engine.gpsimd:
        return
    for name, tensor in operands.items():
        if tensor.buffer is MemoryRegion.psum:
            core.violation(
                "constraint", f"{op}: {name} is {tensor!r}; the GpSimd engine does not reach PSUM"
            )


def not_both_psum(core: Core, op: str, **operands: Any) -> None:
    """Two tensor inputs come from PSUM through one port."""
    inputs = [
        name
        for name, tensor in operands.items()
        if type(tensor) is NkiTensor and tensor.buffer is MemoryRegion.psum
    ]
    if len(inputs) > 1:
        core.violation(
            "constraint", f"{op}: {' and '.join(inputs)} are both in PSUM; one of them may be"
        )


def no_packed(core: Core, op: str, **operands: NkiTensor) -> None:
    """The engines do not compute with the packed MX types."""
    for name, tensor in operands.items():
        if tensor.dtype.values > 1:
            core.violation(
                "constraint",
                f"{op}: {name} is {tensor.dtype}; packed types are for MX matmuls only",
            )


def integers_for_bits(core: Core, op: str, alu: AluOp, **operands: NkiTensor) -> None:
    """Bit operations take integers and do not convert."""
    if alu.kind != "bitvec":
        return
    for name, tensor in operands.items():
        if not tensor.dtype.is_integer:
            core.violation(
                "constraint",
                f"{op}: {name} is {tensor.dtype}; {alu.name} works on bits and takes integers",
            )


def dtype_in(core: Core, op: str, name: str, tensor: NkiTensor, allowed: Collection[DType]) -> None:
    """One of some dtypes."""
    if not any(tensor.dtype is dtype for dtype in allowed):
        names = ", ".join(sorted(str.__str__(dtype) for dtype in allowed))
        core.violation("constraint", f"{op}: {name} is {tensor.dtype}; it must be one of {names}")


FP8 = frozenset({dtypes.float8_e4m3, dtypes.float8_e4m3fn, dtypes.float8_e5m2})
