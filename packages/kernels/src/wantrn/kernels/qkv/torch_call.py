"""`qkv_cte` on tensors as the operators of `wantrn.kernels.ops` have them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from wantrn.kernels.machine import Machine
from wantrn.kernels.qkv.capability import refusal
from wantrn.kernels.qkv.kernel import qkv_cte
from wantrn.kernels.qkv.options import Options, Sizes, sizes_of
from wantrn.kernels.qkv.planner import best_plan
from wantrn.kernels.row_mx import ChannelWeight, kernel_weight


@dataclass(frozen=True)
class Call:
    """The arguments of one call.

    Attributes:
        x: `[B, S, H]` bf16, or packed rows `[B, S, H + 4]`
        weight, bias: `[I, H]` bf16, or in FP8 for packed rows; and `[I]` or None
        options: of the kernel
        q_gamma, k_gamma: fp32 `[N * D]` and `[N_kv * D]`, or None
        cos, sin: fp32 `[S, D / 2]`, or None
        group: the process group of the ranks among which heads are spread, "" for none
    """

    x: Tensor
    weight: Tensor | ChannelWeight
    bias: Tensor | None
    options: Options
    q_gamma: Tensor | None
    k_gamma: Tensor | None
    cos: Tensor | None
    sin: Tensor | None
    group: str = ""

    def sizes(self) -> Sizes:
        """What the plan depends on."""
        norm, rope = self.q_gamma is not None, self.cos is not None
        return sizes_of(self.x, self.options, self.bias, norm, rope)

    def refusal(self, machine: Machine) -> str | None:
        """Why the kernel does not run this, or None."""
        if isinstance(self.weight, Tensor) and self.x.dtype != torch.bfloat16:
            return f"x is {self.x.dtype}; the kernel takes bf16"
        return refusal(self.sizes(), self.options, machine.target, machine.lnc)

    def computed(self, machine: Machine) -> Tensor:
        """`[B, S, I]`, or `[heads, B, S, D]` with `options.heads_first`."""
        plan = best_plan(self.sizes(), machine.lnc, machine.target)
        rows = [
            None if row is None else row.reshape(1, -1).contiguous()
            for row in (self.bias, self.q_gamma, self.k_gamma)
        ]
        tables = [None if t is None else t.contiguous() for t in (self.cos, self.sin)]
        weight, scales = kernel_weight(self.weight)
        given = (self.x.contiguous(), weight, self.options, plan, scales, *rows, *tables)
        out: Tensor = machine.run(qkv_cte, *given, group=self.group)
        return out
