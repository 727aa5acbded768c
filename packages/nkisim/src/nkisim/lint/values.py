"""What the linter knows about a value without running the kernel."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

ON_CHIP = ("sbuf", "psum")


@dataclass(frozen=True)
class Known:
    """A number, a string, or another constant."""

    value: Any


@dataclass(frozen=True)
class Path:
    """Something of a module, by its dotted path; `nl.`, `nisa.` and `ncc.` for those of NKI."""

    path: str


@dataclass(frozen=True)
class PythonObject:
    """A function, a class or an object of the kernel's module or closure."""

    item: Any


@dataclass(frozen=True)
class Instance:
    """An instance of a class."""

    kind: type


@dataclass(frozen=True)
class LocalFunction:
    """A function or lambda that is defined within the kernel."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Several:
    """A tuple or a list of values."""

    items: tuple[Value, ...]


@dataclass(frozen=True)
class Register:
    """A register: its value is not known before the kernel runs."""


@dataclass(frozen=True)
class Tensor:
    """A tensor, as far as it is known.

    Attributes:
        origin: where its memory comes from: a parameter's name, or the line of the allocation
        parameter: an argument of the kernel
        certain: an allocation, or a parameter that is annotated as a tensor
        buffer: `sbuf`, `psum`, `private_hbm`, `shared_hbm`, `hbm` for either, None if not known
        dtype: the name of its dtype, None if not known
        shape: its extents, None for an extent or for a rank that is not known
        named: it was allocated with a name
        start: the first partition of a view, None if not known
    """

    origin: str
    parameter: bool = False
    certain: bool = True
    buffer: str | None = None
    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None
    named: bool = False
    start: int | None = 0

    @property
    def hbm(self) -> bool:
        return self.buffer is not None and self.buffer not in ON_CHIP


# None is a value about which nothing is known
Value = Known | Path | PythonObject | Instance | LocalFunction | Several | Register | Tensor | None

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}

# nki.language reference, nl.tile_size
TILE_SIZE = {
    "pmax": 128,
    "psum_fmax": 512,
    "psum_bank_fmax": 512,
    "psum_bank_fmax_bytes": 2048,
    "gemm_stationary_fmax": 128,
    "gemm_moving_fmax": 512,
    "bn_stats_fmax": 512,
}


def merge(first: Value, second: Value) -> Value:
    """What is known about a value that is `first` on one path and `second` on the other."""
    return first if first == second else None


def fold(operation: ast.operator, left: Value, right: Value) -> Value:
    """The result of arithmetic on two known numbers."""
    function = _ARITHMETIC.get(type(operation))
    if function is None or not isinstance(left, Known) or not isinstance(right, Known):
        return None
    if not isinstance(left.value, int | float) or not isinstance(right.value, int | float):
        return None
    if right.value == 0 and isinstance(operation, ast.Div | ast.FloorDiv | ast.Mod):
        return None
    return Known(function(left.value, right.value))


def integer(value: Value) -> int | None:
    """The integer that `value` is known to be."""
    if isinstance(value, Known) and isinstance(value.value, int):
        return int(value.value)
    return None


def integers(value: Value) -> tuple[int | None, ...] | None:
    """The integers of a tuple or a list, None for those that are not known."""
    if isinstance(value, Several):
        return tuple(integer(item) for item in value.items)
    if isinstance(value, Known) and isinstance(value.value, tuple):
        return tuple(item if isinstance(item, int) else None for item in value.value)
    return None


@dataclass(frozen=True)
class Part:
    """What one index of a subscript takes: `size` elements from `start`, None for not known.

    Attributes:
        drops: an integer index, which drops its dimension
    """

    start: int | None
    size: int | None
    drops: bool = False


def subscript(tensor: Tensor, parts: tuple[Part, ...] | None) -> Tensor:
    """The view `tensor[...]`; `parts` is None where the indices are not understood.

    On chip, an integer keeps dimension 0 and keeps the view two-dimensional (NKI language guide).
    """
    if parts is None or tensor.shape is None or len(parts) > len(tensor.shape):
        start = tensor.start
        if parts is None:
            start = None
        elif parts and tensor.start is not None:
            start = None if parts[0].start is None else tensor.start + parts[0].start
        return replace(tensor, shape=None, start=start)
    kept: list[int | None] = []
    for dim, extent in enumerate(tensor.shape):
        part = parts[dim] if dim < len(parts) else Part(0, extent)
        if not part.drops or (dim == 0 and tensor.buffer in ON_CHIP):
            kept.append(part.size)
    if tensor.buffer in ON_CHIP and len(kept) == 1:
        kept.append(1)
    first = parts[0].start if parts else 0
    start = None if first is None or tensor.start is None else tensor.start + first
    return replace(tensor, shape=tuple(kept), start=start)


def view(tensor: Tensor, method: str, arguments: dict[str, Value]) -> Value:
    """What the method of a tensor returns."""
    if method == "reshape":
        return replace(tensor, shape=integers(arguments.get("shape")))
    if method == "ap":
        pattern = arguments.get("pattern")
        shape = None
        if isinstance(pattern, Several):
            pairs = [integers(pair) for pair in pattern.items]
            shape = tuple(pair[1] if pair and len(pair) == 2 else None for pair in pairs)
        start = tensor.start if "offset" not in arguments else None
        return replace(tensor, shape=shape, start=start)
    if method in ("is_contiguous", "is_indirect", "get_pattern"):
        return None
    return replace(tensor, shape=None, start=tensor.start if method != "slice" else None)
