"""Finds the syntax tree of a function or of a class, with the lines of its file."""

from __future__ import annotations

import ast
import inspect
import linecache
import types
from dataclasses import dataclass
from typing import Any

from nkisim.errors import NkiError

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class SourceNotFoundError(NkiError, OSError):
    """The source of a function cannot be read: it is built in, or was made by `exec`."""


@dataclass(frozen=True)
class Source:
    """A function in its file.

    Attributes:
        function: the function itself, whose globals and closure say what names mean
        node: its tree; lines are those of the file
        file: the file's path
    """

    function: types.FunctionType
    node: FunctionNode
    file: str


def python_function(kernel: Any) -> types.FunctionType:
    """The function behind a kernel: itself, or its `.function` or `__wrapped__`.

    Raises:
        SourceNotFoundError: it is a built-in.
        TypeError: there is none.
    """
    seen: Any = kernel
    # wrappers around wrappers are few; a chain that is longer refers to itself
    for _ in range(16):
        inner = getattr(seen, "__wrapped__", None)
        if inner is None and not isinstance(seen, types.FunctionType):
            inner = getattr(seen, "function", getattr(seen, "__func__", None))
        if inner is None:
            break
        seen = inner
    if isinstance(seen, types.FunctionType):
        return seen
    if isinstance(seen, types.BuiltinFunctionType):
        raise SourceNotFoundError(f"{seen.__name__} is a built-in function: it has no source")
    raise TypeError(f"kernel is {kernel!r}; it must be a function or a kernel made by nki.jit")


class Sources:
    """Reads each file once."""

    def __init__(self) -> None:
        self._trees: dict[str, ast.Module] = {}
        # by file, then by name and first line
        self._functions: dict[str, dict[tuple[str, int], list[FunctionNode]]] = {}

    def of(self, function: types.FunctionType) -> Source:
        """The tree of `function`.

        Raises:
            SourceNotFoundError: its file cannot be read, or no longer has it at that line.
        """
        name = function.__name__
        code = function.__code__
        if code.co_filename not in self._functions:
            self._functions[code.co_filename] = _index(self._tree(code.co_filename, name))
        found = self._functions[code.co_filename].get((name, code.co_firstlineno), [])
        if len(found) != 1:
            raise SourceNotFoundError(
                f"{name} is not to be found at {code.co_filename}:{code.co_firstlineno} "
                f"({len(found)} functions of that name there)"
            )
        return Source(function, found[0], code.co_filename)

    def of_class(self, kind: type) -> tuple[ast.ClassDef, str]:
        """The tree of class `kind`, and its file.

        Raises:
            SourceNotFoundError: its file cannot be read, or does not have it.
        """
        name = kind.__name__
        try:
            file = inspect.getsourcefile(kind)
        except TypeError:
            file = None
        if file is None:
            raise SourceNotFoundError(f"class {name} has no source file")
        node: ast.AST = self._tree(file, name)
        for part in kind.__qualname__.split("."):
            if part != "<locals>":
                node = _definition(node, part, file)
        if not isinstance(node, ast.ClassDef):
            raise SourceNotFoundError(f"{kind.__qualname__} is no class in {file}")
        return node, file

    def _tree(self, file: str, name: str) -> ast.Module:
        if file not in self._trees:
            lines = linecache.getlines(file)
            if not lines:
                raise SourceNotFoundError(f"the source of {name} cannot be read: {file}")
            self._trees[file] = ast.parse("".join(lines))
        return self._trees[file]


def _index(tree: ast.Module) -> dict[tuple[str, int], list[FunctionNode]]:
    """The functions of a file, by name and by the line at which their code objects begin."""
    found: dict[tuple[str, int], list[FunctionNode]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda):
            found.setdefault(("<lambda>", node.lineno), []).append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            # a code object begins at its first decorator
            line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found.setdefault((node.name, line), []).append(node)
    return found


def _definition(scope: ast.AST, name: str, file: str) -> ast.AST:
    for node in ast.walk(scope):
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if named and node is not scope and getattr(node, "name", None) == name:
            return node
    raise SourceNotFoundError(f"{name} is not to be found in {file}")
