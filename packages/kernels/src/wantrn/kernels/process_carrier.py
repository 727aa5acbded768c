"""Collectives of the simulator between processes: messages over `torch.distributed`."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

# of the simulator's messages alone: "nk"
_TAG = 0x6E6B


class ProcessCarrier:
    """An `nkisim.Carrier` of this process: rank numbers are those of `torch.distributed`.

    Attributes:
        rank, ranks: of the world.
        members: the ranks of the process group.
    """

    def __init__(self, group: str) -> None:
        """`group`: the name of a process group that sends CPU tensors, as gloo's do."""
        resolve: Callable[[Any], dist.ProcessGroup] = _distributed_c10d._resolve_process_group
        self._group = resolve(group)
        self.rank = dist.get_rank()
        self.ranks = dist.get_world_size()
        self.members: Sequence[int] = dist.get_process_group_ranks(self._group)

    def send(self, rank: int, message: bytes) -> Callable[[], None]:
        """As of `nkisim.Carrier`."""
        body = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        with _as_connection_error():
            works = [
                dist.isend(part, rank, self._group, _TAG)
                for part in (torch.tensor([body.numel()]), body)
            ]

        def wait() -> None:
            with _as_connection_error():
                for work in works:
                    assert work is not None
                    work.wait()

        return wait

    def receive(self, rank: int, seconds: float) -> bytes:
        """As of `nkisim.Carrier`."""
        limit = datetime.timedelta(seconds=seconds)
        size = torch.zeros(1, dtype=torch.int64)
        self._receive(size, rank, limit)
        body = torch.empty(int(size), dtype=torch.uint8)
        self._receive(body, rank, limit)
        return body.numpy().tobytes()

    def _receive(self, into: torch.Tensor, rank: int, limit: datetime.timedelta) -> None:
        with _as_connection_error():
            work = dist.irecv(into, rank, self._group, _TAG)
            assert work is not None
            work.wait(limit)


@contextmanager
def _as_connection_error() -> Iterator[None]:
    """What the backend says of a peer that has gone, or is silent."""
    try:
        yield
    except RuntimeError as error:
        raise ConnectionError(str(error).partition("\n")[0]) from error
