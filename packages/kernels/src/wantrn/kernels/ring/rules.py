"""The rules that shapes and options of a ring must keep; each function says which one is broken."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.ring.options import RingOptions
from wantrn.kernels.sbuf import PARTITIONS


def broken_by_call(q: Any, k: Any, v: Any, options: RingOptions) -> str | None:
    """A rule about a call; `q`, `k` and `v` are shapes."""
    if len(q) != 4 or min(q) < 1 or q[3] > PARTITIONS:
        return f"q is {list(q)}; it must be [B, S, N, D] of at least 1 each, with D at most 128"
    if len(k) != 4 or k[0] != q[0] or k[1] < 1 or k[2:] != q[2:]:
        return f"k is {list(k)}; it must be [{q[0]}, S_k, {q[2]}, {q[3]}], S_k at least 1"
    if tuple(v) != tuple(k):
        return f"v is {list(v)}; it must be {list(k)}, as k"
    return _broken_by_options(q[1], k[1], options)


def _broken_by_options(queries: int, keys: int, options: RingOptions) -> str | None:
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
