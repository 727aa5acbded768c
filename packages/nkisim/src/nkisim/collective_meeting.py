"""What the cores in a collective bring, and the values that go from each to the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nkisim.core import Core
from nkisim.enums import MemoryRegion
from nkisim.errors import NkiMismatchError, NkiValidationError
from nkisim.meeting import Description
from nkisim.tensor import NkiTensor
from nkisim.trace import Access, Instruction

# what a collective computes: from what each rank of the group sends to what each receives, both in
# the order of the group; None for a tensor that stays as it is
Compute = Callable[[list[list[Any]]], list[list[Any]]]


@dataclass(frozen=True)
class Operands:
    """The tensors of a collective on one core.

    Attributes:
        sent: whose values a rank brings; those of its first core
        received: what it gets values for; each core has its own on chip, and HBM in common
        copies: what must be equal on both cores of a rank
    """

    sent: Sequence[NkiTensor]
    received: Sequence[NkiTensor]
    copies: Sequence[NkiTensor] = ()


@dataclass(frozen=True)
class Entry:
    """What one core brings to the meeting."""

    core: Core
    position: str
    instruction: Instruction
    operands: Operands
    reads: Sequence[NkiTensor]
    writes: Sequence[NkiTensor]


@dataclass(frozen=True)
class Cores:
    """The cores that have come.

    Attributes:
        op: the collective
        group: the ranks that exchange data, in order
        here: for each of them that this run simulates, what its cores came with
    """

    op: str
    group: tuple[int, ...]
    here: dict[int, list[Entry]]

    def check_shared(self) -> None:
        """The two cores of a rank mean the same tensors of shared HBM, which have been written.

        Raises:
            NkiMismatchError: they mean others.
        """
        for entries in self.here.values():
            if len(entries) > 1:
                self._check_shared(entries)

    def _check_shared(self, entries: list[Entry]) -> None:
        first = entries[0]
        for other in entries[1:]:
            if _bytes(first) != _bytes(other):
                told = "; ".join(
                    f"core {entry.core.number} at {entry.position}: {_shown(entry)}"
                    for entry in entries
                )
                raise NkiMismatchError(
                    f"{self.op}: the cores of rank {first.core.rank} must issue it on the same "
                    f"tensors of shared HBM: {told}"
                )
        for tensor in first.reads:
            if is_shared(tensor) and not tensor.storage.was_written(tensor.access()):
                first.core.violation(
                    "uninitialized",
                    f"{self.op} of rank {first.core.rank}: a source reads {tensor!r}, part of "
                    "which nothing has written",
                )
        for tensor in first.writes:
            if is_shared(tensor):
                tensor.storage.mark_written(tensor.access(), first.instruction)

    def move(self, compute: Compute, stream: str, description: Description) -> None:
        """Give the ranks that are here what they receive.

        Args:
            compute: what the collective computes
            stream, description: of the collective, for ranks that run elsewhere
        """
        for rank, entries in self.here.items():
            self._check_copies(rank, [entry.operands.copies for entry in entries])
        # all is read before anything is written: a tensor may be source and destination
        arrays = {
            rank: [tensor.values() for tensor in entries[0].operands.sent]
            for rank, entries in self.here.items()
        }
        if len(arrays) < len(self.group):
            arrays |= self._elsewhere(arrays, stream, description)
        received = compute([arrays[rank] for rank in self.group])
        for rank, values in zip(self.group, received, strict=True):
            for index, entry in enumerate(self.here.get(rank, ())):
                for tensor, value in zip(entry.operands.received, values, strict=True):
                    if value is not None and (index == 0 or tensor.on_chip):
                        tensor.assign(value)

    def _elsewhere(
        self, arrays: dict[int, list[Any]], stream: str, description: Description
    ) -> dict[int, list[Any]]:
        """What the ranks send that run elsewhere."""
        ((rank, mine),) = arrays.items()
        entry = self.here[rank][0]
        run = entry.core.run
        assert run.peers is not None, f"{self.op}: {self.group} without peers"
        with run.communicator.abroad():
            return run.peers.exchange(stream, self.group, (description, entry.position), mine)

    def _check_copies(self, rank: int, copies: list[Sequence[NkiTensor]]) -> None:
        for parts in zip(*copies, strict=True):
            first, *others = (part.values() for part in parts)
            if not all(np.array_equal(first, other) for other in others):
                raise NkiValidationError(
                    f"{self.op}: metadata_tensor differs between the cores of rank {rank}; both "
                    "issue the collective, and it must be the same"
                )


def is_shared(tensor: NkiTensor) -> bool:
    """Whether both cores of a rank have it."""
    return tensor.storage.place.region is MemoryRegion.shared_hbm


def _bytes(entry: Entry) -> list[tuple[Any, ...]]:
    """Which bytes of shared HBM a core means."""
    return [
        _pattern(tensor.access()) for tensor in (*entry.reads, *entry.writes) if is_shared(tensor)
    ]


def _pattern(access: Access) -> tuple[Any, ...]:
    return (access.place, access.lo, access.run, access.steps)


def _shown(entry: Entry) -> str:
    return ", ".join(
        f"{tensor!r} from element {tensor.offset} on" for tensor in (*entry.reads, *entry.writes)
    )
