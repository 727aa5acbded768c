"""`attention_cte` on tensors as `wantrn.kernels.ops.attention` has them: `[B, S, N, D]`."""

from __future__ import annotations

from torch import Tensor

from wantrn.kernels.attention.capability import refusal
from wantrn.kernels.attention.kernel import attention_cte
from wantrn.kernels.attention.options import Options, Sizes
from wantrn.kernels.machine import Machine


def refusal_of(q: Tensor, k: Tensor, scale: float, machine: Machine) -> str | None:
    """Why the kernel does not run this, or None.

    Args:
        q: `[B, S_q, N, D]`; k: `[B, S_k, N_kv, D]`.
    """
    batch, s_q, heads, d = q.shape
    sizes = Sizes(
        batch=batch * heads,
        kv_batch=batch * k.shape[2],
        s_q=s_q,
        s_k=k.shape[1],
        d=d,
        itemsize=q.dtype.itemsize,
    )
    dtype = str(q.dtype).removeprefix("torch.")
    return refusal(sizes, Options(scale=scale), dtype, machine.target, machine.lnc)


def computed(q: Tensor, k: Tensor, v: Tensor, scale: float, machine: Machine) -> Tensor:
    """By the kernel, heads folded into the batch; `[B, S_q, N, D]` contiguous."""
    batch, s_q, heads, d = q.shape
    folded = [x.transpose(1, 2).flatten(0, 1).contiguous() for x in (q, k, v)]
    out: Tensor = machine.run(attention_cte, *folded, Options(scale=scale))
    return out.view(batch, heads, s_q, d).transpose(1, 2).contiguous()
