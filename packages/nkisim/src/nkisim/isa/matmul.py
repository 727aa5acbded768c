"""Instructions of the Tensor engine (PE): products and transposes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from nkisim import dtypes, mx
from nkisim.core import Core, current
from nkisim.enums import Engine, MatmulPerfMode, MemoryRegion, member
from nkisim.errors import NkiValidationError
from nkisim.gathered import Operand, mark
from nkisim.isa import checks, matmul_checks, mx_scales, values
from nkisim.psum import Accumulation, Plan
from nkisim.tensor import NkiTensor
from nkisim.trace import Instruction

_MX = frozenset({dtypes.float8_e4m3fn_x4, dtypes.float8_e5m2_x4, dtypes.float4_e2m1fn_x4})

# partitions that share the indices of an indirect operand
_GROUP = 32

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
        is_transpose: one operand holds a single 1 in each column, as an identity does, and the bits
            of the other one are moved. Bytes come with a zero byte above them into a `dst` of 16
            bits. Nothing is added up.
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
    mode = member(MatmulPerfMode, perf_mode, "nc_matmul: perf_mode")
    double = mode is MatmulPerfMode.double_row
    special = double or is_transpose or tile_position or tile_size
    if special or not matmul_checks.plain(dst, stationary, moving):
        tiling = (tile_position, tile_size)
        _check_product(core, dst, stationary, moving, tiling, double, is_transpose)
    details = _DETAILS[mode, bool(is_transpose)]
    dst, accumulation = _result(core, op, dst)
    plan = accumulation.plan(op, dst, _flag(op, accumulate))
    if is_transpose and plan.adds is not False:
        core.violation(
            "accumulate",
            f"{op}: is_transpose into dst {dst!r}, which holds what an earlier matmul wrote; bits "
            "are not added up but overwrite it: give accumulate=False or allocate dst anew",
        )
    reads = (stationary, moving, dst) if plan.reads else (stationary, moving)
    instruction = core.issue(op, Engine.tensor, (dst,), reads, name, details)
    if core.numerics:
        if is_transpose:
            _move(dst, _matrix(stationary, double), _matrix(moving, double))
        else:
            left, right = _operand(stationary, double), _operand(moving, double)
            accumulation.add_product(dst, left, right, plan.adds)
    return instruction


def _check_product(
    core: Core,
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    tiling: tuple[Any, Any],
    double: bool,
    is_transpose: bool,
) -> None:
    op = "nc_matmul"
    rows = 2 if double else 1
    checks.operand(core, op, "dst", dst, checks.PSUM)
    checks.operand(core, op, "stationary", stationary, checks.SBUF)
    checks.operand(core, op, "moving", moving, checks.SBUF)
    matmul_checks.check_dtypes(core, dst, stationary, moving, is_transpose)
    matmul_checks.check_shapes(core, op, dst, stationary, moving, rows)
    if double:
        matmul_checks.check_double_row(core, stationary, moving, is_transpose, tiling[1])
    else:
        matmul_checks.check_stationary_dims(core, stationary)
    matmul_checks.check_indirect(core, stationary, moving, is_transpose, tiling[0])
    matmul_checks.check_tile(core, op, stationary, moving, *tiling, rows)


def _operand(tensor: NkiTensor, double: bool) -> Operand:
    rows = 2 if double else 1
    columns = tensor.access().elements // rows
    return Operand(tensor.shape[0] * rows, columns, partial(_matrix, tensor, double), mark(tensor))


def _result(core: Core, op: str, dst: NkiTensor) -> tuple[NkiTensor, Accumulation]:
    """`dst` where it lies in this execution, and what matmuls have written to it."""
    accumulation = dst.storage.accumulation
    if accumulation is None or (dst.dynamic is not None and dst.dynamic.kind != "scalar"):
        raise NkiValidationError(
            f"{op}: dst is {dst!r}; it must be in PSUM, and its elements not chosen by a tensor"
        )
    if dst.dynamic is not None and core.numerics:
        dst = dst.resolved()
    return dst, accumulation


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


def _move(dst: NkiTensor, stationary: values.Array, moving: values.Array) -> None:
    """The product with an identity, or with any selection of rows, in the bits of the other one."""
    if _selects(moving):
        bits = np.ascontiguousarray(stationary[moving.astype(bool).argmax(axis=0)].T)
    elif _selects(stationary):
        bits = np.ascontiguousarray(moving[stationary.astype(bool).argmax(axis=0)])
    else:
        raise NkiValidationError(
            "nc_matmul: is_transpose, but neither moving nor stationary has a single 1 in each "
            "column, as an identity has"
        )
    if bits.dtype.itemsize == 1 and dst.dtype.itemsize == 2:
        bits = bits.view(np.uint8).astype(np.uint16)
    dst.assign(bits.view(dst.dtype.numpy))


def _selects(matrix: values.Array) -> bool:
    """Whether each column has a single 1 and zeros."""
    single = matrix.astype(np.float32)
    return bool(((single == 1).sum(axis=0) == 1).all() and (single != 0).sum() == single.shape[1])


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
    for operand_name, tensor in (("stationary", stationary), ("moving", moving)):
        checks.operand(core, op, operand_name, tensor, checks.SBUF)
        checks.dtype_in(core, op, operand_name, tensor, _MX)
    checks.dtype_in(core, op, "dst", dst, (dtypes.float32, dtypes.bfloat16))
    K, M, N = stationary.shape[0], stationary.access().elements, moving.access().elements
    if K % 32:
        core.violation(
            "constraint", f"{op}: stationary has {K} partitions; they must be a multiple of 32"
        )
    if M % 2:
        core.violation("constraint", f"{op}: stationary has {M} columns; they must be even")
    matmul_checks.check_shapes(core, op, dst, stationary, moving, 1)
    mx_scales.check(core, op, "stationary_scale", stationary_scale, K, M)
    mx_scales.check(core, op, "moving_scale", moving_scale, K, N)
    matmul_checks.check_tile(core, op, stationary, moving, tile_position or (), tile_size or ())
    if tile_size and tile_size[1] != 128:
        core.violation("constraint", f"{op}: tile_size is {tile_size!r}; only rows can be tiled")
    dst, accumulation = _result(core, op, dst)
    plan = accumulation.plan(op, dst, _flag(op, accumulate))
    reads = [stationary, moving, *mx_scales.views(stationary_scale, K, M)]
    reads += mx_scales.views(moving_scale, K, N)
    if plan.reads:
        reads.append(dst)
    instruction = core.issue(op, Engine.tensor, (dst,), reads, name)
    if core.numerics:
        left = _unpacked(stationary, stationary_scale)
        right = _unpacked(moving, moving_scale)
        _add_scaled(accumulation, dst, left, right, plan)
    return instruction


# values [K, columns, 4], and scale bytes [K // 8, columns]
Scaled = tuple[mx.Single, mx.Bytes]


def _unpacked(tensor: NkiTensor, scale: NkiTensor) -> Scaled:
    codes = _matrix(tensor, False)
    return mx.unpack(codes, tensor.dtype), mx_scales.rows(scale, *codes.shape)


def _add_scaled(
    accumulation: Accumulation, dst: NkiTensor, left: Scaled, right: Scaled, plan: Plan
) -> None:
    if mx_scales.fit_single(left[1]) and mx_scales.fit_single(right[1]):
        stationary = Operand.of(mx.scaled_rows(*left))
        accumulation.add_product(dst, stationary, Operand.of(mx.scaled_rows(*right)), plan.adds)
    else:
        # scaled operands that fp32 cannot hold may still have products that it can
        accumulation.add(dst, mx.matmul(left[0], right[0], left[1], right[1]), plan.adds)


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
        core.violation(
            "constraint", f"{op}: dst is {dst.dtype} and data {data.dtype}; they must agree"
        )
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
    if chosen is Engine.tensor:
        dst, accumulation = _result(core, op, dst)
        accumulation.plan(op, dst, False)
    instruction = core.issue(op, chosen, (dst,), (data,), name)
    if core.numerics:
        dst.assign(values.raw(data).T)
    return instruction
