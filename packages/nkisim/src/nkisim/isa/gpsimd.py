"""Instructions of the GpSimd engine: affine index patterns, and work across partitions and runs.

The engine reads and writes SBUF only.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nkisim import alu as alu_module
from nkisim import dtypes, operations, search
from nkisim.core import Core, current
from nkisim.dynamic import scalar_value
from nkisim.enums import Engine
from nkisim.errors import NkiValidationError
from nkisim.isa import checks, values
from nkisim.register import VirtualRegister
from nkisim.tensor import NkiTensor
from nkisim.trace import Instruction

Array = npt.NDArray[Any]
Int32 = npt.NDArray[np.int32]

_MAX_PATTERN = 4
_COMPARISONS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"})
_PARTITION_REDUCTIONS = frozenset({"add", "average", "maximum", "bitwise_or", "bitwise_and"})
_WORDS = (dtypes.float32, dtypes.int32)


def iota(
    dst: NkiTensor,
    pattern: Sequence[Sequence[int]],
    offset: int | VirtualRegister = 0,
    channel_multiplier: int = 0,
    name: str | None = None,
) -> Instruction:
    """Numbers by place: `dst[p, w, z, y, x] = offset + p * channel_multiplier + w * sw + ...`.

    Computed in int32, modulo 2 ** 32, then converted to the type of `dst`. `p` counts from 0 at the
    first partition of `dst`; `sw` is the step of the first pair of `pattern`, and so on.

    Args:
        dst: SBUF, [P, N].
        pattern: up to four `[step, num]`, outermost first; the product of all `num` is N.
        offset: an integer, or a register that holds one.
        channel_multiplier: what one partition adds.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.iota")
    op = "iota"
    checks.operand(core, op, "dst", dst, checks.SBUF)
    checks.no_packed(core, op, dst=dst)
    affine = _Affine(core, op, dst, pattern, offset, channel_multiplier)
    instruction = core.issue(op, Engine.gpsimd, (dst,), (), name)
    if core.numerics:
        numbers = affine.numbers()
        # int32 reaches floating-point types through fp32
        _put(core, op, dst, numbers if dst.dtype.is_integer else numbers.astype(np.float32))
    return instruction


def affine_select(
    dst: NkiTensor,
    pattern: Sequence[Sequence[int]],
    channel_multiplier: int,
    on_true_tile: NkiTensor,
    on_false_value: float,
    cmp_op: Any = operations.equal,
    offset: int | VirtualRegister = 0,
    name: str | None = None,
) -> Instruction:
    """`dst = on_true_tile` where `cmp_op(affine, 0)` holds, else `on_false_value`.

    `affine` is what `iota` writes for the same pattern, offset and multiplier.

    Args:
        dst, on_true_tile: SBUF, [P, N]; a tile of the dtype of `dst` is copied bit for bit, any
            other goes through fp32.
        pattern, channel_multiplier, offset: as in `iota`.
        on_false_value: a Python number.
        cmp_op: equal, not_equal, less, less_equal, greater or greater_equal.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.affine_select")
    op = "affine_select"
    checks.operand(core, op, "dst", dst, checks.SBUF)
    checks.operand(core, op, "on_true_tile", on_true_tile, checks.SBUF)
    checks.same_size(core, op, "dst", dst, "on_true_tile", on_true_tile)
    checks.no_packed(core, op, dst=dst, on_true_tile=on_true_tile)
    if not checks.is_number(on_false_value):
        raise TypeError(f"{op}: on_false_value is {on_false_value!r}; it must be a number")
    comparison = alu_module.resolve(cmp_op, f"{op}: cmp_op")
    if comparison.name not in _COMPARISONS:
        core.violation(
            "constraint",
            f"{op}: cmp_op is {comparison.name}; it must be one of {_names(_COMPARISONS)}",
        )
    affine = _Affine(core, op, dst, pattern, offset, channel_multiplier)
    instruction = core.issue(op, Engine.gpsimd, (dst,), (on_true_tile,), name)
    if core.numerics:
        chosen = alu_module.integer(comparison, affine.numbers(), 0, np.int32) != 0
        if dst.dtype is on_true_tile.dtype and not dst.dtype.is_float:
            other = dtypes.cast(np.asarray(on_false_value), dst.dtype)
            dst.assign(np.where(chosen, values.raw(on_true_tile), other))
        else:
            picked = np.where(chosen, values.single(on_true_tile), np.float32(on_false_value))
            values.put(core, op, dst, picked)
    return instruction


class _Affine:
    """The checked arguments of an affine pattern over the elements of `dst`."""

    def __init__(
        self,
        core: Core,
        op: str,
        dst: NkiTensor,
        pattern: Sequence[Sequence[int]],
        offset: int | VirtualRegister,
        channel_multiplier: int,
    ) -> None:
        self._op = op
        self._partitions = dst.shape[0]
        self._pattern = _pairs(core, op, pattern)
        self._multiplier = _integer(op, "channel_multiplier", channel_multiplier)
        self._offset: int | VirtualRegister = offset
        if not isinstance(offset, VirtualRegister):
            self._offset = _integer(op, "offset", offset)
        count = math.prod(num for _, num in self._pattern)
        if count != dst.access().elements:
            core.violation(
                "constraint",
                f"{op}: pattern is {pattern!r} of {count} elements; dst {dst!r} has "
                f"{dst.access().elements} in each partition",
            )

    def numbers(self) -> Int32:
        """int32 `[P, N]`."""
        offset = self._offset
        if isinstance(offset, VirtualRegister):
            if isinstance(offset.value, float):
                raise NkiValidationError(
                    f"{self._op}: offset is a register that holds {offset.value}; it must hold an "
                    "integer"
                )
            offset = scalar_value(offset, f"{self._op}: offset")
        row = np.full(1, offset, np.int64)
        for step, num in self._pattern:
            row = (row[:, None] + step * np.arange(num, dtype=np.int64)).reshape(-1)
        column = self._multiplier * np.arange(self._partitions, dtype=np.int64)[:, None]
        return (row + column).astype(np.int32)


def _pairs(core: Core, op: str, pattern: Any) -> list[tuple[int, int]]:
    try:
        pairs = [(operator.index(step), operator.index(num)) for step, num in pattern]
    except (TypeError, ValueError):
        raise TypeError(
            f"{op}: pattern is {pattern!r}; it must be a list of [step, num] integers"
        ) from None
    if not 1 <= len(pairs) <= _MAX_PATTERN or any(num < 1 for _, num in pairs):
        core.violation(
            "constraint",
            f"{op}: pattern is {pattern!r}; it must be 1 to {_MAX_PATTERN} pairs [step, num] with "
            "num at least 1",
        )
    return pairs


def _names(names: Collection[str]) -> str:
    return ", ".join(sorted(names))


def _integer(op: str, name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{op}: {name} is {value!r}; it must be an integer") from None


def _put(core: Core, op: str, dst: NkiTensor, result: Array) -> None:
    """Integers into integers exactly, all else as the engines convert."""
    if dst.dtype.is_integer:
        dst.assign(dtypes.cast(result, dst.dtype))
    else:
        values.put(core, op, dst, result)


def tensor_partition_reduce(
    dst: NkiTensor, op: Any, data: NkiTensor, name: str | None = None
) -> Instruction:
    """`dst[0, :] = op over the partitions of data[:, :]`.

    Args:
        dst: SBUF; as many elements of a partition as `data`. Only its first partition is written.
        op: add, average or maximum, in fp32; bitwise_or or bitwise_and, on the bits of integers.
        data: SBUF.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.tensor_partition_reduce")
    what = "tensor_partition_reduce"
    alu = alu_module.resolve(op, f"{what}: op")
    if alu.name not in _PARTITION_REDUCTIONS:
        raise NkiValidationError(
            f"{what}: op is {alu.name}; it must be one of {_names(_PARTITION_REDUCTIONS)}"
        )
    checks.operand(core, what, "dst", dst, checks.SBUF)
    checks.operand(core, what, "data", data, checks.SBUF)
    checks.no_packed(core, what, dst=dst, data=data)
    checks.integers_for_bits(core, what, alu, dst=dst, data=data)
    if dst.access().elements != data.access().elements:
        core.violation(
            "constraint",
            f"{what}: dst is {dst!r} with {dst.access().elements} elements of each partition, data "
            f"has {data.access().elements}; they must be equal",
        )
    if alu.kind == "bitvec" and dst.dtype.itemsize != data.dtype.itemsize:
        core.violation(
            "constraint",
            f"{what}: dst is {dst.dtype} and data {data.dtype}; {alu.name} does not convert, so "
            "they must have the same width",
        )
    first = dst[0:1]
    instruction = core.issue(what, Engine.gpsimd, (first,), (data,), name)
    if core.numerics:
        assert alu.reduce is not None
        if alu.kind == "bitvec":
            bits = np.ascontiguousarray(alu.reduce(values.raw(data), 0)[None])
            first.assign(bits.view(dst.dtype.numpy))
        else:
            values.put(core, what, first, alu.reduce(values.single(data), 0)[None])
    return instruction


def nonzero_with_count(
    dst: NkiTensor,
    src: NkiTensor,
    index_offset: int = 0,
    padding_val: int = -1,
    name: str | None = None,
) -> Instruction:
    """Where `src` is not zero, in partitions 0, 16, 32, ... only; gen3 and later.

    In each of these `dst[p]` gets the indices in ascending order plus `index_offset`, then
    `padding_val` up to T elements, then the count. Other partitions stay as they are.

    Args:
        dst: SBUF, int32 [P, T + 1].
        src: SBUF, float32 or int32 [P, T].
        index_offset, padding_val: integers.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.nonzero_with_count")
    op = "nonzero_with_count"
    core.require_generation(op, 3)
    checks.operand(core, op, "dst", dst, checks.SBUF)
    checks.operand(core, op, "src", src, checks.SBUF)
    checks.dtype_in(core, op, "src", src, _WORDS)
    checks.dtype_in(core, op, "dst", dst, (dtypes.int32,))
    shift = _integer(op, "index_offset", index_offset)
    padding = _integer(op, "padding_val", padding_val)
    T = src.access().elements
    if dst.shape[0] != src.shape[0] or dst.access().elements != T + 1:
        core.violation(
            "constraint",
            f"{op}: dst is {dst!r}; for src {src!r} it must have {src.shape[0]} partitions of "
            f"{T + 1} elements, one more than src",
        )
    # one operand for each of them, since the partitions between are not written
    written = [dst[p : p + 1] for p in range(0, dst.shape[0], search.GROUP_PARTITIONS)]
    read = [src[p : p + 1] for p in range(0, src.shape[0], search.GROUP_PARTITIONS)]
    instruction = core.issue(op, Engine.gpsimd, written, read, name)
    if core.numerics:
        rows = [search.nonzero_with_count(values.raw(one), shift, padding) for one in read]
        for target, row in zip(written, rows, strict=True):
            target.assign(row)
    return instruction


def sequence_bounds(dst: NkiTensor, segment_ids: NkiTensor, name: str | None = None) -> Instruction:
    """The bounds of the run of equal ids in which each element stands.

    `dst[0, 0, i]` is the first position of the run of element i, `dst[0, 1, i]` the one after its
    last; n and -1 where the id is 0, which is padding.

    Args:
        dst: SBUF, float32 or int32 [1, 2, n].
        segment_ids: SBUF, float32 or int32 [1, n].

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.sequence_bounds")
    op = "sequence_bounds"
    checks.operand(core, op, "dst", dst, checks.SBUF)
    checks.operand(core, op, "segment_ids", segment_ids, checks.SBUF)
    checks.dtype_in(core, op, "dst", dst, _WORDS)
    checks.dtype_in(core, op, "segment_ids", segment_ids, _WORDS)
    if segment_ids.shape[0] != 1:
        core.violation(
            "constraint",
            f"{op}: segment_ids is {segment_ids!r}; it must have one partition",
        )
    wanted = (1, 2, segment_ids.access().elements)
    if dst.shape != wanted:
        core.violation(
            "constraint",
            f"{op}: dst is {dst!r}; for segment_ids {segment_ids!r} its shape must be "
            f"{list(wanted)}",
        )
    instruction = core.issue(op, Engine.gpsimd, (dst,), (segment_ids,), name)
    if core.numerics:
        _put(core, op, dst, search.sequence_bounds(values.raw(segment_ids)).reshape(1, -1))
    return instruction
