"""Instructions of the Tensor engine (PE): products and transposes."""

from __future__ import annotations

from typing import Any

import numpy as np

from nkisim import dtypes, mx
from nkisim.core import Core, current
from nkisim.dtypes import DType
from nkisim.enums import Engine, MatmulPerfMode, MemoryRegion, member
from nkisim.isa import checks, values
from nkisim.tensor import NkiTensor
from nkisim.trace import Instruction

# fp32 and tf32 operands go together; any two of the others may meet
_WIDE = frozenset({dtypes.float32, dtypes.tfloat32})
_NARROW = frozenset({dtypes.bfloat16, dtypes.float16}) | checks.FP8
_MX = frozenset({dtypes.float8_e4m3fn_x4, dtypes.float8_e5m2_x4, dtypes.float4_e2m1fn_x4})
_SCALES = frozenset({dtypes.uint8, dtypes.float8_e8m0fnu})

# partitions that share the indices of an indirect operand
_GROUP = 32

# columns of a result: one bank before gen4; all of PSUM from there
_COLUMNS_OF_A_BANK = 512

# what a cost needs to know, made once: there are many matmuls
_DETAILS = {
    (mode, transposes): {"perf_mode": mode.value, "is_transpose": transposes}
    for mode in MatmulPerfMode
    for transposes in (False, True)
}


def nc_matmul(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: Any = (),
    tile_size: Any = (),
    perf_mode: Any = MatmulPerfMode.none,
    name: str | None = None,
) -> Instruction:
    """`dst[M, N] (+)= stationary[K, M].T @ moving[K, N]`, in fp32.

    Args:
        dst: PSUM; fp32, or bf16 on gen4; of the operands' dtype when `is_transpose`.
        stationary: SBUF, K <= 128 partitions, M <= 128.
        moving: SBUF, K partitions, N <= 512; on gen4 as many as PSUM holds.
        is_stationary_onezero, is_moving_onezero: promises that an operand holds only ones and
            zeros. They change no result.
        is_transpose: one operand is an identity, and the product moves bits.
        accumulate: False overwrites, True adds; None adds where a matmul has written since `dst`
            was allocated, and overwrites elsewhere.
        tile_position, tile_size: (row, column) and (rows, columns) of the part of the PE array.
        perf_mode: `double_row` contracts over two rows at once: stationary [K, 2, M], moving
            [K, 2, N] in fp8; gen3 and later.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.nc_matmul")
    op = "nc_matmul"
    mode = member(MatmulPerfMode, perf_mode, f"{op}: perf_mode")
    double = mode is MatmulPerfMode.double_row
    checks.operand(core, op, "dst", dst, checks.PSUM)
    checks.operand(core, op, "stationary", stationary, checks.SBUF)
    checks.operand(core, op, "moving", moving, checks.SBUF)
    _check_dtypes(core, dst, stationary, moving, is_transpose)
    _check_shapes(core, op, dst, stationary, moving, 2 if double else 1)
    if double:
        _check_double_row(core, stationary, moving, is_transpose, tile_size)
    elif stationary.ndim > 2 and len(stationary.access().steps) > 0:
        core.violation(
            "stationary_dims",
            f"{op}: stationary is {stationary!r} with several free dimensions; Trainium2 gives wrong "
            "results for it",
        )
    _check_tile(core, op, stationary, moving, tile_position, tile_size)
    details = _DETAILS[mode, bool(is_transpose)]
    accumulation = dst.storage.accumulation
    assert accumulation is not None
    decision = accumulation.plan(op, dst, _flag(op, accumulate))
    reads = (stationary, moving) if decision is False else (stationary, moving, dst)
    instruction = core.issue(op, Engine.tensor, (dst,), reads, name, details)
    if core.numerics:
        if is_transpose:
            _transpose(core, dst, stationary, moving)
        else:
            left = _matrix(stationary, double)
            right = _matrix(moving, double)
            accumulation.add_product(dst, left, right, decision)
    return instruction


def _flag(op: str, accumulate: Any) -> bool | None:
    if accumulate is None or isinstance(accumulate, (bool, np.bool_)):
        return None if accumulate is None else bool(accumulate)
    raise TypeError(f"{op}: accumulate is {accumulate!r}; it must be None, True or False")


def _matrix(tensor: NkiTensor, double: bool) -> values.Array:
    """`[K, N]`; with two rows a partition, `[2 K, N]`."""
    found = tensor.values(_GROUP)
    if double:
        # [K, 2, N]: any order of the contraction will do, as long as both operands have it
        return found.reshape(found.shape[0] * 2, -1)
    return found.reshape(found.shape[0], -1)


def _transpose(core: Core, dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor) -> None:
    """The product with an identity, in the bits of the operands."""
    product = np.matmul(values.single(stationary).T, values.single(moving))
    dst.assign(dtypes.cast(product, dst.dtype))


def _check_dtypes(
    core: Core, dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, is_transpose: bool
) -> None:
    op = "nc_matmul"
    a, b = stationary.dtype, moving.dtype
    for name, dtype in (("stationary", a), ("moving", b)):
        if dtype not in _WIDE and dtype not in _NARROW:
            core.violation(
                "constraint", f"{op}: {name} is {dtype}; the PE array takes fp32, tf32, bf16, fp16, fp8"
            )
        if dtype is dtypes.float8_e4m3fn and core.target < 4:
            core.violation(
                "constraint", f"{op}: {name} is float8_e4m3fn; before gen4 it must be float8_e4m3"
            )
    if (a in _WIDE) != (b in _WIDE):
        core.violation(
            "constraint",
            f"{op}: stationary is {a} and moving {b}; if one is fp32 or tf32, both must be",
        )
    if {a, b} == {dtypes.float8_e4m3, dtypes.float8_e4m3fn}:
        core.violation(
            "constraint", f"{op}: stationary is {a} and moving {b}; the two kinds of e4m3 never mix"
        )
    _check_result_dtype(core, dst.dtype, a, is_transpose)


def _check_result_dtype(core: Core, dst: DType, operand: DType, is_transpose: bool) -> None:
    if is_transpose:
        wanted = dtypes.float16 if operand in checks.FP8 else operand
        ok = dst is operand or (operand in checks.FP8 and dst.itemsize == 2)
        if not ok:
            core.violation(
                "constraint", f"nc_matmul: dst is {dst}; a transpose of {operand} gives {wanted}"
            )
    elif dst is dtypes.bfloat16:
        core.require_generation("nc_matmul with a bfloat16 dst", 4)
    elif dst is not dtypes.float32:
        core.violation(
            "constraint", f"nc_matmul: dst is {dst}; it must be float32, or bfloat16 on gen4"
        )


def _check_shapes(
    core: Core, op: str, dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor, rows: int
) -> None:
    if stationary.shape[0] != moving.shape[0]:
        core.violation(
            "constraint",
            f"{op}: stationary has {stationary.shape[0]} partitions and moving {moving.shape[0]}; the "
            "contraction must be equal",
        )
    m = stationary.access().elements // rows
    n = moving.access().elements // rows
    if m > 128:
        core.violation("constraint", f"{op}: stationary has {m} columns; at most 128 are allowed")
    limit = _COLUMNS_OF_A_BANK
    if core.target >= 4:
        limit = core.machine.psum_bytes_per_partition // dst.dtype.itemsize
    if n > limit:
        core.violation(
            "constraint",
            f"{op}: moving has {n} columns; on {core.target.name} with a {dst.dtype} dst at most "
            f"{limit} are allowed",
        )
    if dst.shape[0] != m or dst.access().elements != n:
        core.violation(
            "constraint",
            f"{op}: dst is {dst!r} of {dst.shape[0]} x {dst.access().elements}; stationary and moving "
            f"give {m} x {n}",
        )


def _check_double_row(
    core: Core, stationary: NkiTensor, moving: NkiTensor, is_transpose: bool, tile_size: Any
) -> None:
    op = "nc_matmul"
    core.require_generation(f"{op} with perf_mode double_row", 3)
    for name, tensor in (("stationary", stationary), ("moving", moving)):
        if tensor.ndim < 3 or tensor.shape[1] != 2:
            core.violation(
                "constraint", f"{op}: {name} is {tensor!r}; double_row takes [K, 2, columns]"
            )
        checks.dtype_in(core, op, name, tensor, checks.FP8)
    if is_transpose or (len(tile_size) == 2 and tile_size[1] < 128):
        core.violation(
            "constraint", f"{op}: double_row combines neither with is_transpose nor with column tiles"
        )


def _check_tile(
    core: Core, op: str, stationary: NkiTensor, moving: NkiTensor, position: Any, size: Any
) -> None:
    if not position and not size:
        return
    try:
        (row, column), (rows, columns) = position, size
    except (TypeError, ValueError):
        raise TypeError(
            f"{op}: tile_position is {position!r} and tile_size {size!r}; both are pairs, or neither"
        ) from None
    allowed = (64, 128) if core.target < 3 else (32, 64, 128)
    if rows not in allowed or columns not in allowed:
        core.violation(
            "constraint", f"{op}: tile_size is {size!r}; rows and columns must be among {allowed}"
        )
        return
    if row % rows or column % columns or row + rows > 128 or column + columns > 128:
        core.violation(
            "constraint",
            f"{op}: tile_position is {position!r}; it must be a multiple of tile_size {size!r} within "
            "128 x 128",
        )
    if stationary.shape[0] > rows or stationary.access().elements > columns:
        core.violation(
            "constraint", f"{op}: stationary {stationary!r} does not fit into tile_size {size!r}"
        )


def nc_matmul_mx(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    stationary_scale: NkiTensor,
    moving_scale: NkiTensor,
    tile_position: Any = None,
    tile_size: Any = None,
    accumulate: bool | None = None,
    name: str | None = None,
) -> Instruction:
    """A product of MX operands, four values an element, each block of 32 with a scale; gen4.

    `dst[m, n] (+)= sum over k, q of S[k, m, q] 2^(ss - 127) M[k, n, q] 2^(ms - 127)`, where the
    scales are those of group `k // 8`.

    Args:
        dst: PSUM, fp32 or bf16, [M, N].
        stationary, moving: SBUF, [K, M] and [K, N] in an x4 dtype; K a multiple of 32, M even.
        stationary_scale, moving_scale: SBUF, uint8 or float8_e8m0fnu, in the layout of
            `nkisim.mx.scale_rows`.
        tile_position, tile_size, accumulate: as in `nc_matmul`; rows only.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.nc_matmul_mx")
    op = "nc_matmul_mx"
    core.require_generation(op, 4)
    checks.operand(core, op, "dst", dst, checks.PSUM)
    pairs = (
        ("stationary", stationary, stationary_scale),
        ("moving", moving, moving_scale),
    )
    for operand_name, tensor, scale in pairs:
        checks.operand(core, op, operand_name, tensor, checks.SBUF)
        checks.dtype_in(core, op, operand_name, tensor, _MX)
        _check_scale(core, f"{operand_name}_scale", tensor, scale)
    checks.dtype_in(core, op, "dst", dst, (dtypes.float32, dtypes.bfloat16))
    if stationary.shape[0] % 32:
        core.violation(
            "constraint",
            f"{op}: stationary has {stationary.shape[0]} partitions; they must be a multiple of 32",
        )
    if stationary.access().elements % 2:
        core.violation(
            "constraint",
            f"{op}: stationary has {stationary.access().elements} columns; they must be even",
        )
    _check_shapes(core, op, dst, stationary, moving, 1)
    if tile_size and tile_size[1] != 128:
        core.violation("constraint", f"{op}: tile_size is {tile_size!r}; only rows can be tiled")
    _check_tile(core, op, stationary, moving, tile_position or (), tile_size or ())
    accumulation = dst.storage.accumulation
    assert accumulation is not None
    decision = accumulation.plan(op, dst, _flag(op, accumulate))
    reads = [stationary, moving, stationary_scale, moving_scale]
    if decision is not False:
        reads.append(dst)
    instruction = core.issue(op, Engine.tensor, (dst,), reads, name)
    if core.numerics:
        left = _scaled(stationary, stationary_scale)
        right = _scaled(moving, moving_scale)
        accumulation.add_product(dst, left, right, decision)
    return instruction


def _check_scale(core: Core, name: str, tensor: NkiTensor, scale: NkiTensor) -> None:
    op = "nc_matmul_mx"
    if type(scale) is not NkiTensor or scale.buffer is not MemoryRegion.sbuf:
        core.violation("constraint", f"{op}: {name} is {scale!r}; it must be a tensor in SBUF")
        return
    checks.dtype_in(core, op, name, scale, _SCALES)
    partitions = tensor.shape[0]
    rows, columns = scale.shape[0], scale.access().elements
    compact = partitions <= 32 and rows == partitions // 8
    last_group = partitions // 8 - 1
    needed = last_group // 4 * 32 + last_group % 4 + 1
    if (not compact and rows < needed) or columns < tensor.access().elements:
        core.violation(
            "constraint",
            f"{op}: {name} is {scale!r}; for data of {partitions} partitions and "
            f"{tensor.access().elements} columns it must have at least {needed} partitions and as many "
            "columns",
        )


def _scaled(tensor: NkiTensor, scale: NkiTensor) -> values.Float32:
    """`[4 K, columns]` in fp32."""
    codes = values.raw(tensor)
    partitions, columns = codes.shape
    bytes_ = values.raw(scale).view(np.uint8)[:, :columns]
    return mx.dequantized_rows(codes, tensor.dtype, mx.scale_rows(bytes_, partitions))


def nc_transpose(
    dst: NkiTensor, data: NkiTensor, engine: Any = Engine.unknown, name: str | None = None
) -> Instruction:
    """`dst[F, P] = data[P, F]`, bit for bit.

    Args:
        dst: PSUM on the Tensor engine (at most 128 x 128); SBUF or PSUM on the Vector engine (at
            most 32 x 32).
        data: SBUF on the Tensor engine; SBUF or PSUM on the Vector engine. Same dtype.
        engine: tensor or vector; by default tensor where `dst` is in PSUM, else vector.

    Raises:
        NkiValidationError: an operand breaks a constraint.
    """
    core = current("nisa.nc_transpose")
    op = "nc_transpose"
    checks.operand(core, op, "dst", dst)
    by_buffer = Engine.tensor if dst.buffer is MemoryRegion.psum else Engine.vector
    chosen = checks.choose_engine(core, op, engine, (Engine.tensor, Engine.vector), by_buffer)
    limit = 128
    if chosen is Engine.tensor:
        checks.operand(core, op, "dst", dst, checks.PSUM)
        checks.operand(core, op, "data", data, checks.SBUF)
    else:
        limit = 32
        checks.operand(core, op, "data", data)
    if dst.dtype is not data.dtype:
        core.violation("constraint", f"{op}: dst is {dst.dtype} and data {data.dtype}; they must agree")
    p, f = data.shape[0], data.access().elements
    if p > limit or f > limit:
        core.violation(
            "constraint",
            f"{op}: data is {data!r} of {p} x {f}; the {chosen.name} engine transposes at most "
            f"{limit} x {limit}",
        )
    if (dst.shape[0], dst.access().elements) != (f, p):
        core.violation(
            "constraint", f"{op}: dst is {dst!r}; the transpose of data {data!r} is {f} x {p}"
        )
    if dst.storage.accumulation is not None:
        dst.storage.accumulation.plan(op, dst, False)
    instruction = core.issue(op, chosen, (dst,), (data,), name)
    if core.numerics:
        dst.assign(np.ascontiguousarray(values.raw(data).T))
    return instruction
