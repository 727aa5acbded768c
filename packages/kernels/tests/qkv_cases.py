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
    Options,
    Plan,
    Sizes,
    best_plan,
    projected_reference,
    qkv_cte,
    qkv_reference,
)
from wantrn.kernels.qkv.options import sizes_of
from wantrn.kernels.qkv.wan_calls import Call, arguments_of_call, sizes_of_call
from wantrn.kernels.row_mx import ChannelWeight, quantize_rows

# nothing doubtful either: unwritten bytes, buffers that overlap, cores that touch the same bytes
STRICT = Rules.all("error")


@dataclass(frozen=True)
class Case:
    """The arguments of every rank; those that ranks share are the same tensors."""

    options: Options
    x: Tensor
    weights: list[Tensor]
    weight_scales: list[Tensor | None]
    biases: list[Tensor | None]
    gammas: list[tuple[Tensor, Tensor | None] | None]
    angles: tuple[Tensor, Tensor] | None

    def sizes(self) -> Sizes:
        return sizes_of(
            self.x,
            self.options,
            self.biases[0],
            self.gammas[0] is not None,
            self.angles is not None,
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
            )
            for rank in range(len(self.weights))
        ]

    def run(self, lnc: int = 1, target: str = "gen4", plan: Plan | None = None) -> list[Tensor]:
        """What the kernel returns on each rank."""
        world = World(len(self.weights), lnc, target, rules=STRICT)
        chosen = plan or best_plan(self.sizes(), lnc, Settings().changed(target=target).target)
        found: list[Tensor] = world.run(qkv_cte, self.arguments(chosen))
        return found

    def expected(self) -> list[Tensor]:
        """What the reference gives, which rounds where the kernel does."""
        projected = [
            projected_reference(self.x, weight, scales, bias)
            for weight, scales, bias in zip(
                self.weights, self.weight_scales, self.biases, strict=True
            )
        ]
        return qkv_reference(projected, self.options, self.gammas, self.angles)


def random_case(
    shape: tuple[int, int, int],
    options: Options,
    *,
    packed: bool = False,
    norm: bool = True,
    rope: bool = True,
    bias: torch.dtype | None = torch.bfloat16,
    ranks: int = 1,
    seed: int = 0,
) -> Case:
    """Random numbers of sizes as a checkpoint has them; `shape` is `[B, S, H]`."""
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
    gammas: list[tuple[Tensor, Tensor | None] | None] = [None] * ranks
    if norm:
        widths = (options.head_dim,) * 2 if options.norm_per_head else (q, kv)
        gammas = [
            (
                torch.randn(1, widths[0], generator=g) + 1,
                torch.randn(1, widths[1], generator=g) + 1 if kv else None,
            )
            for _ in range(ranks)
        ]
    angles = None
    if rope:
        angle = 6 * torch.rand(tokens, options.head_dim // 2, generator=g)
        angles = (angle.cos(), angle.sin())
    return Case(
        options,
        quantize_rows(x) if packed else x.bfloat16(),
        weights,
        scales,
        biases,
        gammas,
        angles,
    )


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
        assert a.dtype == torch.bfloat16 and a.shape == b.shape
        size = b.double().abs().amax(-1, keepdim=True).clamp(min=1e-30)
        error = (a.double() - b.double()).abs() / size
        assert float(error.max()) <= 2.0**-7, float(error.max())
        # and nearly all are the same to the bit
        assert float((a != b).double().mean()) < 0.02
