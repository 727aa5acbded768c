"""What a name in a kernel's source stands for."""

from __future__ import annotations

import builtins
import sys
import types
from typing import Any

from nkisim.lint.values import Known, Path, PythonObject, Value

# the short names of NKI's modules, which are also the usual aliases
_SHORT = {"language": "nl", "isa": "nisa", "collectives": "ncc", "typing": "nt"}
_ALIASES = {"nl": "nl", "nisa": "nisa", "ncc": "ncc", "nccl": "ncc"}
_NKI = ("nki", "nkisim")
SHORT = ("nl", "nisa", "ncc")
FOREIGN = ("numpy", "torch", "jax", "scipy")
_LIBRARIES = (*_NKI, *FOREIGN, "neuronxcc", "ml_dtypes")


def shorten(path: str) -> str:
    """`nki.language.add` as `nl.add`; other paths as they are."""
    parts = path.split(".")
    if len(parts) > 1 and parts[0] in _NKI and parts[1] in _SHORT:
        return ".".join([_SHORT[parts[1]], *parts[2:]])
    return path


def lookup(function: types.FunctionType | None, name: str) -> Value:
    """What `name` means in `function`'s closure, its globals, or among the built-ins."""
    for scope in _scopes(function):
        if name in scope:
            return of_object(scope[name])
    if name in _ALIASES:
        return Path(_ALIASES[name])
    return Path(f"builtins.{name}") if hasattr(builtins, name) else None


def is_outer(function: types.FunctionType | None, name: str) -> bool:
    """Whether `name` belongs to the closure or to the globals."""
    return any(name in scope for scope in _scopes(function))


def _scopes(function: types.FunctionType | None) -> list[dict[str, Any]]:
    if function is None:
        return []
    closure = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            closure[name] = cell.cell_contents
        except ValueError:
            # not bound yet, as a function's own name within its decorator
            continue
    return [closure, function.__globals__]


def of_object(item: Any) -> Value:
    """The value of an object that a name stands for."""
    if isinstance(item, types.ModuleType):
        return Path(shorten(item.__name__))
    if item is None or isinstance(item, bool | int | float | str | tuple):
        return Known(item)
    path = _nki_path(item)
    return PythonObject(item) if path is None else Path(path)


def _nki_path(item: Any) -> str | None:
    """The path of an object that was imported by name, if it is one of NKI's or foreign."""
    top = _top(item)
    for module, short in _SHORT.items() if top in _NKI else ():
        for package in _NKI:
            found = sys.modules.get(f"{package}.{module}")
            for exported, member in vars(found).items() if found is not None else ():
                if member is item:
                    return f"{short}.{exported}"
    name = getattr(item, "__name__", None)
    if isinstance(name, str) and top in (*FOREIGN, "neuronxcc", "builtins"):
        return f"{item.__module__}.{name}"
    return None


def _top(item: Any) -> str:
    """The package that defines `item`, or the class of `item`."""
    if isinstance(item, types.FunctionType) and item.__module__ is None:
        # made by `exec` without a module's name: nothing built in is written in Python
        return ""
    return str(getattr(item, "__module__", None) or type(item).__module__).split(".")[0]


def is_user_code(item: Any) -> bool:
    """Whether a function or a class belongs to a kernel rather than to a library."""
    top = _top(item)
    return top not in _LIBRARIES and top not in sys.stdlib_module_names
