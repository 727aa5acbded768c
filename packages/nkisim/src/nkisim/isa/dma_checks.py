"""What the DMA engines take; each breach names the instruction and the operand."""

from __future__ import annotations

from typing import Any

from nkisim import dtypes
from nkisim.core import Core
from nkisim.enums import DgeMode, Engine, MemoryRegion, OobMode, member
from nkisim.tensor import NkiTensor

_REACHED = frozenset({MemoryRegion.sbuf, MemoryRegion.private_hbm, MemoryRegion.shared_hbm})


def dge_mode(core: Core, op: str, value: Any) -> DgeMode:
    """The mode that `value` means; kernels of nki-library write some as bare integers.

    Raises:
        TypeError: it means none.
    """
    if type(value) is DgeMode:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        for mode in DgeMode:
            if mode.value == value:
                core.violation(
                    "deprecated", f"{op}: dge_mode is the integer {value}; write {mode!r}"
                )
                return mode
    return member(DgeMode, value, f"{op}: dge_mode")


def transfer(
    core: Core,
    op: str,
    dst: Any,
    src: Any,
    mode: DgeMode,
    engine: Any = Engine.unknown,
    priority: Any = None,
) -> dict[str, Any]:
    """What all transfers have in common; the details of the instruction."""
    operand(core, op, "dst", dst)
    operand(core, op, "src", src)
    if priority is not None:
        core.require_generation(f"{op}: priority", 4)
        if isinstance(priority, bool) or priority not in (0, 1, 2, 3):
            core.violation("constraint", f"{op}: priority is {priority!r}; it must be 0, 1, 2 or 3")
    indirect = dst.is_indirect() or src.is_indirect()
    if mode is DgeMode.hwdge:
        core.require_generation(f"{op}: dge_mode hwdge", 3)
    if indirect and mode is not DgeMode.unknown and mode is not DgeMode.swdge:
        core.violation(
            "constraint",
            f"{op}: dge_mode is {mode}; rows are gathered and scattered only by swdge",
        )
    starter = member(Engine, engine, f"{op}: engine")
    if starter is not Engine.unknown:
        if mode is not DgeMode.hwdge:
            core.violation(
                "constraint",
                f"{op}: engine is {starter}; only a transfer with dge_mode.hwdge names one",
            )
        if starter is not Engine.sync and starter is not Engine.scalar:
            core.violation(
                "constraint", f"{op}: engine is {starter}; it must be engine.sync or engine.scalar"
            )
    queue = None if starter is Engine.unknown else starter.name
    return {"dge": mode.name, "queue": queue, "indirect": indirect, "transpose": False}


def operand(core: Core, op: str, name: str, tensor: Any) -> None:
    """A tensor that DMA reaches, on partitions that follow one another."""
    if type(tensor) is not NkiTensor:
        raise TypeError(f"{op}: {name} is {tensor!r}; it must be a tensor")
    if tensor.storage.place.region not in _REACHED:
        core.violation("constraint", f"{op}: {name} is {tensor!r}; DMA reaches SBUF and HBM")
    if tensor.dynamic is not None and tensor.dynamic.kind == "gather":
        core.violation("constraint", f"{op}: {name} is an indirect view, which only engines read")
    if tensor.on_chip and tensor.access().partitions != tensor.shape[0]:
        core.violation(
            "partition_start",
            f"{op}: {name} leaves out partitions of {tensor!r}; they must follow one another",
        )


def equal_sizes(core: Core, op: str, dst: NkiTensor, name: str, src: NkiTensor) -> None:
    """As many elements on both sides."""
    if dst.shape != src.shape and dst.size != src.size:
        core.violation(
            "constraint",
            f"{op}: dst is {dst!r} of {dst.size} elements, {name} is {src!r} of {src.size}; they "
            "must be equal",
        )


def conversion(core: Core, op: str, dst: NkiTensor, src: NkiTensor, mode: DgeMode) -> None:
    """A transfer between different types."""
    if mode is DgeMode.hwdge:
        core.violation(
            "constraint",
            f"{op}: dst is {dst.dtype}, src {src.dtype}; a hwdge transfer does not convert",
        )
    if dst.dtype.values > 1 or src.dtype.values > 1:
        core.violation(
            "constraint",
            f"{op}: dst is {dst.dtype}, src {src.dtype}; packed types do not convert, use .view",
        )


def transposition(
    core: Core, dst: NkiTensor, src: NkiTensor, order: tuple[int, ...], axes: Any
) -> None:
    """Shapes, types and memories of a transpose."""
    op = "dma_transpose"
    if axes is not None and tuple(axes) != order:
        core.violation(
            "constraint",
            f"{op}: axes is {axes!r}; for {src.ndim} dimensions only {order} is possible",
        )
    if dst.buffer is not MemoryRegion.sbuf:
        core.violation("constraint", f"{op}: dst is {dst!r}; it must be in SBUF")
    if src.shape[-1] > 128:
        core.violation(
            "constraint",
            f"{op}: the last dimension of src is {src.shape[-1]}; it becomes the partitions and "
            "must be at most 128",
        )
    wanted = tuple([src.shape[axis] for axis in order])
    if dst.shape != wanted:
        core.violation(
            "constraint",
            f"{op}: dst is {dst!r}; the transpose of src {src!r} is {list(wanted)}, rank included",
        )
    if dst.dtype is not src.dtype:
        core.violation("constraint", f"{op}: dst is {dst.dtype}, src {src.dtype}; they must agree")
    if src.dtype.itemsize not in (2, 4):
        core.violation(
            "constraint",
            f"{op}: src is {src.dtype} of {src.dtype.itemsize} bytes; elements of 2 or 4 move",
        )


def direct_transposition(core: Core, src: NkiTensor, mode: DgeMode, oob: OobMode) -> None:
    """A transpose without an index for each row."""
    op = "dma_transpose"
    if mode is DgeMode.swdge:
        core.violation(
            "constraint", f"{op}: dge_mode is {mode}; it is only for a src with a vector_offset"
        )
    if oob is OobMode.skip and src.dynamic is None:
        core.violation(
            "constraint", f"{op}: oob_mode is {oob}; it is only for a src with a dynamic index"
        )
    if mode is not DgeMode.hwdge:
        return
    first = src.shape[0]
    if src.dtype.itemsize != 2:
        core.violation(
            "constraint", f"{op}: src is {src.dtype}; a hwdge transpose takes 2-byte types"
        )
    if src.ndim == 2 and first != 16:
        core.violation(
            "constraint", f"{op}: the first dimension of src is {first}; with hwdge it must be 16"
        )
    if src.ndim > 2 and (first not in (1, 2, 4, 8, 16) or first * src.shape[-2] % 16):
        core.violation(
            "constraint",
            f"{op}: src is {src!r}; with hwdge the first dimension must be 1, 2, 4, 8 or 16, and "
            "its product with the last but one a multiple of 16",
        )


def gathered_transposition(core: Core, src: NkiTensor) -> None:
    """A transpose of rows that an index chooses."""
    op = "dma_transpose"
    core.require_generation(f"{op} of gathered rows", 3)
    dynamic = src.dynamic
    assert dynamic is not None and isinstance(dynamic.index, NkiTensor)
    index = dynamic.index
    if index.dtype is not dtypes.uint32:
        core.violation("constraint", f"{op}: the index is {index!r}; it must be uint32")
    rows, columns = index.shape[0], index.size // index.shape[0]
    if rows not in range(16, 129, 16) or (columns > 1 and rows != 128):
        core.violation(
            "constraint",
            f"{op}: the index is {index!r}; it must have 16, 32, ... 128 rows, and 128 with "
            "several columns",
        )
    if src.dtype.itemsize != 2 or src.on_chip:
        core.violation(
            "constraint", f"{op}: src is {src!r}; gathered rows must be of a 2-byte type in HBM"
        )
    if src.shape[0] % 16:
        core.violation(
            "constraint", f"{op}: src gathers {src.shape[0]} rows; they must be a multiple of 16"
        )
    if src.ndim == 4 and 1 not in src.shape[1:3]:
        core.violation(
            "constraint", f"{op}: src is {src!r}; dimension 1 or 2 of a gathered one must be 1"
        )
