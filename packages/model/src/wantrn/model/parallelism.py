"""How a transformer is spread over ranks."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from wantrn.kernels.ops import HeadNorm
from wantrn.model.config import WanConfig
from wantrn.model.sharding import Shard
from wantrn.parallel import Groups
from wantrn.parallel.attention import Strategy


@dataclass(frozen=True)
class Parallelism:
    """One rank's share of the work.

    Attributes:
        groups: the ranks that this one works with.
        strategy: how the ranks of ``groups.ring`` attend to each other's tokens.
        strict: a sequence that the ranks cannot share evenly is refused, not padded.
        replicate_cross_attention: every rank of ``groups.tp`` computes cross-attention whole, which
            needs no collective: worth it where the text is short beside the video. With
            ``groups.degrees.sequence_sharding`` each does it for its own tokens only.
    """

    groups: Groups = field(default_factory=Groups.single)
    strategy: Strategy = Strategy.RING
    strict: bool = False
    replicate_cross_attention: bool = False

    @property
    def sequence_sharding(self) -> bool:
        """Whether the ranks of ``groups.tp`` share tokens where they do not share heads."""
        return self.groups.degrees.sequence_sharding

    @property
    def shard(self) -> Shard:
        """This rank's part of the parameters."""
        tp = self.groups.tp
        return Shard(tp.size, tp.position, self.replicate_cross_attention)

    def check(self, config: WanConfig) -> None:
        """Raise ``ValueError`` unless a transformer of these dimensions can be spread this way."""
        self.groups.degrees.check_heads(config.num_attention_heads)
        self.shard.check(config)

    def head_norm(self, q: Tensor, k: Tensor | None, eps: float) -> HeadNorm:
        """RMSNorm over the heads of all ranks of ``groups.tp``, with this rank's weights."""
        tp = self.groups.tp
        if tp.size == 1:
            return HeadNorm(q, k, eps)
        return HeadNorm(q, k, eps, tp.partition, tp.process_group)

    def enter(self, x: Tensor) -> Tensor:
        """What a layer that is cut by heads or channels reads: ``[B, S, ...]`` with the tokens of
        all ranks of ``groups.tp``."""
        return self.groups.tp.all_gather(x, 1) if self.sequence_sharding else x

    def leave(self, x: Tensor) -> Tensor:
        """The sum of what the ranks of ``groups.tp`` have computed of ``[B, S, H]``, for the tokens
        that this rank has outside such layers."""
        tp = self.groups.tp
        return tp.reduce_scatter(x, 1) if self.sequence_sharding else tp.all_reduce(x)

    @property
    def adds_bias(self) -> bool:
        """Whether this rank adds the bias of layers whose results are summed: one rank does."""
        return self.groups.tp.position == 0
