"""How many ways a run is split along each axis."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Axis(enum.Enum):
    """An axis along which ranks differ, from the fastest to the slowest."""

    TP = "tp"
    """Tensor parallelism: ranks share heads and the width of the feed-forward layers."""
    ULYSSES = "ulysses"
    """Ranks share tokens; for attention they swap tokens for heads."""
    RING = "ring"
    """Ranks share tokens; for attention, keys and values go round."""
    CFG = "cfg"
    """Ranks share the branches of classifier-free guidance."""
    DP = "dp"
    """Ranks work on different videos."""


@dataclass(frozen=True)
class Degrees:
    """The number of ranks along each axis; together a world of their product.

    ``sequence_sharding`` splits the tokens between attention and feed-forward layers over the ranks
    of ``tp`` too (Megatron-LM's sequence parallelism): norms and residuals are then not repeated.

    Raises:
        ValueError: a degree below 1, more than two branches of guidance, or ``sequence_sharding``
            with nothing to shard over.
    """

    tp: int = 1
    ring: int = 1
    ulysses: int = 1
    cfg: int = 1
    dp: int = 1
    sequence_sharding: bool = False

    def __post_init__(self) -> None:
        for axis in Axis:
            if self.of(axis) < 1:
                raise ValueError(f"{axis.value} must be at least 1, got {self.of(axis)}")
        if self.cfg > 2:
            raise ValueError(f"cfg must be 1 or 2, as guidance has two branches, got {self.cfg}")
        if self.sequence_sharding and self.tp == 1:
            raise ValueError("sequence_sharding needs tp of at least 2, got 1")

    def of(self, axis: Axis) -> int:
        """The degree of one axis."""
        degree: int = getattr(self, axis.value)
        return degree

    @property
    def cp(self) -> int:
        """Ranks that share the tokens of a sequence: ring times Ulysses."""
        return self.ring * self.ulysses

    @property
    def token_sharers(self) -> int:
        """Ranks of ``tp`` that share the tokens of a position in ``cp`` between layers."""
        return self.tp if self.sequence_sharding else 1

    @property
    def world(self) -> int:
        """All ranks."""
        return self.tp * self.cp * self.cfg * self.dp

    def check_heads(self, heads: int) -> None:
        """Raise ``ValueError`` unless attention with so many heads can be split this way."""
        if heads % self.tp:
            raise ValueError(f"tp must divide the {heads} heads, got {self.tp}")
        if heads // self.tp % self.ulysses:
            raise ValueError(
                f"ulysses must divide the {heads // self.tp} heads that a rank has with "
                f"tp={self.tp}, got {self.ulysses}"
            )
