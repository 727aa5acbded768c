"""`Rank`: what every stage of a ring kernel knows of its launch."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nisa, nl
from wantrn.kernels.ring.division import Pass, divide
from wantrn.kernels.ring.options import RingOptions
from wantrn.kernels.ring.plan import RingPlan, RingShape, plan_ring
from wantrn.kernels.sbuf import PARTITIONS


class Rank(nl.NKIObject):
    """One core of one rank.

    Attributes:
        plan, options: of the kernel.
        passes: of this core.
        core: 0 or 1.
        dtype: of Q, K and V.
        scale: multiplies the scores.
        valid: real tokens among the keys of this rank.
        common: tokens that are real on every rank.
        ones: SBUF `[128, 128]` of `dtype`.
    """

    def __init__(
        self, plan: RingPlan, options: RingOptions, passes: list[Pass], core: int, dtype: Any
    ) -> None:
        keys, head_dim = plan.shape.keys, plan.shape.head_dim
        self.plan = plan
        self.options = options
        self.passes = passes
        self.core = core
        self.dtype = dtype
        self.scale = options.scale if options.scale > 0 else head_dim**-0.5
        self.valid = keys if options.valid < 0 else options.valid
        self.common = self.valid if options.common < 0 else options.common
        self.ones = nl.ndarray((PARTITIONS, PARTITIONS), dtype, buffer=nl.sbuf)
        nisa.memset(self.ones, 1.0)

    def queries_valid(self) -> int:
        """Real tokens among the queries: those of the keys, where these are the same tokens."""
        return self.plan.shape.queries if self.options.valid < 0 else self.valid

    def barrier(self, tensor: Any) -> None:
        """Both cores see what either wrote to a shared tensor."""
        if self.plan.shape.cores == 2:
            nisa.core_barrier(tensor, (0, 1))


def launched(q: Any, k: Any, options: RingOptions) -> Rank:
    """The rank and core that this program runs on.

    Args:
        q, k: `[B, S, N, D]`.
        options: of the ring.
    """
    batch, queries, heads, head_dim = q.shape
    cores = nl.num_programs()
    core = nl.program_id(0) if cores > 1 else 0
    shape = RingShape(
        batch * heads, head_dim, queries, k.shape[1], itemsize(q.dtype), options.ranks, cores
    )
    wide = nisa.get_nc_version() >= 4
    plan = plan_ring(shape, nl.tile_size.sbuf_fmax_bytes, wide)
    return Rank(plan, options, divide(plan, core), core, q.dtype)


def itemsize(dtype: Any) -> int:
    """Bytes of an element, fp32 or a 16-bit type."""
    return 4 if dtype == nl.float32 else 2
