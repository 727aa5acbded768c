"""The guarded ring on tensors as `wantrn.kernels.ops.ring_attention` has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from wantrn.kernels.machine import Machine
from wantrn.kernels.replicas import least
from wantrn.kernels.ring.capability import refusal
from wantrn.kernels.ring.guard import Path, RankInput, guarded_attention
from wantrn.kernels.ring.options import RingOptions, real_tokens

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Call:
    """All of a call that is not a tensor; see `ops.ring_attention`.

    Attributes:
        groups: the rings
        position: this rank's, in its ring
        group: the process group of its ring, "" for a ring of one
    """

    groups: Groups
    position: int
    total: int
    scale: float
    prefetch: int
    centre: bool
    lse: bool
    group: str

    def options(self, length: int) -> list[RingOptions]:
        """Those of each rank of the ring, for shards of `length` tokens."""
        ranks = len(self.groups[0])
        valid = real_tokens(self.total, length, ranks)
        common = RingOptions(
            ranks=ranks,
            groups=self.groups,
            scale=self.scale,
            common=min(valid),
            prefetch=self.prefetch,
            centre=self.centre,
            lse=self.lse,
        )
        return [replace(common, valid=count) for count in valid]

    def refusal(self, q: Tensor, machine: Machine) -> str | None:
        """Why the kernels do not run this on any of the ranks, or None.

        Args:
            q: `[B, S, N, D]`, as K and V.
        """
        shape, dtype = tuple(q.shape), str(q.dtype).removeprefix("torch.")
        for options in self.options(q.shape[1]):
            reason = refusal((shape,) * 3, (dtype,) * 3, options, machine.target, machine.lnc)
            if reason is not None:
                return reason
        return None

    def computed(
        self, q: Tensor, k: Tensor, v: Tensor, machine: Machine
    ) -> tuple[Tensor, Tensor, Tensor, tuple[Path, ...]]:
        """This rank's out, lse (empty where not asked for), gaps fp32 `[N]`, each head's path."""

        def launch(kernel: Any, inputs: Sequence[tuple[Any, ...]]) -> list[Any]:
            return [machine.run(kernel, *given, group=self.group) for given in inputs]

        def minimum(mine: Tensor) -> Tensor:
            if not self.group:
                return mine
            # A backend's minimum may lose a NaN; sums of exponentials are not negative. They come
            # from fp32, which all devices have.
            known = torch.nan_to_num(mine, nan=-1.0, posinf=torch.inf).float().to(q.device)
            return least(known, self.group).cpu().double()

        options = self.options(q.shape[1])[self.position]
        own = RankInput(q.contiguous(), k.contiguous(), v.contiguous(), options)
        found = guarded_attention(launch, [own], minimum)
        lse = found.lse[0] if self.lse else torch.empty(0, device=q.device)
        return found.out[0], lse, found.gaps().float(), found.paths
