"""The ranks that a rank works with along one axis, and what they do together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from wantrn.parallel.pending import Pending
from wantrn.parallel.ranks import Partition

_SENT = frozenset(
    [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32]
)


@dataclass(frozen=True)
class Group:
    """This rank's group along an axis.

    All ranks of a group call the same methods in the same order, with tensors of the same shape and
    dtype. A group of one rank gives tensors back as they are. Results are contiguous and have the
    order of positions, whatever the order of the backend's ranks.

    Attributes:
        ranks: the members, by position; global ranks.
        position: this rank's.
        partition: the groups of all ranks along this axis, for kernels that take replica groups.
        process_group: the members' own; None for a group of one.
    """

    ranks: tuple[int, ...]
    position: int
    partition: Partition
    process_group: dist.ProcessGroup | None = None

    def __post_init__(self) -> None:
        if self.ranks not in self.partition:
            raise ValueError(f"ranks must be a group of {self.partition}, got {self.ranks}")
        if not 0 <= self.position < len(self.ranks):
            raise ValueError(f"position must be 0 to {len(self.ranks) - 1}, got {self.position}")
        if self.process_group is None:
            if self.size > 1:
                raise ValueError(f"process_group must be given for the ranks {self.ranks}")
        elif sorted(self._members()) != sorted(self.ranks):
            raise ValueError(
                f"process_group must be of the ranks {self.ranks}, got {self._members()}"
            )

    @classmethod
    def single(cls, rank: int = 0) -> Group:
        """A group of one, in a world of groups of one up to ``rank``."""
        return cls((rank,), 0, tuple((other,) for other in range(rank + 1)))

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all ranks' ``x``, in ``x`` itself if it is contiguous."""
        if self.size == 1:
            return x
        x = x.contiguous()
        dist.all_reduce(x, group=self.process_group)
        return x

    def start_all_reduce(self, x: Tensor) -> Pending:
        """Begin to sum all ranks' ``x``, and go on. What becomes of ``x`` meanwhile does not
        matter, unless the group is of one rank; nor what else the ranks do together."""
        if self.size == 1:
            return Pending(x)
        result = x.clone(memory_format=torch.contiguous_format)
        return Pending(result, dist.all_reduce(result, group=self.process_group, async_op=True))

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """All ranks' ``x``, joined along ``dim``."""
        return x if self.size == 1 else torch.cat(self.gather(x), dim)

    def gather(self, x: Tensor) -> list[Tensor]:
        """All ranks' ``x``, by position."""
        if self.size == 1:
            return [x]
        whole = x.new_empty((self.size, *x.shape))
        sent = _flat(x.contiguous())
        dist.all_gather_single(_flat(whole), sent, group=self.process_group)
        return [whole[place] for place in self._places()]

    def reduce_scatter(self, x: Tensor, dim: int) -> Tensor:
        """This rank's part of the sum of all ranks' ``x``, which is cut evenly along ``dim``.

        Raises:
            ValueError: the group does not divide ``dim``.
        """
        if self.size == 1:
            return x
        parts = self._cut(x, dim)
        whole = torch.stack([parts[position] for position in self._positions()])
        mine = torch.empty_like(whole[0])
        dist.reduce_scatter_single(mine.view(-1), whole.view(-1), group=self.process_group)
        return mine

    def all_to_all(self, x: Tensor, cut: int, join: int) -> Tensor:
        """Part ``p`` of ``x`` along ``cut`` goes to position ``p``; what arrives, by position, is
        joined along ``join``.

        Raises:
            ValueError: the group does not divide ``cut``.
        """
        if self.size == 1:
            return x
        parts = self._cut(x, cut)
        sent = torch.stack([parts[position] for position in self._positions()])
        received = torch.empty_like(sent)
        dist.all_to_all_single(_flat(received), _flat(sent), group=self.process_group)
        return torch.cat([received[place] for place in self._places()], join)

    def _cut(self, x: Tensor, dim: int) -> tuple[Tensor, ...]:
        if x.shape[dim] % self.size:
            raise ValueError(
                f"axis {dim} of {list(x.shape)} cannot be cut evenly for {self.size} ranks"
            )
        return x.chunk(self.size, dim)

    def _members(self) -> list[int]:
        """Global ranks in the order of the backend."""
        assert self.process_group is not None
        return dist.get_process_group_ranks(self.process_group)

    def _places(self) -> list[int]:
        """The backend's rank of each position."""
        members = self._members()
        return [members.index(rank) for rank in self.ranks]

    def _positions(self) -> list[int]:
        """The position of each of the backend's ranks."""
        return [self.ranks.index(rank) for rank in self._members()]


def _flat(x: Tensor) -> Tensor:
    """The elements of ``x``, in its memory; as bytes where gloo does not know the dtype."""
    flat = x.view(-1)
    return flat if x.dtype in _SENT else flat.view(torch.uint8)
