"""Buffers of SBUF: what a plan lists, and the tensors that a kernel makes of the list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wantrn.kernels.nki import nl

# partitions of SBUF, each of which has its part of every buffer
PARTITIONS = 128
# addresses are multiples of this, so that any dtype can be read
ALIGNMENT = 4


@dataclass(frozen=True)
class Buffer(nl.NKIObject):
    """One kind of buffer.

    Attributes:
        name: what it holds
        size: bytes of each partition of one slot, a multiple of `ALIGNMENT`
        slots: how many are taken in turns
        address: first byte in each partition
    """

    name: str
    size: int
    slots: int
    address: int

    def end(self) -> int:
        """The byte behind it."""
        return self.address + self.size * self.slots


def placed(wanted: list[tuple[str, int, int]]) -> tuple[Buffer, ...]:
    """Buffers one behind the other, all of which live as long as the kernel runs.

    Args:
        wanted: `(name, bytes of a partition, slots)`; what has no bytes or slots is left out.
    """
    found: list[Buffer] = []
    address = 0
    for name, size, slots in wanted:
        if size * slots > 0:
            aligned = -(-size // ALIGNMENT) * ALIGNMENT
            found.append(Buffer(name, aligned, slots, address))
            address = found[-1].end()
    return tuple(found)


def end_of(buffers: tuple[Buffer, ...]) -> int:
    """Bytes of each partition up to the last one in use."""
    return max([buffer.end() for buffer in buffers])


class Slots(nl.NKIObject):
    """The slots of one buffer, taken in turns or by number."""

    tensors: list[Any]
    taken: int = 0

    def take(self) -> Any:
        """The next one; what it held is gone."""
        self.taken += 1
        return self.at(self.taken - 1)

    def at(self, number: int) -> Any:
        """Number `number`, counted round."""
        return self.tensors[number % len(self.tensors)]


def slots_of(buffers: tuple[Buffer, ...], name: str, dtype: Any, itemsize: int) -> Any:
    """`[PARTITIONS, n]` of `dtype` for each slot of the buffer, as many elements as its bytes hold;
    None where there is no such buffer.

    Args:
        itemsize: bytes of an element of `dtype`.
    """
    for buffer in buffers:
        if buffer.name == name:
            return Slots(
                tensors=[
                    nl.ndarray(
                        (PARTITIONS, buffer.size // itemsize),
                        dtype,
                        buffer=nl.sbuf,
                        name=f"{name}_{slot}",
                        address=(0, buffer.address + slot * buffer.size),
                    )
                    for slot in range(buffer.slots)
                ]
            )
    return None
