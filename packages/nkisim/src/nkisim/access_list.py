"""What a core has done to a tensor, so that others can be compared with it."""

from __future__ import annotations

from collections.abc import Iterator

from nkisim.coverage import Coverage, row_bands
from nkisim.extents import overlap
from nkisim.trace import Access, Instruction

# The bytes of a tensor in so many equal parts; an access that is in more than WIDE of them is kept
# in a list of its own.
PARTS = 256
WIDE = 8


class Accesses:
    """What one core has done to one tensor since the last time that its cores met on it."""

    def __init__(self, part: int) -> None:
        self._part = part
        self._parts: dict[int, list[tuple[Access, Instruction]]] = {}
        self._wide: list[tuple[Access, Instruction]] = []
        # by their bytes: the first that touched exactly those
        self._known: dict[tuple[object, ...], Instruction] = {}
        # where a wide access would continue one that is in the list, and which
        self._continued: dict[tuple[object, ...], int] = {}

    def add(self, access: Access, instruction: Instruction) -> None:
        # a loop that touches the same bytes again adds nothing
        key = self._key(access)
        if key in self._known:
            return
        self._known[key] = instruction
        parts = self._range(access)
        if len(parts) > WIDE:
            self._add_wide(access, instruction)
        else:
            for part in parts:
                self._parts.setdefault(part, []).append((access, instruction))

    @staticmethod
    def _key(access: Access) -> tuple[object, ...]:
        return (access.lo, access.hi, access.run, access.steps, access.dynamic)

    def _add_wide(self, access: Access, instruction: Instruction) -> None:
        """Keep `access`, as one with the columns to its left that the same line has touched."""
        like = (access.steps, access.dynamic, instruction.code, instruction.line)
        index = self._continued.pop((access.lo, *like), len(self._wide))
        if index == len(self._wide):
            self._wide.append((access, instruction))
        else:
            left, first = self._wide[index]
            self._wide[index] = (_joined(left, access), first)
        self._continued[(access.lo + access.run, *like)] = index

    def touching(self, access: Access) -> list[tuple[Access, Instruction]]:
        """Those that touch a byte of `access`; if one touches just those, only that."""
        same = self._known.get(self._key(access))
        if same is not None:
            return [(access, same)]
        return list(self.overlapping(access))

    def __iter__(self) -> Iterator[tuple[Access, Instruction]]:
        """All of them; one that is kept in several parts may come several times."""
        for found in (self._wide, *self._parts.values()):
            yield from found

    def covers(self, access: Access) -> bool:
        """Whether every byte of `access` is in some access here."""
        if access.dynamic or not self._known:
            return False
        if self._key(access) in self._known:
            return True
        place = access.place
        width = place.shape[-1] * place.dtype.itemsize
        covered = Coverage(place.bytes_per_partition // width, width)
        for other, _ in self.overlapping(access):
            if not other.dynamic:
                for band in row_bands(other.lo, other.run, other.steps, width):
                    covered.add(*band)
        wanted = row_bands(access.lo, access.run, access.steps, width)
        return all(covered.covers(*band) for band in wanted)

    def _range(self, access: Access) -> range:
        return range(access.lo // self._part, (access.hi - 1) // self._part + 1)

    def overlapping(self, access: Access) -> Iterator[tuple[Access, Instruction]]:
        """Those that touch a byte of `access`, each once."""
        parts = self._range(access)
        if len(parts) > WIDE:
            chosen = list(self._parts.values())
        else:
            chosen = [self._parts[part] for part in parts if part in self._parts]
        if not chosen and not self._wide:
            return
        seen: set[int] = set()
        for found in (self._wide, *chosen):
            for other, instruction in found:
                if id(other) not in seen and overlap(access, other):
                    seen.add(id(other))
                    yield other, instruction


def _joined(left: Access, right: Access) -> Access:
    """The bytes of both, where each run of `right` begins at the end of one of `left`."""
    return Access(
        left.place,
        left.dtype,
        left.p0,
        left.p1,
        left.lo,
        right.hi,
        left.run + right.run,
        left.steps,
        left.elements + right.elements,
        left.inner_step,
        left.dynamic,
    )
