"""A part of one tensor: a range of indices along one axis."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Slice:
    """Indices ``begin`` to ``end`` (not included) of an axis that has ``size`` of them.

    Attributes:
        axis: of the whole tensor, counted from 0

    Raises:
        ValueError: naming the field, if the range is empty or outside of the axis.
    """

    axis: int
    begin: int
    end: int
    size: int

    def __post_init__(self) -> None:
        if self.axis < 0:
            raise ValueError(f"axis must be 0 or more, got {self.axis}")
        if not 0 <= self.begin < self.size:
            raise ValueError(f"begin must be 0 to {self.size - 1}, got {self.begin}")
        if not self.begin < self.end <= self.size:
            raise ValueError(f"end must be {self.begin + 1} to {self.size}, got {self.end}")

    @classmethod
    def part(cls, axis: int, size: int, parts: int, index: int) -> Slice:
        """Part ``index`` of ``parts`` equal ones; ``ValueError`` if they do not divide ``size``."""
        if parts < 1 or size % parts:
            raise ValueError(f"parts must divide the {size} indices of axis {axis}, got {parts}")
        if not 0 <= index < parts:
            raise ValueError(f"index must be 0 to {parts - 1}, got {index}")
        width = size // parts
        return cls(axis, index * width, (index + 1) * width, size)

    @property
    def width(self) -> int:
        """How many indices it takes."""
        return self.end - self.begin

    def whole_shape(self, part: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the tensor of which this slice has the shape ``part``.

        Raises:
            ValueError: ``part`` has no such axis, or another size along it.
        """
        if self.axis >= len(part) or part[self.axis] != self.width:
            raise ValueError(f"shape {list(part)} is not that of {self}")
        return (*part[: self.axis], self.size, *part[self.axis + 1 :])

    def part_shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of this slice of a tensor of the shape ``whole``.

        Raises:
            ValueError: ``whole`` has no such axis, or another size along it.
        """
        if self.axis >= len(whole) or whole[self.axis] != self.size:
            raise ValueError(f"a tensor of shape {list(whole)} has no {self}")
        return (*whole[: self.axis], self.width, *whole[self.axis + 1 :])
