"""The kernels: attention with a bound, the ring of it, and the ring with a running maximum."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import jit, nl
from wantrn.kernels.ring.const_max import Streams, const_max_pass
from wantrn.kernels.ring.exchange import Shards, reduced
from wantrn.kernels.ring.finish import Results, store_least
from wantrn.kernels.ring.keys import mean_keys, prepare_keys, prepare_values
from wantrn.kernels.ring.online import OnlineStreams, online_pass
from wantrn.kernels.ring.options import RingOptions
from wantrn.kernels.ring.queries import bound_queries, prepare_queries
from wantrn.kernels.ring.rank import Rank, launched
from wantrn.kernels.ring.rules import broken_by_call


@jit
def ring_attention(q: Any, k: Any, v: Any, options: RingOptions) -> Any:
    """`softmax(scale * Q K^T) V` over the keys of all ranks, by a bound instead of the maximum.

    The bound of query i is `c_i = scale * |q_i| * max_j |k_j|`; no score is above it, and a softmax
    is the same whatever is taken from all scores of a query. It is exact as long as the sums of
    `exp(s_ij - c_i)` do not vanish, which is what the least of them tell: see `guard`.

    Args:
        q, k, v: HBM `[B, S, N, D]` of this rank, bf16 or fp32, D at most 128; S is the same on all
            ranks, see `RingOptions.valid`.
        options: of the ring.

    Returns:
        out: `[B, S, N, D]` of the dtype of q.
        least: fp32 `[cores, B * N]`, the least sum of exponentials of this rank's queries by head.
        lse: fp32 `[B, N, S]`, `log(sum_j exp(s_ij))`, with `options.lse`.

    Raises:
        ValueError: a rule of `wantrn.kernels.ring.rules` is broken; `refusal` tells beforehand.
    """
    return _const_max(q, k, v, options)


@jit
def attention_const_max(q: Any, k: Any, v: Any, scale: float = 0.0, lse: bool = False) -> Any:
    """As `ring_attention` on one rank; keys and queries may be of different lengths.

    Args:
        q: HBM `[B, S_q, N, D]`, bf16 or fp32, D at most 128.
        k, v: HBM `[B, S_k, N, D]`.
        scale: multiplies the scores; 0 for `D ** -0.5`.
        lse: whether it is returned.

    Returns:
        As `ring_attention`.

    Raises:
        ValueError: a rule of `wantrn.kernels.ring.rules` is broken; `refusal` tells beforehand.
    """
    return _const_max(q, k, v, RingOptions(scale=scale, lse=lse))


@jit
def ring_attention_online(q: Any, k: Any, v: Any, options: RingOptions) -> Any:
    """As `ring_attention`, with the running maximum of each query: exact whatever the scores are.

    Args:
        q, k, v: as in `ring_attention`.
        options: of the ring.

    Returns:
        out: `[B, S, N, D]` of the dtype of q.
        lse: fp32 `[B, N, S]`, with `options.lse`.

    Raises:
        ValueError: a rule of `wantrn.kernels.ring.rules` is broken; `refusal` tells beforehand.
    """
    rank = _checked(q, k, v, options)
    shards = [Shards(rank, work) for work in rank.passes]
    means = mean_keys(rank, k) if options.centre else None
    prepare_keys(rank, k, shards, means, False)
    queries = prepare_queries(rank, q, False)
    _prepare_values(rank, v, shards)
    results = Results(rank, q)
    streams = OnlineStreams(rank)
    for work in rank.passes:
        online_pass(rank, work, streams, (shards[work.number], queries, results))
    return results.returned(False)


def _const_max(q: Any, k: Any, v: Any, options: RingOptions) -> Any:
    rank = _checked(q, k, v, options)
    shards = [Shards(rank, work) for work in rank.passes]
    means = mean_keys(rank, k) if options.centre else None
    largest = prepare_keys(rank, k, shards, means, True)
    # before the queries, so that they hide its latency
    largest = reduced(rank, largest, nl.maximum, "ring_key_norms_all")
    queries = prepare_queries(rank, q, True)
    _prepare_values(rank, v, shards)
    results = Results(rank, q)
    streams = Streams(rank)
    bound_queries(rank, queries, largest)
    for work in rank.passes:
        const_max_pass(rank, work, streams, (shards[work.number], queries, results))
    store_least(rank, results)
    return results.returned(True)


def _checked(q: Any, k: Any, v: Any, options: RingOptions) -> Rank:
    reason = broken_by_call(q.shape, k.shape, v.shape, options)
    if reason != None:  # the parser front end has no `is`
        raise ValueError(reason)
    return launched(q, k, options)


def _prepare_values(rank: Rank, v: Any, shards: list[Shards]) -> None:
    """Values of all passes: later ones would find no room beside the sums. Then each core has
    prepared its part of the shards that are sent first."""
    for work in rank.passes:
        prepare_values(rank, v, work, shards[work.number])
        rank.barrier(shards[work.number].keys[0])
        rank.barrier(shards[work.number].values[0])
