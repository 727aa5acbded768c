"""`attention_cte` on tensors as `wantrn.kernels.ops.attention` has them: `[B, S, N, D]`."""

from __future__ import annotations

from torch import Tensor

import nkisim
from nkisim.settings import target_of
from wantrn.kernels.attention.capability import refusal
from wantrn.kernels.attention.kernel import attention_cte
from wantrn.kernels.attention.options import Options, Sizes
from wantrn.kernels.backend import Simulation


def refusal_of(q: Tensor, k: Tensor, scale: float, simulation: Simulation) -> str | None:
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
    target = target_of(simulation.target)
    dtype = str(q.dtype).removeprefix("torch.")
    return refusal(sizes, Options(scale=scale), dtype, target, simulation.lnc)


def simulated(q: Tensor, k: Tensor, v: Tensor, scale: float, simulation: Simulation) -> Tensor:
    """By the kernel in the simulator, heads folded into the batch; `[B, S_q, N, D]` contiguous."""
    batch, s_q, heads, d = q.shape
    folded = [x.transpose(1, 2).flatten(0, 1).contiguous() for x in (q, k, v)]
    run = nkisim.simulate(attention_cte, target=simulation.target)[simulation.lnc]
    out: Tensor = run(*folded, Options(scale=scale))
    return out.view(batch, heads, s_q, d).transpose(1, 2).contiguous()
