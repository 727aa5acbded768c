"""Which tensors have contents where, among those that a kernel placed in SBUF or PSUM itself."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nkisim.storage import Storage

# Kernels allocate a tensor anew in each turn of a loop, at an address of a few, and often hold on
# to all of them. Only those with contents count, and only those nearby are looked at.
_GRANULE = 4096


class AddressMap:
    """The addressed tensors of one memory that hold something written, by where they lie."""

    __slots__ = ("_granules", "entered")

    def __init__(self) -> None:
        self._granules: dict[int, dict[int, weakref.ref[Storage]]] = {}
        # how often something entered: whoever was alone is so until this changes
        self.entered = 0

    def enter(self, storage: Storage) -> None:
        """Something was written through `storage`."""
        self.entered += 1
        reference = weakref.ref(storage)
        key = storage.place.serial
        for granule in _granules(storage):
            self._granules.setdefault(granule, {})[key] = reference

    def leave(self, storage: Storage) -> None:
        """All that was written through `storage` has been overwritten."""
        key = storage.place.serial
        for granule in _granules(storage):
            self._granules[granule].pop(key, None)

    def others(self, storage: Storage) -> list[Storage]:
        """The other tensors with contents that share bytes with `storage`."""
        own = storage.place.serial
        found: dict[int, Storage] = {}
        for granule in _granules(storage):
            entries = self._granules.get(granule)
            if not entries or (len(entries) == 1 and own in entries):
                continue
            for key, reference in list(entries.items()):
                other = reference()
                if other is None:
                    del entries[key]
                elif key != own and key not in found and storage.place.meets(other.place):
                    found[key] = other
        return list(found.values())


def _granules(storage: Storage) -> range:
    place = storage.place
    assert place.address is not None
    return range(
        place.address // _GRANULE, (place.address + place.bytes_per_partition - 1) // _GRANULE + 1
    )
