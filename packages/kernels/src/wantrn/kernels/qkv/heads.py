"""The norm of single heads: RMSNorm or LayerNorm of each head by itself, all with the same weight.

It needs no other head and no other rank, so it is computed from the rounded row when that is
finished. The weight, which is the same for all heads, multiplies the tables of the rotation; where
there is a bias too, or no rotation, both go to the row.
"""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nisa, nl
from wantrn.kernels.qkv.slabs import Segment
from wantrn.kernels.qkv.sums import Sums


def normalise_heads(dst: Any, x: Any, squares: Any, sums: Sums) -> None:
    """`dst = x * rsqrt(mean(x ** 2 over D) + eps)`, without the weight; of a LayerNorm, `x` less
    its mean over D.

    Args:
        dst: SBUF fp32, x: SBUF bf16, both `[rows, segments, heads, D]`.
        squares: SBUF fp32 of as many elements, overwritten.
    """
    d = x.shape[3]
    source = x
    if sums.plan.sizes.centred:
        means = _of_heads(sums.memory.head_means, x)
        nisa.tensor_reduce(means, nl.add, x, axis=3)
        nisa.tensor_scalar(means, means, nl.multiply, 1.0 / d)
        nisa.tensor_tensor(dst, x, means.expand_dim(3).broadcast(3, d), nl.subtract)
        source = dst
    nisa.activation(squares, nl.square, source)
    factors = _of_heads(sums.memory.head_factors, x)
    nisa.tensor_reduce(factors, nl.add, squares, axis=3)
    nisa.activation(factors, nl.rsqrt, factors, bias=sums.options.eps, scale=1.0 / d)
    nisa.tensor_tensor(dst, source, factors.expand_dim(3).broadcast(3, d), nl.multiply)


def _of_heads(buffer: Any, x: Any) -> Any:
    """A number for each head of `x`: fp32 `[rows, segments, heads]` of the next slot."""
    rows, segments, heads, _ = x.shape
    found = buffer.take()[0:rows, 0 : segments * heads]
    return found.reshape_dim(1, (segments, heads))


def head_vectors(buffer: Any, alike: list[Segment], rows: int, d: int) -> Any:
    """The weights, or biases, of these segments: SBUF fp32 `[rows, segments, D]`."""
    first = alike[0].number * d
    found = buffer.at(0)[0:rows, first : first + len(alike) * d]
    return found.reshape_dim(1, (len(alike), d))


def weigh_heads(dst: Any, x: Any, gamma: Any, beta: Any) -> None:
    """`dst = x * gamma + beta`, of SBUF fp32 `x` `[rows, segments, heads, D]`, which is overwritten
    if there is a `beta`; gamma, beta: `[rows, segments, D]`."""
    heads = x.shape[2]
    weight = gamma.expand_dim(2).broadcast(2, heads)
    if beta == None:
        nisa.tensor_tensor(dst, x, weight, nl.multiply)
        return
    nisa.tensor_tensor(x, x, weight, nl.multiply)
    nisa.tensor_tensor(dst, x, beta.expand_dim(2).broadcast(2, heads), nl.add)


def weigh_tables(tables: Any, gamma: Any) -> None:
    """Multiply tables `[rows, segments, 2, D]` by the weight of the channel that each entry meets:
    the half of a row that is multiplied by sines comes from the other half."""
    d = gamma.shape[2]
    half = d // 2
    for row, to, come in ((0, 0, 0), (0, half, half), (1, 0, half), (1, half, 0)):
        part = tables[:, :, row, to : to + half]
        nisa.tensor_tensor(part, part, gamma[:, :, come : come + half], nl.multiply)
