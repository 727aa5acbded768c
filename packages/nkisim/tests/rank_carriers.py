"""Ranks that run apart in threads of this process, with queues between them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from nkisim import Rank

PATIENCE = 20.0


class Queues:
    """Carries the messages of a rank; `pipes` has a queue for each pair of sender and receiver."""

    def __init__(
        self,
        rank: int,
        ranks: int,
        pipes: dict[tuple[int, int], queue.Queue[bytes]],
        members: Sequence[int] | None = None,
    ) -> None:
        self.rank = rank
        self.ranks = ranks
        self.members = range(ranks) if members is None else members
        self._pipes = pipes

    def send(self, rank: int, message: bytes) -> Callable[[], None]:
        self._pipes[self.rank, rank].put(bytes(message))
        return lambda: None

    def receive(self, rank: int, seconds: float) -> bytes:
        try:
            return self._pipes[rank, self.rank].get(timeout=seconds)
        except queue.Empty:
            raise ConnectionError(f"nothing for {seconds:g} s") from None

    def left(self) -> int:
        """Messages that nobody has taken."""
        return sum(pipe.qsize() for pipe in self._pipes.values())


def carriers(ranks: int) -> list[Queues]:
    pipes: dict[tuple[int, int], queue.Queue[bytes]] = {
        (one, other): queue.Queue() for one in range(ranks) for other in range(ranks)
    }
    return [Queues(rank, ranks, pipes) for rank in range(ranks)]


def run_apart(
    kernels: Any, inputs: Sequence[Sequence[Any]], lnc: int = 1, **options: Any
) -> list[Any]:
    """What each rank returned or raised; `kernels` is one for all, or one for each.

    `late`: seconds after which the last one begins.
    """
    given = kernels if isinstance(kernels, list) else [kernels] * len(inputs)
    found: list[Any] = [None] * len(inputs)
    late = options.pop("late", 0.0)
    ways = options.pop("carriers", None) or carriers(len(inputs))

    def run(rank: int) -> None:
        if rank == len(inputs) - 1:
            time.sleep(late)
        try:
            found[rank] = Rank(ways[rank], lnc, patience=PATIENCE, **options).run(
                given[rank], *inputs[rank]
            )
        except Exception as error:
            found[rank] = error

    threads = [
        threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(len(given))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
        assert not thread.is_alive(), "a rank hangs"
    return found
