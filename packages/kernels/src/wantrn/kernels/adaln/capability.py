"""What `adaln_modulate` and `row_quantize` can run, and why they cannot run the rest."""

from __future__ import annotations

from nkisim import machine
from nkisim.enums import NcVersion
from wantrn.kernels.adaln.options import Options, Sizes
from wantrn.kernels.adaln.plan import best_plan
from wantrn.kernels.adaln.rules import (
    DTYPES,
    broken_by_options,
    broken_by_sizes,
    broken_by_target,
)


def refusal(
    sizes: Sizes, options: Options, dtype: str, target: NcVersion = NcVersion.gen4
) -> str | None:
    """Why `adaln_modulate` does not run this, or None; for any number of cores.

    `row_quantize` is what it does with the norm "none" and a limit.

    Args:
        dtype: of the rows, one of `DTYPES`.
        target: the generation of the chip.
    """
    found: str | None = broken_by_sizes(sizes) or broken_by_options(options, sizes)
    if found is not None:
        return found
    if dtype not in DTYPES:
        return f"dtype is {dtype}; it must be one of {', '.join(DTYPES)}"
    if sizes.itemsize != (4 if dtype == "float32" else 2):
        return f"itemsize is {sizes.itemsize}; it does not go with {dtype}"
    if target < NcVersion.gen3:
        return f"the target is {target.name}; it must be gen3 or later"
    gen4 = target >= NcVersion.gen4
    found = broken_by_target(options, gen4)
    if found is not None:
        return found
    if best_plan(sizes, options, machine.of(target).sbuf_bytes_per_partition, gen4) is None:
        return f"the buffers for {sizes} do not fit into SBUF of {target.name}"
    return None
