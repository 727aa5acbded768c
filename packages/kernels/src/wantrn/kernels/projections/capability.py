"""What `o_proj` and `mlp` can run, and why they cannot run the rest."""

from __future__ import annotations

from nkisim.enums import NcVersion
from wantrn.kernels.projections.options import MlpSizes, OProjSizes
from wantrn.kernels.projections.planner import best_mlp_plan, best_o_proj_plan


def o_proj_refusal(
    sizes: OProjSizes, lnc: int = 1, target: NcVersion = NcVersion.gen4
) -> str | None:
    """Why `o_proj` does not run this, or None; arguments as of `best_o_proj_plan`."""
    try:
        best_o_proj_plan(sizes, lnc, target)
    except ValueError as problem:
        return str(problem)
    return None


def mlp_refusal(sizes: MlpSizes, lnc: int = 1, target: NcVersion = NcVersion.gen4) -> str | None:
    """Why `mlp` does not run this, or None; arguments as of `best_mlp_plan`."""
    try:
        best_mlp_plan(sizes, lnc, target)
    except ValueError as problem:
        return str(problem)
    return None
