"""Data movement by the DMA engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nkisim import dtypes
from nkisim.alu import resolve
from nkisim.core import Core, current
from nkisim.dynamic import elements_of, scalar_value
from nkisim.enums import DgeMode, Engine, MemoryRegion, OobMode, member
from nkisim.errors import NkiValidationError
from nkisim.isa import checks
from nkisim.tensor import NkiTensor
from nkisim.trace import Instruction

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

_REACHED = frozenset({MemoryRegion.sbuf, MemoryRegion.private_hbm, MemoryRegion.shared_hbm})
_MAX_SOURCES = 16


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
    mode = member(OobMode, oob_mode, f"{op}: oob_mode")
    details = _check_transfer(core, op, dst, src, priority, dge_mode, engine)
    if dst.dtype is not src.dtype:
        _check_conversion(core, op, dst, src, details["dge"])
    if dst.size != src.size:
        core.violation(
            "constraint",
            f"{op}: dst is {dst!r} of {dst.size} elements, src is {src!r} of {src.size}; they must be "
            "equal",
        )
    instruction = core.issue(op, Engine.dma, (dst,), (src,), name, details)
    if core.numerics:
        moved, valid = _load(src, mode)
        if dst.dtype is not src.dtype:
            moved = dtypes.cast(moved.astype(np.float32), dst.dtype)
        _store(op, dst, moved, valid, mode)
    return instruction


def _check_transfer(
    core: Core,
    op: str,
    dst: Any,
    src: Any,
    priority: Any,
    dge_mode: Any,
    engine: Any,
) -> dict[str, Any]:
    """What all transfers have in common; the details of the instruction."""
    dge = member(DgeMode, dge_mode, f"{op}: dge_mode")
    starter = member(Engine, engine, f"{op}: engine")
    for name, tensor in (("dst", dst), ("src", src)):
        if type(tensor) is not NkiTensor:
            raise TypeError(f"{op}: {name} is {tensor!r}; it must be a tensor")
        if tensor.buffer not in _REACHED:
            core.violation("constraint", f"{op}: {name} is {tensor!r}; DMA reaches SBUF and HBM")
        _check_index(core, op, name, tensor)
    if priority is not None:
        core.require_generation(f"{op}: priority", 4)
        if isinstance(priority, bool) or priority not in (0, 1, 2, 3):
            core.violation("constraint", f"{op}: priority is {priority!r}; it must be 0, 1, 2 or 3")
    indirect = dst.is_indirect() or src.is_indirect()
    if dge is DgeMode.hwdge:
        core.require_generation(f"{op}: dge_mode hwdge", 3)
        if indirect:
            core.violation(
                "constraint", f"{op}: dge_mode is hwdge, which neither gathers nor scatters rows"
            )
    elif starter is not Engine.unknown:
        core.violation(
            "constraint", f"{op}: engine is {starter}; only a transfer with dge_mode.hwdge names one"
        )
    if starter not in (Engine.unknown, Engine.sync, Engine.scalar):
        core.violation("constraint", f"{op}: engine is {starter}; it must be engine.sync or scalar")
    queue = None if starter is Engine.unknown else starter.name
    return {"dge": dge.name, "queue": queue, "indirect": indirect, "transpose": False}


def _check_index(core: Core, op: str, name: str, tensor: NkiTensor) -> None:
    dynamic = tensor.dynamic
    if dynamic is not None and dynamic.kind == "gather":
        core.violation("constraint", f"{op}: {name} is an indirect view, which only engines read")


def _check_conversion(core: Core, op: str, dst: NkiTensor, src: NkiTensor, dge: str) -> None:
    if dge == "hwdge":
        core.violation(
            "constraint",
            f"{op}: dst is {dst.dtype}, src {src.dtype}; a hwdge transfer does not convert",
        )
    if dst.dtype.values > 1 or src.dtype.values > 1:
        core.violation(
            "constraint",
            f"{op}: dst is {dst.dtype}, src {src.dtype}; packed types do not convert, use .view",
        )


def _load(tensor: NkiTensor, mode: OobMode) -> tuple[Array, Mask | None]:
    """The elements, and for a gather with `oob_mode.skip` which rows are in range.

    A scalar index out of range gives a mask of one False: nothing is moved.
    """
    dynamic = tensor.dynamic
    if dynamic is None:
        return tensor.array(), None
    if mode is OobMode.error or dynamic.kind == "gather":
        return tensor.values(), None
    if dynamic.kind == "scalar":
        if 0 <= scalar_value(dynamic.index, f"the index of {tensor!r}") < dynamic.limit:
            return tensor.values(), None
        return np.zeros(tensor.shape, tensor.dtype.numpy), np.zeros(1, np.bool_)
    elements, valid = elements_of(tensor)
    return tensor.flat()[elements].reshape(tensor.shape), None if valid.all() else valid


def _store(op: str, tensor: NkiTensor, moved: Array, valid: Mask | None, mode: OobMode) -> None:
    dynamic = tensor.dynamic
    if valid is not None and not valid.any():
        return
    if mode is OobMode.skip and dynamic is not None and dynamic.kind == "scalar":
        if not 0 <= scalar_value(dynamic.index, f"the index of {tensor!r}") < dynamic.limit:
            return
    if dynamic is not None and dynamic.kind == "vector":
        _scatter(op, tensor, moved, valid, mode)
        return
    if valid is None:
        tensor.assign(moved)
        return
    rows = len(valid)
    target = tensor.resolved().array() if dynamic is not None else tensor.array()
    if target.size % rows or (target.shape[0] != rows and target.size != rows):
        raise NkiValidationError(
            f"{op}: dst is {tensor!r}; to skip rows of a gather of {rows} it must have {rows} rows"
        )
    if target.shape[0] == rows:
        target[valid] = moved.reshape(rows, *target.shape[1:])[valid]
    else:
        np.copyto(target, moved.reshape(target.shape), where=valid.reshape(target.shape))


def _scatter(op: str, tensor: NkiTensor, moved: Array, valid: Mask | None, mode: OobMode) -> None:
    elements, in_range = elements_of(tensor)
    if not in_range.all() and mode is OobMode.error:
        raise tensor.out_of_range(in_range)
    if valid is not None:
        if len(valid) != len(in_range):
            raise NkiValidationError(
                f"{op}: dst takes {len(in_range)} rows, src gives {len(valid)}; with indices on both "
                "sides they must be equal"
            )
        in_range = in_range & valid
    tensor.flat()[elements[in_range]] = moved.reshape(elements.shape)[in_range]


_AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


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
        src: HBM or SBUF, of 2 to 4 dimensions, the last at most 128. With a `vector_offset` (2-byte
            types in HBM, gen3): rows chosen by a table [16..128, N], read column after column.
        axes: (1, 0), (2, 1, 0) or (3, 1, 2, 0); there are no others.
        priority, dge_mode, oob_mode: as for `dma_copy`.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.dma_transpose")
    op = "dma_transpose"
    mode = member(OobMode, oob_mode, f"{op}: oob_mode")
    details = _check_transfer(core, op, dst, src, priority, dge_mode, Engine.unknown)
    details["transpose"] = True
    order = _AXES.get(src.ndim)
    if order is None:
        raise NkiValidationError(f"{op}: src is {src!r}; it must have 2, 3 or 4 dimensions")
    if axes is not None and tuple(axes) != order:
        core.violation(
            "constraint", f"{op}: axes is {axes!r}; for {src.ndim} dimensions only {order} is possible"
        )
    if dst.buffer is not MemoryRegion.sbuf:
        core.violation("constraint", f"{op}: dst is {dst!r}; it must be in SBUF")
    wanted = tuple(src.shape[axis] for axis in order)
    if dst.shape != wanted:
        core.violation(
            "constraint",
            f"{op}: dst is {dst!r}; the transpose of src {src!r} is {list(wanted)}, rank included",
        )
    if dst.dtype is not src.dtype:
        core.violation("constraint", f"{op}: dst is {dst.dtype}, src {src.dtype}; they must agree")
    if src.shape[-1] > 128:
        core.violation(
            "constraint",
            f"{op}: the last dimension of src is {src.shape[-1]}; it becomes the partitions and must be "
            "at most 128",
        )
    _check_transposed_dtype(core, src, details["dge"])
    if src.is_indirect():
        _check_gathered_transpose(core, dst, src)
    instruction = core.issue(op, Engine.dma, (dst,), (src,), name, details)
    if core.numerics:
        moved, valid = _load(src, mode)
        turned = np.transpose(moved, order)
        if valid is None:
            dst.assign(np.ascontiguousarray(turned))
        elif valid.any():
            dst.array()[..., valid] = turned[..., valid]
    return instruction


def _check_transposed_dtype(core: Core, src: NkiTensor, dge: str) -> None:
    op = "dma_transpose"
    size = src.dtype.itemsize
    if size not in (2, 4):
        core.violation(
            "constraint", f"{op}: src is {src.dtype} of {size} bytes; elements of 2 or 4 move"
        )
    if dge != "hwdge":
        return
    first = src.shape[0]
    if size != 2:
        core.violation("constraint", f"{op}: src is {src.dtype}; a hwdge transpose takes 2-byte types")
    if src.ndim == 2 and first != 16:
        core.violation(
            "constraint", f"{op}: the first dimension of src is {first}; with hwdge it must be 16"
        )
    if src.ndim > 2 and (first not in (1, 2, 4, 8, 16) or first * src.shape[-2] % 16):
        core.violation(
            "constraint",
            f"{op}: src is {src!r}; with hwdge the first dimension must be 1, 2, 4, 8 or 16, and its "
            "product with the last but one a multiple of 16",
        )


def _check_gathered_transpose(core: Core, dst: NkiTensor, src: NkiTensor) -> None:
    op = "dma_transpose"
    core.require_generation(f"{op} of gathered rows", 3)
    dynamic = src.dynamic
    assert dynamic is not None and isinstance(dynamic.index, NkiTensor)
    index = dynamic.index
    rows, columns = index.shape[0], index.size // index.shape[0]
    if src.dtype.itemsize != 2 or src.on_chip:
        core.violation(
            "constraint", f"{op}: src is {src!r}; gathered rows must be of a 2-byte type in HBM"
        )
    if not 16 <= rows <= 128 or (columns > 1 and rows != 128):
        core.violation(
            "constraint",
            f"{op}: the index is {index!r}; it must have 16 to 128 rows, and 128 with several columns",
        )
    if src.shape[0] % 16:
        core.violation(
            "constraint", f"{op}: src gathers {src.shape[0]} rows; they must be a multiple of 16"
        )
    if src.ndim == 4 and 1 not in src.shape[1:3]:
        core.violation(
            "constraint", f"{op}: src is {src!r}; dimension 1 or 2 of a gathered one must be 1"
        )


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
    mode = member(OobMode, oob_mode, f"{op}: oob_mode")
    if resolve(reduce_op, f"{op}: reduce_op").name != "add":
        core.violation("constraint", f"{op}: reduce_op is {reduce_op!r}; it must be nl.add")
    sources = list(srcs)
    if not 1 <= len(sources) <= _MAX_SOURCES:
        core.violation(
            "constraint", f"{op}: srcs has {len(sources)} tensors; 1 to {_MAX_SOURCES} are allowed"
        )
    if scales is not None and any(scale != 1.0 for scale in scales):
        core.violation("constraint", f"{op}: scales is {list(scales)}; each must be 1.0")
    details: dict[str, Any] = {}
    for src in sources:
        details = _check_transfer(core, op, dst, src, None, DgeMode.unknown, Engine.unknown)
        checks.no_packed(core, op, dst=dst, src=src)
        if src.size != dst.size:
            core.violation(
                "constraint", f"{op}: a source is {src!r} of {src.size} elements, dst has {dst.size}"
            )
    details["indirect"] = dst.is_indirect() or any(src.is_indirect() for src in sources)
    if details["indirect"] and len(sources) != 2:
        core.violation(
            "constraint", f"{op}: srcs has {len(sources)} tensors; with an index there must be two"
        )
    instruction = core.issue(op, Engine.dma, (dst,), sources, name, details)
    if core.numerics:
        if dst.is_indirect():
            _scatter_add(core, dst, sources, bool(unique_indices), mode)
        else:
            _add(op, dst, sources, mode)
    return instruction


def _add(op: str, dst: NkiTensor, sources: list[NkiTensor], mode: OobMode) -> None:
    total = np.zeros(dst.size, np.float32)
    mask: Mask | None = None
    for src in sources:
        part, valid = _load(src, mode)
        total += part.astype(np.float32).reshape(-1)
        mask = valid if valid is not None else mask
    _store(op, dst, dtypes.cast(total, dst.dtype), mask, mode)


def _scatter_add(
    core: Core, dst: NkiTensor, sources: list[NkiTensor], unique: bool, mode: OobMode
) -> None:
    op = "dma_compute"
    others = [src for src in sources if not _same_view(src, dst)]
    if len(others) != 1:
        raise NkiValidationError(
            f"{op}: dst is {dst!r} with an index; one of the two sources must be the same view"
        )
    elements, valid = elements_of(dst)
    if not valid.all() and mode is OobMode.error:
        raise dst.out_of_range(valid)
    rows = elements[valid]
    if unique and len(np.unique(rows[:, 0])) < len(rows):
        core.violation(
            "constraint",
            f"{op}: dst is {dst!r} and an index stands twice in it, against unique_indices=True",
        )
    added = others[0].values().astype(np.float32).reshape(elements.shape)[valid]
    flat = dst.flat()
    for row, part in zip(rows, added, strict=True):
        flat[row] = dtypes.cast(flat[row].astype(np.float32) + part, dst.dtype)


def _same_view(a: NkiTensor, b: NkiTensor) -> bool:
    return a is b or (
        a.storage is b.storage
        and a.dynamic is not None
        and b.dynamic is not None
        and a.dynamic.index is b.dynamic.index
        and (a.shape, a.strides, a.offset) == (b.shape, b.strides, b.offset)
    )
