"""What `qkv_cte` can run, and why it cannot run the rest."""

from __future__ import annotations

from nkisim.enums import NcVersion
from wantrn.kernels.qkv.options import Options, Sizes
from wantrn.kernels.qkv.planner import best_plan
from wantrn.kernels.qkv.rules import broken_by_options
from wantrn.kernels.qkv.slabs import TILE


def refusal(
    sizes: Sizes, options: Options, target: NcVersion = NcVersion.gen4, lnc: int = 1
) -> str | None:
    """Why `qkv_cte` does not run this, or None.

    Args:
        target: the generation of the chip.
        lnc: cores that share the tokens.
    """
    found: str | None = broken_by_options(options)
    if found is not None:
        return found
    if sizes.hidden < TILE or sizes.hidden % TILE:
        return f"H is {sizes.hidden}; it must be a multiple of {TILE}"
    if sizes.rope and sizes.head_dim % 2:
        return f"head_dim is {sizes.head_dim}; with a rotation it must be even"
    needed = NcVersion.gen4 if sizes.packed else NcVersion.gen3
    if target < needed:
        what = "packed rows" if sizes.packed else "bf16"
        return f"the target is {target.name}; {what} need {needed.name} or later"
    try:
        best_plan(sizes, lnc, target)
    except ValueError as problem:
        return str(problem)
    return None
