"""What the ring kernels can run, and why they cannot run the rest."""

from __future__ import annotations

from nkisim import machine
from nkisim.enums import NcVersion
from wantrn.kernels.ring.options import RingOptions
from wantrn.kernels.ring.plan import RingShape, plan_ring
from wantrn.kernels.ring.rules import broken_by_call

DTYPES = ("bfloat16", "float32")


def refusal(
    shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    dtypes: tuple[str, str, str],
    options: RingOptions,
    target: NcVersion = NcVersion.gen4,
    lnc: int = 2,
) -> str | None:
    """Why a ring kernel does not run this, or None.

    Args:
        shapes: of q, k and v, each `[B, S, N, D]`.
        dtypes: theirs, all the same of `DTYPES`.
        target: the generation of the chip.
        lnc: cores of a rank, 1 or 2.
    """
    if target < NcVersion.gen3:
        return f"the target is {target.name}; it must be gen3 or later"
    if lnc not in (1, 2):
        return f"lnc is {lnc}; a rank has 1 or 2 cores"
    found = broken_by_call(*shapes, options)
    if found is not None:
        return found
    if len(set(dtypes)) != 1 or dtypes[0] not in DTYPES:
        return f"q, k and v are {', '.join(dtypes)}; all must be bfloat16, or all float32"
    item = 4 if dtypes[0] == "float32" else 2
    batch, queries, heads, head_dim = shapes[0]
    shape = RingShape(batch * heads, head_dim, queries, shapes[1][1], item, options.ranks, lnc)
    limit = machine.of(target).sbuf_bytes_per_partition
    needed = plan_ring(shape, limit, target >= NcVersion.gen4).sbuf_bytes()
    if needed > limit:
        return (
            f"q is {list(shapes[0])} and k {list(shapes[1])}; their plan needs {needed} bytes of "
            f"SBUF per partition, and there are {limit}"
        )
    return None
