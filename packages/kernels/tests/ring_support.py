"""Rings in the simulator, and how far from float64 a result may be."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import nkisim
from nkisim.errors import NkiWarning
from wantrn.kernels.ring import RankInput, RingOptions, attention_reference, shares

# what a dtype rounds by, relative to what is rounded
ROUNDOFF = {torch.bfloat16: 2.0**-9, torch.float32: 2.0**-24}


def sample(shape: Sequence[int], dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tuple(shape), generator=generator).to(dtype)


def qkv(length: int, heads: int, dim: int, seed: int = 0, batch: int = 1) -> list[Tensor]:
    shape = (batch, length, heads, dim)
    return [sample(shape, torch.bfloat16, 3 * seed + i) for i in range(3)]


def rank_input(tensors: Sequence[Tensor], options: RingOptions) -> RankInput:
    q, k, v = (x.contiguous() for x in tensors)
    return RankInput(q, k, v, options)


def sharded(tensors: Sequence[Tensor], ranks: int, **options: Any) -> list[RankInput]:
    """Shards of a sequence on `ranks` ranks; what is beyond its end is NaN, which must not show."""
    length, valid = shares(tensors[0].shape[1], ranks)
    pieces = []
    for x in tensors:
        missing = length * ranks - x.shape[1]
        padding = torch.full((x.shape[0], missing, *x.shape[2:]), torch.nan, dtype=x.dtype)
        pieces.append(torch.split(torch.cat([x, padding], 1), length, 1))
    return [
        rank_input(
            [piece[rank] for piece in pieces],
            RingOptions(ranks=ranks, valid=valid[rank], common=min(valid), **options),
        )
        for rank in range(ranks)
    ]


def launched(
    kernel: Any, ranks: Sequence[RankInput], lnc: int = 1, target: str = "trn3"
) -> list[tuple[Tensor, ...]]:
    """What the kernel returns on each rank; any rule of the simulator that is broken fails."""
    inputs = [(rank.q, rank.k, rank.v, rank.options) for rank in ranks]
    with warnings.catch_warnings():
        warnings.simplefilter("error", NkiWarning)
        results = nkisim.World(len(ranks), lnc, target).run(kernel, inputs)
    return [result if isinstance(result, tuple) else (result,) for result in results]


def whole(shards: Sequence[Tensor], length: int, axis: int = 1) -> Tensor:
    return torch.cat(list(shards), axis).narrow(axis, 0, length)


def exact(inputs: Sequence[Tensor], scale: float) -> tuple[Tensor, Tensor]:
    """`attention_reference` of q, k and v in float64."""
    q, k, v = (x.double() for x in inputs)
    return attention_reference(q, k, v, scale)


def assert_as_good_as_torch(
    out: Tensor, expected: Tensor, inputs: Sequence[Tensor], scale: float | None = None
) -> None:
    """Root mean square and largest error are at most 1.5 times those of torch's own attention on
    the same inputs, or what roundings explain that are none of a mistake.

    In bf16 that is one of the result. In fp32 it is that of an exponent, which reaches from a score
    down to a bound c: by c unit roundoffs, and as many more for the bound itself.

    Args:
        out: of the kernel.
        expected: float64.
        inputs: q, k, v `[B, S, N, D]`.
    """
    q, k, v = (x.transpose(1, 2) for x in inputs)
    own = F.scaled_dot_product_attention(q, k, v, scale=scale)
    theirs = own.transpose(1, 2).double() - expected
    ours = out.double() - expected
    assert bool(torch.isfinite(ours).all())
    factor = inputs[0].shape[3] ** -0.5 if scale is None else scale
    bound = factor * float(inputs[0].norm(dim=-1).max() * inputs[1].norm(dim=-1).max())
    roundings = 1.0 if out.dtype == torch.bfloat16 else 4.0 + 2.0 * bound
    size = roundings * ROUNDOFF[out.dtype]
    mean = float(ours.square().mean().sqrt())
    most = float(ours.abs().max())
    values = float(inputs[2].double().square().mean().sqrt())
    assert mean <= 1.5 * float(theirs.square().mean().sqrt()) + size * values / 4
    assert most <= 1.5 * float(theirs.abs().max()) + size * float(expected.abs().max())
