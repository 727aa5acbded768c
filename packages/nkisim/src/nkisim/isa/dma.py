"""Data movement by the DMA engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nkisim import dtypes
from nkisim.alu import resolve
from nkisim.core import Core, current
from nkisim.enums import DgeMode, Engine, OobMode, member
from nkisim.errors import NkiValidationError
from nkisim.isa import checks, dma_checks, dma_values, values
from nkisim.tensor import NkiTensor
from nkisim.trace import Instruction

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

_MAX_SOURCES = 16

# the permutation of a transpose, by its dimensions
_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


def dma_copy(
    dst: NkiTensor,
    src: NkiTensor,
    priority: int | None = None,
    oob_mode: Any = OobMode.error,
    dge_mode: Any = DgeMode.unknown,
    engine: Any = Engine.unknown,
    name: str | None = None,
) -> Instruction:
    """`dst = src`, element by element in row-major order, between HBM and SBUF in any combination.

    Equal dtypes move bit for bit; others convert through fp32. Either side may have a dynamic
    index: a gather or a scatter.

    Args:
        dst, src: equal numbers of elements, of any shapes.
        priority: 0 (first) to 3; gen4.
        oob_mode: what happens to rows whose index is out of range: an error, or nothing.
        dge_mode: hwdge needs gen3 and equal dtypes, and neither gathers nor scatters.
        engine: which engine starts a hwdge transfer: sync or scalar.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.dma_copy")
    op = "dma_copy"
    skip = member(OobMode, oob_mode, f"{op}: oob_mode")
    mode = dma_checks.dge_mode(core, op, dge_mode)
    details = dma_checks.transfer(core, op, dst, src, mode, engine, priority)
    dma_checks.equal_sizes(core, op, dst, "src", src)
    if dst.dtype is not src.dtype:
        dma_checks.conversion(core, op, dst, src, mode)
    instruction = core.issue(op, Engine.dma, (dst,), (src,), name, details)
    if core.numerics:
        moved, there = dma_values.load(src, skip)
        if dst.dtype is not src.dtype:
            moved = _converted(core, op, dst, moved.astype(np.float32))
        if core.run.watches:
            with core.run.hazards.storing(core, instruction, dst):
                dma_values.store(dst, moved, there, skip)
        else:
            dma_values.store(dst, moved, there, skip)
    return instruction


def _converted(core: Core, op: str, dst: NkiTensor, moved: Array) -> Array:
    """fp32 values in the dtype of `dst`."""
    new = dtypes.cast(moved, dst.dtype)
    if dst.dtype in checks.FP8:
        values.check_overflow(core, op, dst, new, moved)
    return new


def dma_transpose(
    dst: NkiTensor,
    src: NkiTensor,
    axes: Sequence[int] | None = None,
    priority: int | None = None,
    dge_mode: Any = DgeMode.unknown,
    oob_mode: Any = OobMode.error,
    name: str | None = None,
) -> Instruction:
    """`dst = src` with the first and last dimension exchanged, bit for bit.

    Args:
        dst: SBUF; of the dtype of `src` and its permuted shape.
        src: HBM or SBUF, of 2 to 4 dimensions, the last at most 128; 2- and 4-byte types. With a
            `vector_offset` (2-byte types in HBM, gen3): rows chosen by a table of uint32
            [16..128, N], read column after column.
        axes: (1, 0), (2, 1, 0) or (3, 1, 2, 0); there are no others.
        priority: as for `dma_copy`.
        dge_mode: unknown; hwdge or none for a static `src`; swdge for one with a `vector_offset`.
        oob_mode: as for `dma_copy`; skip is for a `src` with an index.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.dma_transpose")
    op = "dma_transpose"
    skip = member(OobMode, oob_mode, f"{op}: oob_mode")
    mode = dma_checks.dge_mode(core, op, dge_mode)
    details = dma_checks.transfer(core, op, dst, src, mode, priority=priority)
    details["transpose"] = True
    order = _AXES.get(src.ndim)
    if order is None:
        raise NkiValidationError(f"{op}: src is {src!r}; it must have 2, 3 or 4 dimensions")
    dma_checks.transposition(core, dst, src, order, axes)
    if src.is_indirect():
        dma_checks.gathered_transposition(core, src)
    else:
        dma_checks.direct_transposition(core, src, mode, skip)
    instruction = core.issue(op, Engine.dma, (dst,), (src,), name, details)
    if core.numerics:
        moved, there = dma_values.load(src, skip)
        turned = None if there is None else np.transpose(there, order)
        dma_values.store(dst, np.transpose(moved, order), turned, skip)
    return instruction


def dma_compute(
    dst: NkiTensor,
    srcs: Sequence[NkiTensor],
    reduce_op: Any,
    scales: Sequence[float] | None = None,
    unique_indices: bool = True,
    oob_mode: Any = OobMode.error,
    name: str | None = None,
) -> Instruction:
    """`dst = sum(srcs)` in fp32, on the way through the DMA engines.

    With a `vector_offset`, one of two sources is the same view as `dst` (`dst[idx] += src`), or a
    gather (`dst += src[idx]`).

    Args:
        dst: HBM or SBUF.
        srcs: up to 16 tensors of as many elements, in HBM or SBUF.
        reduce_op: add.
        scales: all 1.0, or None.
        unique_indices: a promise that no index stands twice; with False, they add up.
        oob_mode: as for `dma_copy`.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.dma_compute")
    op = "dma_compute"
    skip = member(OobMode, oob_mode, f"{op}: oob_mode")
    if resolve(reduce_op, f"{op}: reduce_op").name != "add":
        core.violation("constraint", f"{op}: reduce_op is {reduce_op!r}; it must be nl.add")
    sources = list(srcs)
    if not 1 <= len(sources) <= _MAX_SOURCES:
        raise NkiValidationError(
            f"{op}: srcs has {len(sources)} tensors; 1 to {_MAX_SOURCES} are allowed"
        )
    if scales is not None and (
        len(scales) != len(sources) or any(scale != 1.0 for scale in scales)
    ):
        core.violation(
            "constraint",
            f"{op}: scales is {list(scales)}; there must be one of 1.0 for each source",
        )
    details: dict[str, Any] = {}
    for position, src in enumerate(sources):
        details = dma_checks.transfer(core, op, dst, src, DgeMode.unknown)
        checks.no_packed(core, op, dst=dst, src=src)
        dma_checks.equal_sizes(core, op, dst, f"srcs[{position}]", src)
    details["indirect"] = dst.is_indirect() or any(src.is_indirect() for src in sources)
    if details["indirect"] and len(sources) != 2:
        core.violation(
            "constraint", f"{op}: srcs has {len(sources)} tensors; with an index there must be two"
        )
    added = _other_source(op, dst, sources) if dst.is_indirect() else None
    instruction = core.issue(op, Engine.dma, (dst,), sources, name, details)
    if core.numerics:
        with core.run.hazards.storing(core, instruction, dst):
            if added is None:
                _add(core, op, dst, sources, skip)
            else:
                _scatter_add(core, dst, added, bool(unique_indices), skip)
    return instruction


def _add(core: Core, op: str, dst: NkiTensor, sources: list[NkiTensor], mode: OobMode) -> None:
    total = np.zeros(dst.size, np.float32)
    there: Mask | None = None
    for src in sources:
        part, mask = dma_values.load(src, mode)
        total += part.astype(np.float32).reshape(-1)
        if mask is not None:
            there = mask.reshape(-1) if there is None else there & mask.reshape(-1)
    dma_values.store(dst, _converted(core, op, dst, total), there, mode)


def _other_source(op: str, dst: NkiTensor, sources: list[NkiTensor]) -> NkiTensor:
    """What is added to the rows of `dst` that an index chooses."""
    others = [src for src in sources if not _same_view(src, dst)]
    if len(others) != 1:
        raise NkiValidationError(
            f"{op}: dst is {dst!r} with an index; one of the two sources must be the same view"
        )
    return others[0]


def _same_view(a: NkiTensor, b: NkiTensor) -> bool:
    return a is b or (
        a.storage is b.storage
        and a.dynamic is not None
        and b.dynamic is not None
        and _same_index(a.dynamic.index, b.dynamic.index)
        and (a.dtype, a.shape, a.strides, a.offset) == (b.dtype, b.shape, b.strides, b.offset)
    )


def _same_index(a: Any, b: Any) -> bool:
    if type(a) is not NkiTensor or type(b) is not NkiTensor:
        return a is b
    return a.storage is b.storage and (
        (a.dtype, a.shape, a.strides, a.offset) == (b.dtype, b.shape, b.strides, b.offset)
    )


def _scatter_add(core: Core, dst: NkiTensor, added: NkiTensor, unique: bool, mode: OobMode) -> None:
    op = "dma_compute"
    part, there = dma_values.load(added, mode)
    elements, place = dma_values.destinations(dst, there, mode)
    rows = elements[place.any(axis=1), 0]
    if unique and len(np.unique(rows)) < len(rows):
        core.violation(
            "constraint",
            f"{op}: dst is {dst!r} and an index stands twice in it, against unique_indices=True",
        )
    flat = dst.flat()
    terms = part.astype(np.float32).reshape(elements.shape)
    for row, term, chosen in zip(elements, terms, place, strict=True):
        where = row[chosen]
        flat[where] = _converted(core, op, dst, flat[where].astype(np.float32) + term[chosen])
