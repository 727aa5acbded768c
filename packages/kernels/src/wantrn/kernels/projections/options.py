"""The sizes of one call of `o_proj` and of `mlp`, which are all that a plan depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wantrn.kernels.nki import nl
from wantrn.kernels.words import is_fp8, values_of, vector_bytes


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
        hidden=values_of(x.shape[2], packed),
        inner=up.shape[1],
        width=down.shape[1],
        packed=packed,
        up_bias_bytes=vector_bytes(up_bias),
        down_bias_bytes=vector_bytes(down_bias),
    )
