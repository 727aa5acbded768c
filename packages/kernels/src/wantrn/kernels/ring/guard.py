"""Attention over a ring that is exact whatever the scores: by a bound where that is safe.

`ring_attention` divides sums of `exp(s_ij - c_i)` with `c_i` at least as large as every `s_ij`.
How far above it is, the gap, decides whether something is left to divide. The kernel measures it:
with a gap of `g`, a sum is at least `e^-g`, and so the logarithm of the least sum of a head,
negated, is at most its largest gap, and at least that less the logarithm of the number of keys.

**The threshold.** Exponentials below 2^-126, the smallest normal number of bf16 and of fp32, are
lost or coarse. Of S keys, they are less than `S 2^-126` together. Where the sum is `S 2^-100` or
more, that is less than 2^-26 of it, a quarter of the unit roundoff of fp32. Products with values
are lost below 2^-126 too, which is less than 2^-26 of a value of 1 in the result. So with

    least sum >= S 2^-100        a gap of 58 nats for S = 75,600

the bound costs nothing that fp32 could show; a head below it, or with a sum that is no number, is
computed again with running maxima.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from wantrn.kernels.ring.kernels import ring_attention, ring_attention_online
from wantrn.kernels.ring.options import RingOptions

Path = Literal["const_max", "online"]
# Runs a kernel on the ranks that this process has: their arguments in, their results out. That of
# the simulator is `World(ranks, lnc, target).run`.
Launch = Callable[[Any, list[tuple[Any, ...]]], Sequence[Any]]
# The element-wise minimum of a tensor over all processes of the ring.
Minimum = Callable[[Tensor], Tensor]

SAFE_EXPONENT = -100


@dataclass(frozen=True)
class RankInput:
    """What one rank attends with.

    Attributes:
        q, k, v: `[B, S, N, D]`, of all ranks alike.
        options: of its ring; only `valid` may differ between ranks.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    options: RingOptions


@dataclass(frozen=True)
class Guarded:
    """The result of `guarded_attention`.

    Attributes:
        out: of each rank of this process, `[B, S, N, D]` of the dtype of q.
        lse: fp32 `[B, N, S]` of each; empty unless `options.lse`.
        least: fp64 `[N]`, the least sum of exponentials of any query of any rank; NaN where a head
            was run with maxima from the start.
        paths: which kernel each head's result is from.
    """

    out: list[Tensor]
    lse: list[Tensor]
    least: Tensor
    paths: tuple[Path, ...]

    def gaps(self) -> Tensor:
        """fp64 `[N]` nats: what was measured of the distance from the scores to their bound."""
        return -torch.log(self.least)


def safe_least(keys: int) -> float:
    """The least sum of exponentials with which a bound is safe; see the module.

    Args:
        keys: of all ranks, padding included.
    """
    return math.ldexp(float(keys), SAFE_EXPONENT)


def guarded_attention(
    launch: Launch,
    ranks: Sequence[RankInput],
    minimum: Minimum | None = None,
    online: Sequence[int] = (),
) -> Guarded:
    """Attention over a ring: by a bound, and with running maxima where that is unsafe for a head.

    Every process of a ring must call this, with the same `online`: all ranks take the same path.

    Args:
        launch: runs a kernel on the ranks of this process.
        ranks: those ranks; one where each is a process of its own.
        minimum: over the processes of the ring; None where this one has all ranks.
        online: heads that are known to be unsafe, to run with maxima from the start.

    Raises:
        ValueError: there is no rank, or no such head.
    """
    if not ranks:
        raise ValueError("ranks is empty; a process has at least one rank of the ring")
    _, length, heads, _ = ranks[0].k.shape
    known = sorted(set(online))
    if known and not 0 <= known[0] <= known[-1] < heads:
        raise ValueError(f"online is {list(online)}; q has the heads 0 to {heads - 1}")
    bounded = [head for head in range(heads) if head not in known]
    least = torch.full((heads,), math.nan, dtype=torch.float64)
    found: list[tuple[list[int], list[tuple[Tensor, ...]]]] = []
    unsafe = known
    if bounded:
        results = [_tensors(result) for result in launch(ring_attention, _inputs(ranks, bounded))]
        measured = _least([result[1] for result in results], len(bounded))
        least[bounded] = measured if minimum is None else minimum(measured)
        threshold = safe_least(length * ranks[0].options.ranks)
        # a NaN is not safe either
        safe = [head for head in bounded if bool(least[head] >= threshold)]
        unsafe = [head for head in range(heads) if head not in safe]
        found.append((bounded, [(result[0], *result[2:]) for result in results]))
    if unsafe:
        again = launch(ring_attention_online, _inputs(ranks, unsafe))
        found.append((unsafe, [_tensors(result) for result in again]))
    paths: tuple[Path, ...] = tuple(
        "online" if head in unsafe else "const_max" for head in range(heads)
    )
    out, lse = _merged(ranks, found)
    return Guarded(out, lse, least, paths)


def _inputs(ranks: Sequence[RankInput], heads: list[int]) -> list[tuple[Any, ...]]:
    if len(heads) == ranks[0].q.shape[2]:
        return [(rank.q, rank.k, rank.v, rank.options) for rank in ranks]
    return [
        (*(x[:, :, heads].contiguous() for x in (rank.q, rank.k, rank.v)), rank.options)
        for rank in ranks
    ]


def _tensors(result: Any) -> tuple[Tensor, ...]:
    parts = result if isinstance(result, (tuple, list)) else (result,)
    return tuple(torch.as_tensor(part) for part in parts)


def _least(measured: list[Tensor], heads: int) -> Tensor:
    """`[cores, B * N]` of each rank to fp64 `[N]`."""
    rows = [least.cpu().double().reshape(-1, heads).amin(0) for least in measured]
    return torch.stack(rows).amin(0)


def _merged(
    ranks: Sequence[RankInput], found: list[tuple[list[int], list[tuple[Tensor, ...]]]]
) -> tuple[list[Tensor], list[Tensor]]:
    """Heads to their places; what comes later replaces what came before."""
    outs, lses = [], []
    for number, rank in enumerate(ranks):
        batch, length, heads, _ = rank.q.shape
        out = torch.empty_like(rank.q, memory_format=torch.contiguous_format)
        lse = torch.empty((batch, heads, length), dtype=torch.float32, device=rank.q.device)
        for members, results in found:
            out[:, :, members] = results[number][0]
            if rank.options.lse:
                lse[:, members] = results[number][1]
        outs.append(out)
        if rank.options.lse:
            lses.append(lse)
    return outs, lses
