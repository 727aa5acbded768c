"""`o_proj` and `mlp`: the projections behind attention and of the feed-forward layer, in NKI."""

from wantrn.kernels.projections.capability import mlp_refusal, o_proj_refusal
from wantrn.kernels.projections.mlp import mlp
from wantrn.kernels.projections.o_proj import o_proj
from wantrn.kernels.projections.options import MlpSizes, OProjSizes
from wantrn.kernels.projections.plan import Plan
from wantrn.kernels.projections.planner import best_mlp_plan, best_o_proj_plan
from wantrn.kernels.projections.reference import mlp_reference, o_proj_reference, quantized_mx

__all__ = [
    "MlpSizes",
    "OProjSizes",
    "Plan",
    "best_mlp_plan",
    "best_o_proj_plan",
    "mlp",
    "mlp_reference",
    "mlp_refusal",
    "o_proj",
    "o_proj_reference",
    "o_proj_refusal",
    "quantized_mx",
]
