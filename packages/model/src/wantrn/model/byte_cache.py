"""What is kept because it may be asked for again, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True)
class CacheCounts:
    """How a cache has served so far, and what it holds now."""

    hits: int
    misses: int
    entries: int
    nbytes: int


class ByteCache(Generic[K, V]):
    """The values used last, of at most ``max_bytes`` together; 0 keeps none.

    What it holds follows from the order of calls alone, so ranks that make the same calls hold the
    same. For one thread.

    Raises:
        ValueError: ``max_bytes`` is negative.
    """

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 0:
            raise ValueError(f"max_bytes must be 0 or more, got {max_bytes}")
        self._max_bytes = max_bytes
        self._held: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._nbytes = self._hits = self._misses = 0

    @property
    def counts(self) -> CacheCounts:
        return CacheCounts(self._hits, self._misses, len(self._held), self._nbytes)

    def get(self, key: K) -> V | None:
        """The value of ``key``, which is then the one used last; None, a miss, without one."""
        if key not in self._held:
            self._misses += 1
            return None
        self._hits += 1
        self._held.move_to_end(key)
        return self._held[key][0]

    def put(self, key: K, value: V, nbytes: int) -> None:
        """Keep ``value``, and drop what was not used for longest until all fits. A value that
        does not fit by itself is not kept, and nothing is dropped for it."""
        if key in self._held:
            self._nbytes -= self._held.pop(key)[1]
        if nbytes > self._max_bytes:
            return
        self._held[key] = (value, nbytes)
        self._nbytes += nbytes
        while self._nbytes > self._max_bytes:
            _, (_, freed) = self._held.popitem(last=False)
            self._nbytes -= freed
