"""`adaln_modulate` on tensors as `wantrn.kernels.ops.adaln` has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from wantrn.kernels.adaln.capability import refusal
from wantrn.kernels.adaln.kernel import adaln_modulate
from wantrn.kernels.adaln.options import Options, sizes_of
from wantrn.kernels.machine import Machine


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

    def refusal(self, machine: Machine) -> str | None:
        """Why the kernel does not run this, or None."""
        tensors = (self.x, self.residual, self.gate, self.mul, self.add)
        sizes = sizes_of(*tensors, self.x.dtype.itemsize)
        dtype = str(self.x.dtype).removeprefix("torch.")
        return refusal(sizes, self.options, dtype, machine.target)

    def computed(self, machine: Machine) -> Any:
        """What the kernel returns; see `adaln_modulate`."""
        tensors = (self.mul, self.add, self.residual, self.gate)
        given = [None if t is None else t.contiguous() for t in tensors]
        return machine.run(adaln_modulate, self.x.contiguous(), self.options, *given)
