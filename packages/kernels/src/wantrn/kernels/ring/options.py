"""`RingOptions`: all of a ring that is not a tensor."""

from __future__ import annotations

from dataclasses import dataclass

from wantrn.kernels.nki import nl


@dataclass(frozen=True)
class RingOptions(nl.NKIObject):
    """How the keys go round, and which of them are real.

    Attributes:
        ranks: W, the ranks of the ring; 1 runs without any collective.
        groups: the ranks of each ring in the order of the ring, as `ReplicaGroup` takes them; empty
            for one ring of all ranks.
        scale: multiplies the scores; 0 stands for `D ** -0.5`.
        valid: real tokens of this rank, the first of its shard; -1 for all. The others take no part
            as keys; as queries, their results mean nothing.
        common: a number of tokens that are real on every rank, the same on every rank: the least
            `valid` of all. Must be given where `valid` is; -1 for all.
        prefetch: K/V shards that are under way while one is used; at least 1, and clamped to
            W - 1.
        centre: whether the mean of all keys is taken from each of them. The result is the same but
            for the rounding of the differences to the dtype of K; the bound is tighter where keys
            have much in common.
        lse: whether the logarithm of the sum of exponentials is returned too.
    """

    ranks: int = 1
    groups: tuple[tuple[int, ...], ...] = ()
    scale: float = 0.0
    valid: int = -1
    common: int = -1
    prefetch: int = 2
    centre: bool = False
    lse: bool = False

    def depth(self) -> int:
        """Permutes under way at a time; 0 where there is nobody to send to."""
        return min(self.prefetch, self.ranks - 1)

    def buffers(self) -> int:
        """K/V shards in HBM: the one in use, and those under way."""
        return self.depth() + 1


def shares(total: int, ranks: int) -> tuple[int, tuple[int, ...]]:
    """A sequence cut into equal shards.

    Args:
        total: tokens of the sequence, at least 1.
        ranks: W, at least 1.

    Returns:
        The tokens of a shard, `ceil(total / ranks)`, and how many of them are real on each rank.

    Raises:
        ValueError: `total` or `ranks` is below 1.
    """
    if total < 1:
        raise ValueError(f"total is {total}; a sequence has at least 1 token")
    if ranks < 1:
        raise ValueError(f"ranks is {ranks}; a ring has at least 1 rank")
    length = -(-total // ranks)
    return length, real_tokens(total, length, ranks)


def real_tokens(total: int, length: int, ranks: int) -> tuple[int, ...]:
    """How many tokens of each rank are real, where shards of `length` hold `total` of them."""
    return tuple(min(max(total - rank * length, 0), length) for rank in range(ranks))
