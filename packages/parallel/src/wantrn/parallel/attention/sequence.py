"""Attention over a sequence whose tokens are shared by ranks."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from wantrn.parallel.attention.all_gather import all_gather_attention
from wantrn.parallel.attention.local import Attend, torch_attend
from wantrn.parallel.attention.ring import ring_attention
from wantrn.parallel.attention.strategy import Choice, Strategy, choose
from wantrn.parallel.attention.ulysses import Inner, ulysses_attention
from wantrn.parallel.group import Group
from wantrn.parallel.groups import Groups

_log = logging.getLogger(__name__)


_BY_TORCH = {Strategy.RING: ring_attention, Strategy.ALL_GATHER: all_gather_attention}


@dataclass(frozen=True)
class SequenceAttention:
    """Softmax attention without a mask, scores times ``D ** -0.5``, of all tokens to all.

    The ranks that share a sequence have parts of the same length, in the order of ``Groups.cp``,
    with padding at the end of the sequence only (see ``TokenShards``). Ranks of ``ulysses`` swap
    tokens for heads; those of ``ring`` then have K and V in common. For inference: there is no
    backward. On one rank the result is that of its local attention, to the bit.

    Attributes:
        ring, ulysses: the rank's groups.
        choice: how the ranks of ``ring`` exchange K and V, and why.
        inner: attention among the ranks of ``ring``, each with one of equal parts of the tokens.
    """

    ring: Group
    ulysses: Group
    choice: Choice
    inner: Inner

    @classmethod
    def of(
        cls,
        groups: Groups,
        *,
        strategy: Strategy | None = None,
        attend: Attend | None = None,
        ring_kernel: Inner | None = None,
    ) -> SequenceAttention:
        """For the rank that has ``groups``; what is chosen is logged once, with the reason.

        Args:
            strategy: how the ranks of a ring exchange K and V; the best that can be done if None.
            attend: attention to the keys that a rank has; ``torch_attend`` if None.
            ring_kernel: does it all among the ranks of ``ring``, be it one: ``(q, k, v, total)`` to
                a result like ``q``; tokens from ``total`` on are padding.

        Raises:
            ValueError: ``strategy`` cannot be done, or ``attend`` is given to a kernel.
        """
        if ring_kernel is not None and attend is not None:
            raise ValueError("attend must be None with ring_kernel, which takes its place")
        choice = choose(groups.ring, ring_kernel is not None, strategy)
        _log_once(
            f"sequence attention: ring of {groups.ring.size} by {choice.strategy.value}, as "
            f"{choice.reason}; ulysses of {groups.ulysses.size}"
        )
        inner = ring_kernel or functools.partial(
            _BY_TORCH[choice.strategy], group=groups.ring, attend=attend or torch_attend
        )
        return cls(groups.ring, groups.ulysses, choice, inner)

    @torch.no_grad()
    def __call__(self, q: Tensor, k: Tensor, v: Tensor, total: int) -> Tensor:
        """Attention of this rank's tokens to all tokens.

        Args:
            q: ``[B, S, N, D]``, this rank's part of the sequence, fp32 or bf16.
            k, v: as ``q``. **Their contents may be lost**, as the ring receives into their memory;
                for it they are best contiguous, since it has to copy them otherwise.
            total: tokens of the whole sequence that are not padding.

        Returns:
            ``[B, S, N, D]`` of ``q.dtype``: sums are fp32, rounded once. What it has for padding is
            finite and means nothing.

        Raises:
            ValueError: tensors that do not fit each other; a ``total`` of no token, or of more than
                the ranks have; heads that ``ulysses`` does not divide.
        """
        self._check(q, k, v, total)
        return ulysses_attention(q, k, v, total, self.ulysses, self.inner)

    def _check(self, q: Tensor, k: Tensor, v: Tensor, total: int) -> None:
        if q.dim() != 4 or 0 in q.shape:
            raise ValueError(f"q must be [B, S, N, D] of at least one element, got {list(q.shape)}")
        if q.dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"q must be fp32 or bf16, got {q.dtype}")
        for name, x in (("k", k), ("v", v)):
            if x.shape != q.shape or x.dtype != q.dtype:
                raise ValueError(
                    f"{name} must be {list(q.shape)} {q.dtype}, got {list(x.shape)} {x.dtype}"
                )
        parts = self.ring.size * self.ulysses.size
        if not 1 <= total <= parts * q.shape[1]:
            raise ValueError(
                f"total must be 1 to {parts * q.shape[1]}, the tokens of {parts} parts of "
                f"{q.shape[1]}, got {total}"
            )


@functools.lru_cache(maxsize=64)
def _log_once(text: str) -> None:
    _log.info(text)
