"""Rules about Python itself, which need no more than the syntax tree."""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterator

from nkisim.lint.rules import Report
from nkisim.lint.source import FunctionNode

# rule, place and detail
Broken = tuple[str, ast.AST, str]

_LISTS = ("list", "List", "MutableSequence")


def check_function(node: FunctionNode, file: str, report: Report) -> None:
    """Every statement and expression of a function, those of nested functions included."""
    for child in ast.walk(node):
        for broken in _construct(child):
            _add(report, file, broken)


def check_kernel(node: FunctionNode, file: str, report: Report) -> None:
    """The signature of a kernel."""
    if node.args.kwonlyargs:
        names = ", ".join(argument.arg for argument in node.args.kwonlyargs)
        _add(report, file, ("keyword-only", node.args.kwonlyargs[0], names))
    positional = [*node.args.posonlyargs, *node.args.args]
    defaults = [None] * (len(positional) - len(node.args.defaults)) + list(node.args.defaults)
    pairs = list(zip(positional, defaults, strict=True))
    pairs += list(zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True))
    for argument, default in pairs:
        if isinstance(default, ast.List) or _is_list(argument.annotation):
            _add(report, file, ("list-argument", argument, argument.arg))


def check_class(kind: type, node: ast.ClassDef, file: str, report: Report) -> None:
    """The bases and the properties of a class that a kernel uses."""
    if not issubclass(kind, enum.Enum):
        bases = [base for base in kind.__bases__ if not _is_nki_object(base)]
        if bases or not kind.__bases__:
            names = ", ".join(base.__name__ for base in kind.__bases__)
            _add(report, file, ("class-bases", node, f"{kind.__name__} derives from {names}"))
    for child in node.body:
        if isinstance(child, ast.FunctionDef):
            for decorator in child.decorator_list:
                if isinstance(decorator, ast.Name) and decorator.id == "property":
                    _add(report, file, ("property", child, f"{kind.__name__}.{child.name}"))


def _add(report: Report, file: str, broken: Broken) -> None:
    rule, node, detail = broken
    line = getattr(node, "lineno", 1)
    report.add(rule, file, line, getattr(node, "col_offset", 0) + 1, detail)


def _construct(node: ast.AST) -> Iterator[Broken]:
    match node:
        case ast.Compare():
            if any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
                yield "is-comparison", node, ast.unparse(node)
        case ast.Try() | ast.TryStar():
            yield "try-statement", node, ""
        case ast.Yield() | ast.YieldFrom() | ast.GeneratorExp():
            yield "generator", node, ""
        case ast.With() | ast.AsyncWith():
            for item in node.items:
                if not _is_no_reorder(item.context_expr):
                    yield "with-statement", node, ast.unparse(item.context_expr)
        case ast.Set() | ast.SetComp():
            yield "set-use", node, ""
        case ast.Call():
            yield from _call(node)
        case ast.Dict():
            for key in node.keys:
                if isinstance(key, ast.Constant) and not isinstance(key.value, str):
                    yield "dict-keys", key, repr(key.value)
        case ast.Global() | ast.Nonlocal():
            yield "global-state", node, ast.unparse(node)
        case ast.Import():
            for name in node.names:
                if name.name.split(".")[0] == "neuronxcc":
                    yield "neuronxcc", node, ast.unparse(node)
        case ast.ImportFrom():
            if (node.module or "").split(".")[0] == "neuronxcc":
                yield "neuronxcc", node, ast.unparse(node)
        case _:
            return


def _call(node: ast.Call) -> Iterator[Broken]:
    match node.func:
        case ast.Name("set" | "frozenset"):
            yield "set-use", node, ""
        case ast.Name("sorted"):
            yield "sorting", node, ""
        case ast.Attribute(attr="sort"):
            yield "sorting", node, ""


def _is_no_reorder(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        node = node.func
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
    return name == "no_reorder"


def _is_list(annotation: ast.expr | None) -> bool:
    if isinstance(annotation, ast.Subscript):
        return _is_list(annotation.value)
    if isinstance(annotation, ast.Attribute):
        return annotation.attr in _LISTS
    return isinstance(annotation, ast.Name) and annotation.id in _LISTS


def _is_nki_object(base: type) -> bool:
    return base.__name__ == "NKIObject" and base.__module__.split(".")[0] in ("nki", "nkisim")
