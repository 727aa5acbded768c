"""Which tokens of a sequence a rank has, and what goes with them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from wantrn.kernels.ops import Rotary
from wantrn.model.parallelism import Parallelism
from wantrn.parallel.tokens import TokenShards


@dataclass(frozen=True)
class LocalTokens:
    """A rank's tokens of one sequence.

    Ranks of a context-parallel group have runs of tokens, all of one length; the sequence is padded
    at its end for that. With sequence sharding each of these runs is shared evenly by the ranks of
    a tensor-parallel group, outside the layers that need the whole run.

    Attributes:
        shards: the tokens outside those layers.
        sharers: the ranks whose tokens, one after the other, are a whole run.
    """

    shards: TokenShards
    sharers: int = 1

    @classmethod
    def of(cls, total: int, parallel: Parallelism) -> LocalTokens:
        """This rank's of ``total`` tokens.

        Raises:
            ValueError: ``parallel.strict``, and the ranks of the context-parallel group cannot
                share them evenly.
        """
        cp, sharers = parallel.groups.cp, parallel.groups.degrees.token_sharers
        run = TokenShards.of(total, cp, strict=parallel.strict)
        if sharers == 1:
            return cls(run)
        position = cp.position * sharers + parallel.groups.tp.position
        return cls(TokenShards(total, cp.size * sharers, position), sharers)

    @property
    def total(self) -> int:
        """Tokens of the sequence."""
        return self.shards.total

    def take(self, x: Tensor) -> Tensor:
        """This rank's tokens of ``[B, S, ...]``; padding is zero."""
        return self.shards.take(x, 1)

    def rotary(self, tables: Rotary) -> Rotary:
        """The rows of a whole run, of the tables of all tokens."""
        return Rotary(self._run(tables.cos), self._run(tables.sin))

    def rows(self, values: Tensor) -> Tensor:
        """What belongs to this rank's tokens, of ``values`` ``[B, G, ...]`` that belong to G runs
        of equally many of all tokens: ``[B, G', ...]``, again for runs of equally many.

        A rank's part begins and ends anywhere in a run of the values, so the values are repeated
        for pieces of the largest length that fits both. Padding takes the last one.
        """
        groups, length = values.shape[1], self.shards.length
        if groups == 1 or self.shards.parts == 1:
            return values
        start = self.shards.position * length
        tokens = self.total // groups
        piece = math.gcd(tokens, length, start)
        first = start + piece * torch.arange(length // piece, device=values.device)
        return values[:, (first // tokens).clamp(max=groups - 1)]

    def join(self, x: Tensor, parallel: Parallelism) -> Tensor:
        """``[B, S, ...]`` of all tokens on every rank, from each one's."""
        if parallel.sequence_sharding:
            x = parallel.groups.tp.all_gather(x, 1)
        return parallel.groups.cp.all_gather(x, 1)[:, : self.total]

    def _run(self, table: Tensor) -> Tensor:
        length = self.shards.length * self.sharers
        start = self.shards.position // self.sharers * length
        return F.pad(table, (0, 0, 0, self.shards.padded - self.total))[start : start + length]
