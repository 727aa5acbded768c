"""`qkv_cte`: fused Q|K|V projection, norm over all heads and rotation, in NKI."""

from wantrn.kernels.qkv.capability import refusal
from wantrn.kernels.qkv.kernel import qkv_cte
from wantrn.kernels.qkv.options import Options, Sizes
from wantrn.kernels.qkv.plan import Plan
from wantrn.kernels.qkv.planner import best_plan, candidates, described
from wantrn.kernels.qkv.reference import projected_reference, qkv_reference

__all__ = [
    "Options",
    "Plan",
    "Sizes",
    "best_plan",
    "candidates",
    "described",
    "projected_reference",
    "qkv_cte",
    "qkv_reference",
    "refusal",
]
