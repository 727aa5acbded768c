"""What `attention_cte` is asked to do, and the sizes of one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wantrn.kernels.nki import nl

# up to this many keys, a sliding window is masked by bounds for each row
SMALL_WINDOW = 128


@dataclass(frozen=True)
class Options(nl.NKIObject):
    """How attention is computed. Sizes: `S_q` queries, `S_k` keys, `D` head dimension.

    Attributes:
        scale: multiplies the scores; positive. It must be 1.0 wherever bounds that are known only
            at run time take part, and with a window: the instruction that applies bounds has no
            multiplier. Scale Q instead.
        causal: query `i` reads keys up to its own position only
        window: query `i` reads keys `i - window + 1` to `i`; 0 for all. Needs `causal`.
        tp_q, tp_k: Q and K come as `[B, S, D]` and are transposed by the kernel; otherwise as
            `[B, D, S]`
        tp_out: the output is `[B, D, S_q]`; otherwise `[B, S_q, D]`
        cache_softmax: also returns what a backward pass needs: the negated row maximum and the
            reciprocal of the row sum, `[B, S_q]` in fp32
        cp: which queries of a longer sequence these are (context parallelism): "" for all;
            "contiguous": a run from `cp_offset` on; "strided": every `cp_degree`-th from
            `cp_offset` on. Needs `causal`.
        cp_degree: ranks among which the queries are dealt out, with "strided"
    """

    scale: float = 1.0
    causal: bool = False
    window: int = 0
    tp_q: bool = True
    tp_k: bool = True
    tp_out: bool = False
    cache_softmax: bool = False
    cp: str = ""
    cp_degree: int = 1


@dataclass(frozen=True)
class Sizes(nl.NKIObject):
    """The sizes of one call.

    Attributes:
        batch: sequences, each with one head: batch times heads
        kv_batch: those of K and V, which divides `batch`; consecutive ones of Q share one
        s_q, s_k, d: queries, keys, head dimension
        s_prior: keys of the prefix, 0 for none
        packed: whether each query has bounds of its own
        sink: whether each sequence has a sink
        itemsize: bytes of an element of Q, K and V
    """

    batch: int
    kv_batch: int
    s_q: int
    s_k: int
    d: int
    s_prior: int = 0
    packed: bool = False
    sink: bool = False
    itemsize: int = 2


def sizes_of(
    q: Any, k: Any, options: Options, sink: Any, bounds: Any, prior: Any, itemsize: int
) -> Sizes:
    """The sizes of a call's tensors, arrays or specifications."""
    batch, s_q, d = q.shape if options.tp_q else (q.shape[0], q.shape[2], q.shape[1])
    s_k = k.shape[1] if options.tp_k else k.shape[2]
    s_prior = 0
    if prior != None:
        s_prior = prior[0].shape[1] if options.tp_k else prior[0].shape[2]
    return Sizes(
        batch=batch,
        kv_batch=k.shape[0],
        s_q=s_q,
        s_k=s_k,
        d=d,
        s_prior=s_prior,
        packed=bounds != None,
        sink=sink != None,
        itemsize=itemsize,
    )
