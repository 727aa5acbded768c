"""How the tokens of a sequence are shared by ranks."""

from __future__ import annotations

from dataclasses import InitVar, dataclass

import torch.nn.functional as F
from torch import Tensor

from wantrn.parallel.group import Group


def real_tokens(total: int, length: int, position: int) -> int:
    """How many tokens of part ``position`` are real, where all parts have ``length`` and those
    beyond ``total`` are padding."""
    return min(max(total - position * length, 0), length)


@dataclass(frozen=True)
class TokenShards:
    """One of ``parts`` neighbouring parts of a sequence, all of the same length.

    Where ``parts`` does not divide ``total``, the sequence is padded at its end: the last part is
    padding in part, and some before it may be padding altogether.

    Attributes:
        total: real tokens of the sequence.
        parts: how many ranks share it.
        position: this part's, from 0.

    Raises:
        ValueError: a number out of its range; with ``strict``, a sequence that would need padding.
    """

    total: int
    parts: int
    position: int
    strict: InitVar[bool] = False

    def __post_init__(self, strict: bool) -> None:
        if self.total < 1:
            raise ValueError(f"total must be at least 1 token, got {self.total}")
        if self.parts < 1:
            raise ValueError(f"parts must be at least 1, got {self.parts}")
        if not 0 <= self.position < self.parts:
            raise ValueError(f"position must be 0 to {self.parts - 1}, got {self.position}")
        if strict and self.total % self.parts:
            raise ValueError(
                f"Sequence length {self.total} is not divisible by cp_size {self.parts}.\n"
                "Choose a resolution/frame count that yields a divisible patch sequence length."
            )

    @classmethod
    def of(cls, total: int, group: Group, *, strict: bool = False) -> TokenShards:
        """The part of this rank, among the ranks of ``group``."""
        return cls(total, group.size, group.position, strict)

    @property
    def length(self) -> int:
        """Tokens of every part, padding included."""
        return -(-self.total // self.parts)

    @property
    def padded(self) -> int:
        """Tokens of all parts, padding included."""
        return self.length * self.parts

    @property
    def start(self) -> int:
        """The first token of this part; ``total`` for a part of padding only."""
        return min(self.position * self.length, self.total)

    @property
    def real(self) -> int:
        """Tokens of this part that are not padding; 0 for a part of padding only."""
        return real_tokens(self.total, self.length, self.position)

    def take(self, x: Tensor, dim: int) -> Tensor:
        """This part of ``x``, which has all ``total`` tokens along ``dim``: ``length`` of them,
        padded with zeros. Without padding it is a view.

        Raises:
            ValueError: ``x`` has another number of tokens.
        """
        self._check("x", x, dim, self.total)
        part = x.narrow(dim, self.start, self.real)
        missing = self.length - self.real
        if not missing:
            return part
        axis = dim % x.dim()
        return F.pad(part, [0, 0] * (x.dim() - 1 - axis) + [0, missing])

    def join(self, x: Tensor, dim: int, group: Group) -> Tensor:
        """All ``total`` tokens along ``dim``, of the parts ``x`` of all ranks, without padding.

        Raises:
            ValueError: ``x`` is not such a part, or ``group`` is not of the ranks that have them.
        """
        if (group.size, group.position) != (self.parts, self.position):
            raise ValueError(
                f"group must have this rank at position {self.position} of {self.parts}, "
                f"got {group.position} of {group.size}"
            )
        self._check("x", x, dim, self.length)
        return group.all_gather(x, dim).narrow(dim, 0, self.total)

    def _check(self, name: str, x: Tensor, dim: int, tokens: int) -> None:
        if x.shape[dim] != tokens:
            raise ValueError(
                f"{name} must have {tokens} tokens along axis {dim}, got {list(x.shape)}"
            )
