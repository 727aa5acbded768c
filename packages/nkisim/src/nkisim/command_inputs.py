"""What the command line says of a kernel and its arguments."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import nkisim
from nkisim import dtypes
from nkisim.host import TensorSpec


class ArgumentText(Exception):
    """Something on the command line that cannot be understood."""


def load_kernel(text: str) -> Any:
    """The kernel that `FILE:KERNEL` names. `import nki` in the file finds nkisim.

    Raises:
        ArgumentText: there is no such file, or nothing of that name in it.
    """
    file, separator, name = text.rpartition(":")
    path = Path(file)
    if not separator or not name:
        raise ArgumentText(f"{text!r} must be FILE:KERNEL")
    if not path.is_file():
        raise ArgumentText(f"there is no file {file!r}")
    nkisim.install()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ArgumentText(f"{file!r} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # so that the file can import its neighbours, and its functions can find their module
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    kernel = getattr(module, name, None)
    if not callable(kernel):
        known = [key for key, value in vars(module).items() if isinstance(value, nkisim.Kernel)]
        raise ArgumentText(
            f"{file!r} has no kernel {name!r}; it has {', '.join(known) or 'none made by nki.jit'}"
        )
    return kernel


def inputs_of(
    shapes: Sequence[str], others: Sequence[str], seed: int, values: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments.

    Args:
        shapes: `[NAME=]SIZES[:DTYPE]`, sizes as `128x512`.
        others: `NAME=VALUE`, values as Python literals; what is none is a string.
        seed: of the values: normal for floating-point types, 0 or 1 for others.
        values: whether to make arrays; otherwise `TensorSpec`.
    """
    generator = np.random.default_rng(seed)
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for text in shapes:
        name, separator, rest = text.rpartition("=")
        spec = _spec(rest, text)
        value = _array(spec, generator) if values else spec
        if separator:
            named[name] = value
        elif named:
            raise ArgumentText(f"--shapes {text!r} has no name, but one before it has")
        else:
            positional.append(value)
    for text in others:
        name, separator, rest = text.partition("=")
        if not separator:
            raise ArgumentText(f"--set {text!r} must be NAME=VALUE")
        named[name] = _literal(rest)
    return tuple(positional), named


def _spec(text: str, whole: str) -> TensorSpec:
    sizes, _, dtype = text.partition(":")
    try:
        shape = [int(size) for size in sizes.split("x")]
        return TensorSpec(shape, dtype or "float32")
    except (TypeError, ValueError) as error:
        raise ArgumentText(
            f"--shapes {whole!r} must be [NAME=]SIZES[:DTYPE], such as q=128x512:bfloat16: {error}"
        ) from None


def _array(spec: TensorSpec, generator: np.random.Generator) -> Any:
    if spec.dtype.is_float:
        return dtypes.cast(generator.standard_normal(spec.shape, np.float32), spec.dtype)
    return generator.integers(0, 2, spec.shape).astype(spec.dtype.numpy)


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
