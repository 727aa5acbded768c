"""All groups of a rank, made once and handed down."""

from __future__ import annotations

from dataclasses import dataclass

from wantrn.parallel.degrees import Degrees
from wantrn.parallel.group import Group


@dataclass(frozen=True)
class Groups:
    """The groups of one rank.

    Attributes:
        degrees: of the run.
        rank: this rank, in the world.
        tp, ulysses, ring, cfg, dp: along each axis.
        cp: the ranks that share this rank's sequence, in the order of its tokens.
        world: all ranks.
    """

    degrees: Degrees
    rank: int
    tp: Group
    ulysses: Group
    ring: Group
    cfg: Group
    dp: Group
    cp: Group
    world: Group

    @classmethod
    def single(cls) -> Groups:
        """A world of one rank, without ``torch.distributed``."""
        one = Group.single()
        return cls(Degrees(), 0, one, one, one, one, one, one, one)
