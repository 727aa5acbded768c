"""Small questions about syntax trees and functions."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterable, Iterator

from nkisim.lint.source import FunctionNode


def parameters(node: FunctionNode) -> list[ast.arg]:
    """All parameters of a function, the keyword-only ones and the stars included."""
    listed = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return listed + [extra for extra in (node.args.vararg, node.args.kwarg) if extra is not None]


def positional(function: types.FunctionType) -> tuple[str, ...]:
    """The names of the positional parameters."""
    code = function.__code__
    return code.co_varnames[: code.co_argcount]


def assigned(body: Iterable[ast.stmt]) -> set[str]:
    """The names that statements assign to."""
    return {
        node.id
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def as_read(target: ast.expr) -> ast.expr:
    """An assignment's target as an expression that is read, at the same place."""
    read = ast.parse(ast.unparse(target), mode="eval").body
    for node in ast.walk(read):
        ast.copy_location(node, target)
    return read


def imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """The local names that an import binds, each with the path that it stands for."""
    for name in node.names:
        if isinstance(node, ast.ImportFrom):
            yield name.asname or name.name, f"{node.module}.{name.name}"
        elif name.asname:
            yield name.asname, name.name
        else:
            top = name.name.split(".")[0]
            yield top, top
