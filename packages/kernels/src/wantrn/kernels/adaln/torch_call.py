"""`adaln_modulate` on tensors as `wantrn.kernels.ops.adaln` has them, by the simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

import nkisim
from nkisim.settings import target_of
from wantrn.kernels.adaln.capability import refusal
from wantrn.kernels.adaln.kernel import adaln_modulate
from wantrn.kernels.adaln.options import Options, sizes_of
from wantrn.kernels.backend import Simulation


@dataclass(frozen=True)
class Call:
    """The arguments of one call.

    Attributes:
        x: `[B, S, H]`, fp32 or bf16
        options: what is computed
        mul, add, gate: fp32 `[1 or B, G, H]`, or None
        residual: as `x`, or None
    """

    x: Tensor
    options: Options
    mul: Tensor | None = None
    add: Tensor | None = None
    residual: Tensor | None = None
    gate: Tensor | None = None

    def refusal(self, simulation: Simulation) -> str | None:
        """Why the kernel does not run this, or None."""
        tensors = (self.x, self.residual, self.gate, self.mul, self.add)
        sizes = sizes_of(*tensors, self.x.dtype.itemsize)
        target = target_of(simulation.target)
        return refusal(sizes, self.options, str(self.x.dtype).removeprefix("torch."), target)

    def simulated(self, simulation: Simulation) -> Any:
        """What the kernel returns in the simulator; see `adaln_modulate`."""
        run = nkisim.simulate(adaln_modulate, target=simulation.target)[simulation.lnc]
        tensors = (self.mul, self.add, self.residual, self.gate)
        given = [None if t is None else t.contiguous() for t in tensors]
        return run(self.x.contiguous(), self.options, *given)
