"""The norm of single heads: RMSNorm of each head by itself, all with the same weight.

It needs no other head and no other rank, so it is computed from the rounded row when that is
finished. The weight, which is the same for all heads, multiplies the tables of the rotation.
"""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nisa, nl
from wantrn.kernels.qkv.slabs import Segment
from wantrn.kernels.qkv.sums import Sums


def normalise_heads(dst: Any, x: Any, squares: Any, sums: Sums) -> None:
    """`dst = x * rsqrt(mean(x ** 2 over D) + eps)`, without the weight.

    Args:
        dst: SBUF fp32, x: SBUF bf16, both `[rows, segments, heads, D]`.
        squares: SBUF fp32 of as many elements, overwritten.
    """
    rows, segments, heads, d = x.shape
    nisa.activation(squares, nl.square, x)
    factors = sums.memory.head_factors.take()[0:rows, 0 : segments * heads]
    factors = factors.reshape_dim(1, (segments, heads))
    nisa.tensor_reduce(factors, nl.add, squares, axis=3)
    nisa.activation(factors, nl.rsqrt, factors, bias=sums.options.eps, scale=1.0 / d)
    nisa.tensor_tensor(dst, x, factors.expand_dim(3).broadcast(3, d), nl.multiply)


def head_gamma(alike: list[Segment], rows: int, sums: Sums) -> Any:
    """The weights of these segments: SBUF fp32 `[rows, segments, D]`."""
    d = sums.plan.sizes.head_dim
    first = alike[0].number * d
    found = sums.memory.head_gamma.at(0)[0:rows, first : first + len(alike) * d]
    return found.reshape_dim(1, (len(alike), d))


def weigh_tables(tables: Any, gamma: Any) -> None:
    """Multiply tables `[rows, segments, 2, D]` by the weight of the channel that each entry meets:
    the half of a row that is multiplied by sines comes from the other half."""
    d = gamma.shape[2]
    half = d // 2
    for row, to, come in ((0, 0, 0), (0, half, half), (1, 0, half), (1, half, 0)):
        part = tables[:, :, row, to : to + half]
        nisa.tensor_tensor(part, part, gamma[:, :, come : come + half], nl.multiply)
