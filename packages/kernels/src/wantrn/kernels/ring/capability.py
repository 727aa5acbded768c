"""What the ring kernels can run, with the reason why not."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.ring.options import RingOptions
from wantrn.kernels.ring.plan import PARTITIONS, RingShape, plan_ring

# usable SBUF bytes per partition, by generation (see `nl.tile_size.sbuf_fmax_bytes`)
_SBUF_BYTES = {3: 212984, 4: 245752}


def ring_problem(
    shapes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
    dtypes: tuple[str, str, str],
    options: RingOptions,
    generation: int = 4,
    cores: int = 2,
) -> str | None:
    """Why a ring kernel cannot run something; None if it can.

    Args:
        shapes: of q, k and v, each `[B, S, N, D]`.
        dtypes: their names, as in "bfloat16".
        options: of the ring.
        generation: 3 for Trainium2, 4 for Trainium3.
        cores: physical cores of a rank, 1 or 2.
    """
    if generation not in _SBUF_BYTES:
        return f"generation is {generation}; the ring kernels need 3 (Trainium2) or 4 (Trainium3)"
    if cores not in (1, 2):
        return f"cores is {cores}; a rank has 1 or 2"
    reason = shapes_problem(shapes[0], shapes[1], shapes[2], options)
    if reason is None and (len(set(dtypes)) != 1 or dtypes[0] not in ("bfloat16", "float32")):
        reason = f"q, k and v are {', '.join(dtypes)}; all must be bfloat16, or all float32"
    if reason is not None:
        return reason
    item = 4 if dtypes[0] == "float32" else 2
    batch, queries, heads, head_dim = shapes[0]
    shape = RingShape(batch * heads, head_dim, queries, shapes[1][1], item, options.ranks, cores)
    plan = plan_ring(shape, _SBUF_BYTES[generation], generation >= 4)
    if plan.sbuf_bytes() > _SBUF_BYTES[generation]:
        return (
            f"q is {list(shapes[0])} and k {list(shapes[1])}; their plan needs {plan.sbuf_bytes()} "
            f"bytes of SBUF per partition, and there are {_SBUF_BYTES[generation]}"
        )
    return None


def shapes_problem(q: Any, k: Any, v: Any, options: RingOptions) -> str | None:
    """As `ring_problem`, of shapes and options only.

    Args:
        q, k, v: shapes.
        options: of the ring.
    """
    if len(q) != 4 or min(q) < 1 or q[3] > PARTITIONS:
        return f"q is {list(q)}; it must be [B, S, N, D] of at least 1 each, with D at most 128"
    if len(k) != 4 or k[0] != q[0] or k[1] < 1 or k[2:] != q[2:]:
        return f"k is {list(k)}; it must be [{q[0]}, S_k, {q[2]}, {q[3]}], S_k at least 1"
    if tuple(v) != tuple(k):
        return f"v is {list(v)}; it must be {list(k)}, as k"
    return _options_problem(q[1], k[1], options)


def _options_problem(queries: int, keys: int, options: RingOptions) -> str | None:
    if options.ranks < 1:
        return f"ranks is {options.ranks}; a ring has at least 1 rank"
    if options.prefetch < 1:
        return f"prefetch is {options.prefetch}; it must be at least 1"
    for group in options.groups:
        if len(group) != options.ranks:
            return f"groups has {list(group)}; each must have the {options.ranks} ranks of a ring"
    if options.scale < 0.0:
        return f"scale is {options.scale}; it must be positive, or 0 for D ** -0.5"
    if not -1 <= options.valid <= keys:
        return f"valid is {options.valid}; of {keys} keys it must be 0 to {keys}, or -1 for all"
    valid = keys if options.valid < 0 else options.valid
    if options.valid == 0 and options.ranks == 1:
        return "valid is 0 on the only rank; there must be at least 1 key"
    if not -1 <= options.common <= valid:
        return f"common is {options.common}; it must be 0 to {valid}, what is real here, or -1"
    if options.ranks > 1 and options.valid >= 0 and options.common < 0:
        return f"valid is {options.valid}, but common is not given; it is the least of all ranks"
    if options.valid >= 0 and queries != keys:
        return f"valid is {options.valid}, but q has {queries} tokens and k {keys}: not the same"
    if options.lse and options.centre:
        return "lse is wanted of centred keys; it would be that of other scores"
    return None
