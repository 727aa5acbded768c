"""The elements that a matmul contracts: bf16 values, or words of four FP8 codes."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.row_mx import SCALE_BYTES, VALUES


def is_fp8(tensor: Any) -> bool:
    """Whether a tensor, array or specification has the OCP format of FP8."""
    return "float8_e4m3fn" in str(tensor.dtype)


def words(depth: int, packed: bool) -> int:
    """Rows of a weight that contracts `depth` values: words of FP8 where it is `packed`."""
    return depth // VALUES if packed else depth


def word_bytes(packed: bool) -> int:
    """Bytes of such an element, of a weight or of a token."""
    return VALUES if packed else 2


def values_of(row: int, packed: bool) -> int:
    """`H` of rows of `row` elements, which are packed rows with their scale, or bf16."""
    return row - SCALE_BYTES if packed else row


def vector_bytes(vector: Any) -> int:
    """Bytes of an element of a vector along the columns, fp32 or bf16; 0 without it."""
    if vector == None:
        return 0
    return 4 if "float32" in str(vector.dtype) else 2
