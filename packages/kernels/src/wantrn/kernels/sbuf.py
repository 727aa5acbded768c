"""Buffers of SBUF: what a plan lists, and the tensors that a kernel makes of the list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wantrn.kernels.nki import nl
from wantrn.kernels.slots import Slots

# partitions of SBUF, each of which has its part of every buffer
PARTITIONS = 128
# addresses are multiples of this, so that any dtype can be read
ALIGNMENT = 4


@dataclass(frozen=True)
class Buffer(nl.NKIObject):
    """One kind of buffer.

    Attributes:
        name: what it holds
        size: bytes of each partition of one slot
        slots: how many are taken in turns
        first, last: the stages of the kernel between which it lives, both included; a kernel of one
            stage leaves them at 0
        address: first byte in each partition
    """

    name: str
    size: int
    slots: int
    first: int = 0
    last: int = 0
    address: int = 0

    def end(self) -> int:
        """The byte behind it."""
        return self.address + self.size * self.slots


def placed(wanted: list[Buffer]) -> tuple[Buffer, ...]:
    """Each buffer at the lowest address at which none of those alive with it lies.

    Sizes are rounded up to `ALIGNMENT`; what has no bytes or no slots is left out.
    """
    found: list[Buffer] = []
    for buffer in wanted:
        if buffer.size * buffer.slots > 0:
            size = -(-buffer.size // ALIGNMENT) * ALIGNMENT
            alive = [o for o in found if o.first <= buffer.last and buffer.first <= o.last]
            address = _lowest(size * buffer.slots, alive)
            found.append(
                Buffer(buffer.name, size, buffer.slots, buffer.first, buffer.last, address)
            )
    return tuple(found)


def _lowest(size: int, others: list[Buffer]) -> int:
    """The lowest address of `size` bytes that are none of `others`': 0, or the end of one."""
    free = []
    for address in [0] + [other.end() for other in others]:
        if all([address + size <= o.address or o.end() <= address for o in others]):
            free.append(address)
    return min(free)


def end_of(buffers: tuple[Buffer, ...]) -> int:
    """Bytes of each partition up to the last one in use."""
    return max([buffer.end() for buffer in buffers])


def named(buffers: tuple[Buffer, ...], name: str) -> Any:
    """The buffer of that name, or None."""
    for buffer in buffers:
        if buffer.name == name:
            return buffer
    return None


def slots_of(buffers: tuple[Buffer, ...], name: str, dtype: Any, itemsize: int) -> Any:
    """`[PARTITIONS, n]` of `dtype` for each slot of the buffer, as many elements as its bytes hold;
    None where there is no such buffer.

    Args:
        itemsize: bytes of an element of `dtype`.
    """
    buffer: Buffer = named(buffers, name)
    if buffer == None:
        return None
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
