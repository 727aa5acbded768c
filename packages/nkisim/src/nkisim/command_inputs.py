"""What the command line says of a kernel's arguments."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from nkisim import dtypes
from nkisim.command_kernel import CommandError
from nkisim.dtypes import DType
from nkisim.host import TensorSpec
from nkisim.kernel import Kernel
from nkisim.run import Arguments

Array = npt.NDArray[Any]

_SHAPES = "[NAME=]SIZES[:DTYPE], such as q=128x512:bfloat16"


@dataclass(frozen=True)
class Inputs:
    """The arguments of a kernel, with tensors as shapes still.

    Attributes:
        positional: tensors without a name
        named: tensors with one
        others: everything else by name, arrays from a file among it
    """

    positional: tuple[TensorSpec, ...]
    named: Mapping[str, TensorSpec]
    others: Mapping[str, Any]

    def specs(self) -> Arguments:
        """Shapes where nothing else was given, for a run without numerics."""
        return self.positional, {**self.named, **self.others}

    def arrays(self, seed: int, rank: int) -> Arguments:
        """Random values where nothing else was given; each rank has its own.

        Floating-point values are normally distributed, integers are 0 or 1.
        """
        generator = np.random.default_rng((seed, rank))
        positional = tuple(_random(spec, generator) for spec in self.positional)
        named = {name: _random(spec, generator) for name, spec in self.named.items()}
        return positional, {**named, **self.others}


def inputs_of(
    kernel: Kernel, shapes: Sequence[str], others: Sequence[str], file: Path | None
) -> Inputs:
    """The arguments that were given, once they fit the kernel.

    Args:
        shapes: of `--shapes`, `[NAME=]SIZES[:DTYPE]`, sizes as `128x512`.
        others: of `--set`, `NAME=VALUE`, values as Python literals; a bare word is a string.
        file: of `--inputs`, an .npz; `NAME:DTYPE` for an array to be rounded to another type.

    Raises:
        CommandError: a text cannot be understood, or the arguments are not those of the kernel.
    """
    positional, named = _tensors(shapes)
    rest: dict[str, Any] = {}
    for option, values in (("--set", _values(others)), ("--inputs", _arrays(file))):
        for name, value in values.items():
            if name in named or name in rest:
                raise CommandError(f"{option} gives {name!r}, which was given already")
            rest[name] = value
    inputs = Inputs(positional, named, rest)
    _check(kernel, inputs)
    return inputs


def _check(kernel: Kernel, inputs: Inputs) -> None:
    signature = inspect.signature(kernel.function)
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    positional, named = inputs.specs()
    try:
        signature.bind(*positional, **named)
    except TypeError as error:
        name = kernel.function.__name__
        raise CommandError(
            f"the kernel is {name}{inspect.Signature(bare)}: {error}; tensors are given "
            "by --shapes NAME=SIZES:DTYPE or --inputs FILE.npz, other arguments by --set NAME=VALUE"
        ) from None


def _tensors(texts: Sequence[str]) -> tuple[tuple[TensorSpec, ...], dict[str, TensorSpec]]:
    positional: list[TensorSpec] = []
    named: dict[str, TensorSpec] = {}
    for text in texts:
        name, separator, rest = text.rpartition("=")
        spec = _spec(rest, text)
        if not separator and named:
            raise CommandError(f"--shapes {text!r} has no name, but one before it has")
        if not separator:
            positional.append(spec)
        elif not name.isidentifier() or name in named:
            raise CommandError(f"--shapes {text!r}: {name!r} is no name, or was given already")
        else:
            named[name] = spec
    return tuple(positional), named


def _spec(text: str, whole: str) -> TensorSpec:
    sizes, _, dtype = text.partition(":")
    try:
        shape = [int(size) for size in sizes.split("x")]
    except ValueError:
        raise CommandError(f"--shapes {whole!r} must be {_SHAPES}") from None
    try:
        return TensorSpec(shape, dtype or "float32")
    except (TypeError, ValueError) as error:
        raise CommandError(f"--shapes {whole!r}: {error}") from None


def _values(texts: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in texts:
        name, separator, rest = text.partition("=")
        if not separator or not name.isidentifier() or name in found:
            raise CommandError(f"--set {text!r} must be NAME=VALUE, each name once")
        found[name] = _literal(rest, text)
    return found


def _literal(text: str, whole: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        # `causal=false` would be true
        if text.isidentifier() and text.lower() not in ("true", "false", "none"):
            return text
    raise CommandError(
        f"--set {whole!r}: VALUE must be a Python literal, such as 0.125, True or (0, 1), or a "
        "word for a string"
    )


def _arrays(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    if not file.is_file():
        raise CommandError(f"--inputs: there is no file {str(file)!r}")
    try:
        opened = np.load(file)
        if isinstance(opened, np.ndarray):
            raise ValueError("one array without a name")
        with opened:
            arrays = dict(opened)
    except (BadZipFile, EOFError, OSError, ValueError) as error:
        raise CommandError(
            f"--inputs: {str(file)!r} must be an .npz of arrays, as numpy.savez writes it ({error})"
        ) from None
    found = {}
    for key, array in arrays.items():
        name, separator, dtype = key.partition(":")
        found[name] = _rounded(array, dtype, key) if separator else array
    return found


def _rounded(array: Array, dtype: str, key: str) -> Array:
    try:
        kind = dtypes.resolve(dtype, f"--inputs: {key!r}: the type")
    except TypeError as error:
        raise CommandError(str(error)) from None
    _require_values(kind, f"--inputs: {key!r}")
    return dtypes.cast(array, kind)


def _random(spec: TensorSpec, generator: np.random.Generator) -> Array:
    _require_values(spec.dtype, f"--shapes ...:{spec.dtype}")
    if spec.dtype is dtypes.float8_e8m0fnu:
        return np.ones(spec.shape, spec.dtype.numpy)
    if spec.dtype.is_float:
        return dtypes.cast(generator.standard_normal(spec.shape, np.float32), spec.dtype)
    return generator.integers(0, 2, spec.shape).astype(spec.dtype.numpy)


def _require_values(dtype: DType, what: str) -> None:
    """Some types exist on the device only; arrays of the host hold their bits."""
    if dtype.values > 1 or dtype is dtypes.tfloat32:
        raise CommandError(
            f"{what}: no array has the type {dtype}; give {dtype.numpy}, which holds its bits"
        )
