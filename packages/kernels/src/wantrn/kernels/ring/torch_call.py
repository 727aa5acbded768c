"""The guarded ring on tensors as `wantrn.kernels.ops.ring_attention` has them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nkisim import World
from nkisim.settings import target_of
from wantrn.kernels.backend import Simulation
from wantrn.kernels.ring.capability import refusal
from wantrn.kernels.ring.guard import Path, RankInput, guarded_attention
from wantrn.kernels.ring.options import RingOptions, real_tokens


@dataclass(frozen=True)
class Call:
    """All of a call that is not a tensor; see `ops.ring_attention`."""

    ranks: int
    total: int
    scale: float
    prefetch: int
    centre: bool
    lse: bool
    simulation: Simulation

    def options(self, length: int) -> list[RingOptions]:
        """Those of each rank, for shards of `length` tokens."""
        valid = real_tokens(self.total, length, self.ranks)
        common = RingOptions(
            ranks=self.ranks,
            groups=(tuple(range(self.ranks)),),
            scale=self.scale,
            common=min(valid),
            prefetch=self.prefetch,
            centre=self.centre,
            lse=self.lse,
        )
        return [replace(common, valid=count) for count in valid]


def refusal_of(q: Tensor, call: Call) -> str | None:
    """Why the kernels do not run this, or None.

    Args:
        q: `[B, S, N, D]`, as K and V.
    """
    shape, dtype = tuple(q.shape), str(q.dtype).removeprefix("torch.")
    target, lnc = target_of(call.simulation.target), call.simulation.lnc
    for options in call.options(q.shape[1]):
        reason = refusal((shape,) * 3, (dtype,) * 3, options, target, lnc)
        if reason is not None:
            return reason
    return None


def simulated(
    gathered: list[list[Tensor]], position: int, call: Call
) -> tuple[Tensor, Tensor, Tensor, tuple[Path, ...]]:
    """The results of the rank at `position`, from a simulation of the whole ring.

    Every process of a ring simulates all of it, on all of its tensors, which cost a process little
    beside the simulation.

    Args:
        gathered: Q, K and V of each rank.

    Returns:
        out, lse (empty where not asked for), gaps fp32 `[N]`, and each head's path.
    """
    q, k, v = gathered
    options = call.options(q[0].shape[1])
    ranks = [RankInput(*tensors) for tensors in zip(q, k, v, options, strict=True)]
    world = World(call.ranks, call.simulation.lnc, call.simulation.target)
    found = guarded_attention(world.run, ranks)
    lse = found.lse[position] if call.lse else torch.empty(0)
    return found.out[position], lse, found.gaps().float(), found.paths
