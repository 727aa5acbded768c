"""Tensors that are used in turn, so that one is filled while another is read."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nl


class Slots(nl.NKIObject):
    """Tensors of one kind, taken in turns or by number.

    How many there are is the plan's business: as many as are in use at once, and a few for
    instructions that overlap.
    """

    tensors: list[Any]
    taken: int = 0

    def take(self) -> Any:
        """The one that was taken longest ago; what it held is gone."""
        self.taken += 1
        return self.at(self.taken - 1)

    def at(self, number: int) -> Any:
        """Number `number`, counted round."""
        return self.tensors[number % len(self.tensors)]


def slots(count: int, shape: tuple[int, ...], dtype: Any, buffer: Any) -> Slots:
    """`count` tensors of `buffer`, `nl.sbuf` or `nl.psum`; where they lie is left to the
    compiler."""
    return Slots(tensors=[nl.ndarray(shape, dtype, buffer=buffer) for _ in range(count)])
