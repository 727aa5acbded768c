"""Comparing the tensors a model needs with the tensors a checkpoint has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from wantrn.model.errors import CheckpointError

Shape = tuple[int, ...]

_SHOWN = 8  # keys listed in an error before the rest is only counted


@dataclass(frozen=True)
class KeyDifferences:
    """Where a checkpoint departs from what a model needs; all empty when it fits."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    misshaped: tuple[str, ...]  # "name [4, 2], expected [4, 3]"

    def problems(self) -> tuple[str, ...]:
        """One line for each kind of difference that there is."""
        kinds = {
            "missing": self.missing,
            "unexpected": self.unexpected,
            "misshaped": self.misshaped,
        }
        return tuple(
            f"{len(keys)} {kind} tensor{'s' if len(keys) > 1 else ''}: {abridge(keys)}"
            for kind, keys in kinds.items()
            if keys
        )

    def check(self, source: Path) -> None:
        """Raise ``CheckpointError`` naming ``source`` and the keys, unless all is empty."""
        problems = self.problems()
        if problems:
            raise CheckpointError(f"{source}: " + "; ".join(problems))


def compare_shapes(expected: Mapping[str, Shape], found: Mapping[str, Shape]) -> KeyDifferences:
    """Both arguments map the names used in the file to shapes."""
    return KeyDifferences(
        missing=tuple(name for name in expected if name not in found),
        unexpected=tuple(name for name in found if name not in expected),
        misshaped=tuple(
            f"{name} {list(found[name])}, expected {list(shape)}"
            for name, shape in expected.items()
            if name in found and found[name] != shape
        ),
    )


def check_bijection(key_map: Mapping[str, str], names: Collection[str], source: Path) -> None:
    """Every source name of ``key_map`` is in ``names`` exactly once and nothing else is.

    ``key_map`` goes from canonical to source names. Raises ``CheckpointError`` that lists the
    missing and unexpected names and names ``source``.
    """
    seen: dict[str, str] = {}
    for canonical, name in key_map.items():
        if name in seen:
            raise CheckpointError(f"{source}: {name} would be both {seen[name]} and {canonical}")
        seen[name] = canonical
    KeyDifferences(
        missing=tuple(name for name in seen if name not in names),
        unexpected=tuple(name for name in names if name not in seen),
        misshaped=(),
    ).check(source)


def abridge(keys: Collection[str]) -> str:
    """The first few of ``keys``, then how many there are more."""
    shown = ", ".join(list(keys)[:_SHOWN])
    return shown if len(keys) <= _SHOWN else f"{shown} and {len(keys) - _SHOWN} more"
