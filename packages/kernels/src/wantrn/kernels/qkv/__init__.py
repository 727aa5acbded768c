"""`qkv_cte`: fused Q|K|V projection, norm over all heads or of each, and rotation, in NKI."""

from wantrn.kernels.qkv.capability import refusal
from wantrn.kernels.qkv.kernel import qkv_cte
from wantrn.kernels.qkv.options import (
    LAYER_PER_HEAD,
    RMS_ALL_HEADS,
    RMS_PER_HEAD,
    Options,
    Sizes,
)
from wantrn.kernels.qkv.outputs_reference import cached_reference, squared_sums_reference
from wantrn.kernels.qkv.plan import Plan
from wantrn.kernels.qkv.planner import best_plan, candidates, described
from wantrn.kernels.qkv.reference import projected_reference, qkv_reference

__all__ = [
    "LAYER_PER_HEAD",
    "RMS_ALL_HEADS",
    "RMS_PER_HEAD",
    "Options",
    "Plan",
    "Sizes",
    "best_plan",
    "cached_reference",
    "candidates",
    "described",
    "projected_reference",
    "qkv_cte",
    "qkv_reference",
    "refusal",
    "squared_sums_reference",
]
