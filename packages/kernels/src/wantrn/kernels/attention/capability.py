"""What `attention_cte` can run, and why it cannot run the rest."""

from __future__ import annotations

from nkisim import machine
from nkisim.enums import NcVersion
from wantrn.kernels.attention.items import items_of, plan_of, shards_of
from wantrn.kernels.attention.options import Options, Sizes
from wantrn.kernels.attention.rules import broken_by_options, broken_by_sizes

DTYPES = ("float32", "bfloat16", "float16")


def refusal(
    sizes: Sizes, options: Options, dtype: str, target: NcVersion = NcVersion.gen4, lnc: int = 1
) -> str | None:
    """Why `attention_cte` does not run this, or None.

    Args:
        dtype: of Q, K and V, one of `DTYPES`.
        target: the generation of the chip.
        lnc: cores that share the call.
    """
    found = broken_by_options(options) or broken_by_sizes(sizes, options)
    if found is not None:
        return found
    if dtype not in DTYPES:
        return f"dtype is {dtype}; it must be one of {', '.join(DTYPES)}"
    if target < NcVersion.gen3:
        return f"the target is {target.name}; it must be gen3 or later"
    for core in range(lnc):
        items = items_of(shards_of(sizes, options, core, lnc), sizes, options)
        if items and plan_of(sizes, items, machine.of(target).sbuf_bytes_per_partition) is None:
            return f"the buffers for {sizes} do not fit into SBUF of {target.name}"
    return None
