"""Which core of a launch runs the kernel."""

from __future__ import annotations

from typing import Any

from nkisim.core import current
from nkisim.errors import NkiValidationError


def program_id(axis: int = 0) -> int:
    """The number of this core within its rank: 0, or 1 for the second core of `kernel[2]`."""
    core = current("nl.program_id")
    _check_axis("nl.program_id", "axis", axis)
    return core.number


def num_programs(axes: Any = 0) -> int:
    """How many cores of a rank run the kernel: 1 or 2.

    Args:
        axes: 0, the only axis of the launch grid; or a sequence of it, or None for all axes.
    """
    core = current("nl.num_programs")
    if axes is not None:
        parts = axes if isinstance(axes, (list, tuple)) else (axes,)
        for axis in parts:
            _check_axis("nl.num_programs", "axes", axis)
    return core.run.lnc


def program_ndim() -> int:
    """The dimensions of the launch grid: 1 for `kernel[1]` and `kernel[2]`, 0 without brackets."""
    return 1 if current("nl.program_ndim").run.grid else 0


def _check_axis(what: str, name: str, axis: Any) -> None:
    if isinstance(axis, bool) or axis != 0:
        raise NkiValidationError(f"{what}: {name} is {axis!r}; the launch grid has only axis 0")
