"""The sizes of one call of `o_proj` and of `mlp`, which are all that a plan depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wantrn.kernels.nki import nl

# bytes of the fp32 scale behind the codes of a row; see `wantrn.kernels.row_mx`
SCALE_BYTES = 4
# values of the contraction in one element of the MX matmul
VALUES = 4


@dataclass(frozen=True)
class OProjSizes(nl.NKIObject):
    """The sizes of a call of `o_proj` on one rank.

    Attributes:
        batch, tokens: `B`, `S`
        depth: `N * D`, what is contracted
        width: `H`, columns of the result
        packed: ROW_MX: FP8 weights; otherwise bf16
        bias_bytes: bytes of an element of the bias, 0 without one
    """

    batch: int
    tokens: int
    depth: int
    width: int
    packed: bool = False
    bias_bytes: int = 0


@dataclass(frozen=True)
class MlpSizes(nl.NKIObject):
    """The sizes of a call of `mlp` on one rank.

    Attributes:
        tokens: `B * S`: tokens of a batch follow one another
        hidden: `H`, of the tokens
        inner: `F`, between the two projections
        width: `H_out`, columns of the result
        packed: ROW_MX: packed FP8 tokens and FP8 weights; otherwise bf16
        up_bias_bytes, down_bias_bytes: bytes of an element of each bias, 0 without one
    """

    tokens: int
    hidden: int
    inner: int
    width: int
    packed: bool = False
    up_bias_bytes: int = 0
    down_bias_bytes: int = 0


def words(depth: int, packed: bool) -> int:
    """Rows of a weight as they are contracted: elements of four values, or of one."""
    return depth // VALUES if packed else depth


def word_bytes(packed: bool) -> int:
    """Bytes of such an element."""
    return VALUES if packed else 2


def is_fp8(tensor: Any) -> bool:
    """Whether a tensor, array or specification has the OCP format of FP8."""
    return "float8_e4m3fn" in str(tensor.dtype)


def vector_bytes(vector: Any) -> int:
    """Bytes of an element of a vector along the columns, 0 without it."""
    if vector == None:
        return 0
    return 4 if "float32" in str(vector.dtype) else 2


def o_proj_sizes(x: Any, weight: Any, bias: Any) -> OProjSizes:
    """The sizes of a call's tensors, arrays or specifications; arguments as of `o_proj`."""
    return OProjSizes(
        batch=x.shape[0],
        tokens=x.shape[3],
        depth=x.shape[1] * x.shape[2],
        width=weight.shape[1],
        packed=is_fp8(weight),
        bias_bytes=vector_bytes(bias),
    )


def mlp_sizes(x: Any, up: Any, down: Any, up_bias: Any, down_bias: Any) -> MlpSizes:
    """The sizes of a call's tensors, arrays or specifications; arguments as of `mlp`."""
    packed = is_fp8(up)
    return MlpSizes(
        tokens=x.shape[0] * x.shape[1],
        hidden=x.shape[2] - SCALE_BYTES if packed else x.shape[2],
        inner=up.shape[1],
        width=down.shape[1],
        packed=packed,
        up_bias_bytes=vector_bytes(up_bias),
        down_bias_bytes=vector_bytes(down_bias),
    )
