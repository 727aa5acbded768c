"""Calls of `qkv_cte` on one rank or several, with what they should give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nkisim import World
from nkisim.settings import Rules, Settings
from wantrn.kernels.qkv import (
    RMS_ALL_HEADS,
    Options,
    Plan,
    Sizes,
    best_plan,
    cached_reference,
    projected_reference,
    qkv_cte,
    qkv_reference,
    squared_sums_reference,
)
from wantrn.kernels.qkv.options import sizes_of
from wantrn.kernels.qkv.wan_calls import Call, arguments_of_call, sizes_of_call
from wantrn.kernels.row_mx import ChannelWeight, quantize_rows

# nothing doubtful either: unwritten bytes, buffers that overlap, cores that touch the same bytes
STRICT = Rules.all("error")

# `(of Q, of K)`, which is None where there is no K
Pair = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class Case:
    """The arguments of every rank; those that ranks share are the same tensors."""

    options: Options
    x: Tensor
    weights: list[Tensor]
    weight_scales: list[Tensor | None]
    biases: list[Tensor | None]
    gammas: list[Pair | None]
    angles: tuple[Tensor, Tensor] | None
    betas: list[Pair | None]
    # of each rank, as they are before the call; none, or one for each
    caches: list[tuple[Tensor, Tensor]]
    slots: Tensor | None

    def sizes(self) -> Sizes:
        return sizes_of(
            self.x,
            self.options,
            self.biases[0],
            self.gammas[0] is not None,
            self.angles is not None,
            self.betas[0] is not None,
            bool(self.caches),
            self.slots is not None,
        )

    def arguments(self, plan: Plan) -> list[tuple[Any, ...]]:
        cos, sin = self.angles or (None, None)
        return [
            (
                self.x,
                self.weights[rank],
                self.options,
                plan,
                self.weight_scales[rank],
                self.biases[rank],
                *(self.gammas[rank] or (None, None)),
                cos,
                sin,
                *(self.betas[rank] or (None, None)),
                *self._caches_of(rank),
                self.slots,
            )
            for rank in range(len(self.weights))
        ]

    def _caches_of(self, rank: int) -> tuple[Tensor | None, Tensor | None]:
        """Copies, for the kernel writes to them."""
        if not self.caches:
            return None, None
        k, v = self.caches[rank]
        return k.clone(), v.clone()

    def run(self, lnc: int = 1, target: str = "gen4", plan: Plan | None = None) -> list[Tensor]:
        """What the kernel returns, of all ranks one after the other."""
        world = World(len(self.weights), lnc, target, rules=STRICT)
        chosen = plan or best_plan(self.sizes(), lnc, Settings().changed(target=target).target)
        found: list[Tensor] = []
        for results in world.run(qkv_cte, self.arguments(chosen)):
            found += results if isinstance(results, tuple) else [results]
        return found

    def expected(self) -> list[Tensor]:
        """What the reference gives, which rounds where the kernel does."""
        projected = [
            projected_reference(self.x, weight, scales, bias)
            for weight, scales, bias in zip(
                self.weights, self.weight_scales, self.biases, strict=True
            )
        ]
        rows = qkv_reference(projected, self.options, self.gammas, self.angles, self.betas)
        found: list[Tensor] = []
        for rank, row in enumerate(rows):
            found += (
                cached_reference(row, self.options, *self.caches[rank], self.slots)
                if self.caches
                else (row,)
            )
            if self.options.squared_sums:
                found.append(squared_sums_reference(projected[rank], self.options))
        return found


def random_case(
    shape: tuple[int, int, int],
    options: Options,
    *,
    packed: bool = False,
    norm: bool = True,
    rope: bool = True,
    bias: torch.dtype | None = torch.bfloat16,
    ranks: int = 1,
    beta: bool = False,
    caches: str = "",
    seed: int = 0,
) -> Case:
    """Random numbers of sizes as a checkpoint has them; `shape` is `[B, S, H]`.

    Args:
        caches: `dense`: for each sequence a few rows more than it has tokens; `slots`: blocks of
            as many rows, and each token goes to any of them; or none.
    """
    g = torch.Generator().manual_seed(seed)
    batch, tokens, hidden = shape
    q, kv = options.heads * options.head_dim, options.kv_heads * options.head_dim
    x = torch.randn(batch, tokens, hidden, generator=g)
    weights: list[Tensor] = []
    scales: list[Tensor | None] = []
    for _ in range(ranks):
        weight = torch.randn(q + 2 * kv, hidden, generator=g) * hidden**-0.5
        if packed:
            quantized = ChannelWeight.of(weight)
            weights.append(quantized.codes)
            scales.append(quantized.scales)
        else:
            weights.append(weight.T.contiguous().bfloat16())
            scales.append(None)
    biases: list[Tensor | None] = [
        None if bias is None else torch.randn(1, q + 2 * kv, generator=g).to(bias)
        for _ in range(ranks)
    ]
    d = options.head_dim
    widths = (q, kv) if options.norm == RMS_ALL_HEADS else (d, d if kv else 0)
    gammas: list[Pair | None] = [None] * ranks
    if norm:
        gammas = [_pair(widths, g, 1.0) for _ in range(ranks)]
    angles = None
    if rope:
        angle = 6 * torch.rand(tokens, options.head_dim // 2, generator=g)
        angles = (angle.cos(), angle.sin())
    betas: list[Pair | None] = [None] * ranks
    if beta:
        betas = [_pair(widths, g, 0.0) for _ in range(ranks)]
    held: list[tuple[Tensor, Tensor]] = []
    slots = None
    if caches:
        # rows of the cache of a sequence, or of a block
        rows = (max(options.cache_starts, default=0) or 3) + tokens
        for _ in range(ranks):
            k, v = torch.randn(2, batch, rows, kv, generator=g).bfloat16()
            held.append((k, v))
        if caches == "slots":
            order = torch.randperm(batch * rows, generator=g)[: batch * tokens]
            slots = order.view(batch, tokens).to(torch.int32)
    return Case(
        options,
        quantize_rows(x) if packed else x.bfloat16(),
        weights,
        scales,
        biases,
        gammas,
        angles,
        betas,
        held,
        slots,
    )


def _pair(widths: tuple[int, int], g: torch.Generator, mean: float) -> Pair:
    q = torch.randn(1, widths[0], generator=g) + mean
    return q, torch.randn(1, widths[1], generator=g) + mean if widths[1] else None


def specs(
    tokens: int, hidden: int, options: Options, packed: bool, rope: bool
) -> tuple[Sizes, Callable[[Plan], tuple[Any, ...]]]:
    """Sizes, and the arguments for a plan, without values."""
    call = Call("", tokens, options, True, rope)
    return sizes_of_call(call, hidden, packed), partial(arguments_of_call, call)


def assert_within_a_rounding(found: list[Tensor], expected: list[Tensor]) -> None:
    """Each value is that of the reference, up to one unit of bf16 of the values that went into it.

    A rotation adds two values, each of which may have been rounded to the neighbour: sums of fp32
    in another order. So the unit is that of the largest value of a head.
    """
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        if a.dtype == torch.float32:
            # sums of squares, in another order
            assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)
            continue
        size = b.double().abs().amax(-1, keepdim=True).clamp(min=1e-30)
        error = (a.double() - b.double()).abs() / size
        assert float(error.max()) <= 2.0**-7, float(error.max())
        # and nearly all are the same to the bit
        assert float((a != b).double().mean()) < 0.02
