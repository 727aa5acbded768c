"""Follows calls: to NKI's functions, to functions of the kernel's module, to methods."""

from __future__ import annotations

import ast
import inspect
import types
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nkisim.lint import device_rules, names, python_rules
from nkisim.lint.expressions import Expressions, Frame
from nkisim.lint.rules import Report
from nkisim.lint.source import FunctionNode, SourceNotFoundError, Sources, python_function
from nkisim.lint.syntax import parameters, positional
from nkisim.lint.values import (
    Instance,
    LocalFunction,
    Path,
    PythonObject,
    Register,
    Tensor,
    Value,
    merge,
    view,
)

_VIEW_PARAMETERS = {"reshape": ("shape",), "ap": ("pattern", "offset")}
_CHANGES = frozenset(
    {
        *("append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse"),
        *("update", "setdefault", "popitem", "add", "discard"),
    }
)
_TO_PYTHON = (
    *(f"builtins.{name}" for name in ("int", "float", "bool", "range")),
    *(f"nl.{name}" for name in ("affine_range", "sequential_range", "static_range")),
)
_LOOPS = ("nl.fori_loop", "nl.while_loop", "nl.dynamic_range")
# what these return is told by their path
_KEPT = ("nl.dynamic_range", "nl.no_reorder", "nl.ds")
_CONSTANT = Path("nl.shared_constant")


class Calls(Expressions):
    """Knows what calls return, and goes through each function that they reach, once."""

    def __init__(self, report: Report) -> None:
        super().__init__(report)
        self.sources = Sources()
        # operands of collectives, looked at again when the kernel's results are known
        self.collective: list[tuple[Tensor, ast.AST, str]] = []
        self._seen: set[Any] = set()
        self._in_constant = 0

    @abstractmethod
    def body(self, node: FunctionNode, frame: Frame) -> None:
        """Walks through the statements of a function."""

    def call(self, node: ast.Call, frame: Frame) -> Value:
        callee: Value
        if isinstance(node.func, ast.Attribute):
            owner = self.expression(node.func.value, frame)
            if isinstance(owner, PythonObject) and not callable(owner.item):
                owner = Instance(type(owner.item))
            if isinstance(owner, Tensor):
                known = _VIEW_PARAMETERS.get(node.func.attr, ())
                return view(owner, node.func.attr, self._bound(node, known, frame))
            if node.func.attr in _CHANGES and not isinstance(owner, Path):
                self.changes_outside(node.func.value, node, frame)
            if isinstance(owner, Instance):
                return self._method(owner, node.func.attr, node, frame)
            callee = self.attribute(node.func, owner, frame)
        else:
            callee = self.expression(node.func, frame)
        return self._called(callee, node, frame)

    def _called(self, callee: Value, node: ast.Call, frame: Frame) -> Value:
        self._in_constant += callee == _CONSTANT
        bound = self._bound(node, _parameter_names(callee), frame)
        self._in_constant -= callee == _CONSTANT
        match callee:
            case Path():
                return self._library(callee.path, node, bound, frame)
            case LocalFunction():
                return self._local(callee, bound, frame)
            case PythonObject() if isinstance(callee.item, type):
                return self._construct(callee.item, bound, node, frame)
            case PythonObject():
                return self._object(callee.item, bound, node, frame)
            case _:
                return None

    def _bound(self, node: ast.Call, known: tuple[str, ...], frame: Frame) -> dict[str, Value]:
        return {name: self.expression(argument, frame) for name, argument in _named(node, known)}

    # Functions of the kernel's author

    def follow(
        self, function: types.FunctionType, bound: dict[str, Value], place: ast.AST, frame: Frame
    ) -> Value:
        """Goes through `function`, called at `place`, unless that was done before."""
        if function in self._seen or not names.is_user_code(function):
            return None
        self._seen.add(function)
        try:
            source = self.sources.of(function)
        except SourceNotFoundError as error:
            self.add("unseen-helper", place, frame.file, str(error))
            return None
        values = {argument.arg: None for argument in parameters(source.node)} | bound
        inner = Frame(function, source.file, values, no_reorder=frame.no_reorder)
        self.annotate(source.node, inner, place)
        python_rules.check_function(source.node, source.file, self._report)
        self.body(source.node, inner)
        return merged(inner.returned)

    def annotate(self, node: FunctionNode, frame: Frame, place: ast.AST) -> None:
        """Takes the classes of parameters about which nothing is known from their annotations."""
        for argument in parameters(node):
            if frame.values.get(argument.arg) is None and isinstance(argument.annotation, ast.Name):
                value = names.lookup(frame.function, argument.annotation.id)
                if isinstance(value, PythonObject) and isinstance(value.item, type):
                    self._class(value.item, place, frame)
                    frame.values[argument.arg] = Instance(value.item)

    def _local(self, function: LocalFunction, bound: dict[str, Value], frame: Frame) -> Value:
        if function.node in self._seen:
            return None
        self._seen.add(function.node)
        values = frame.values | {argument.arg: None for argument in parameters(function.node)}
        inner = Frame(frame.function, frame.file, values | bound, no_reorder=frame.no_reorder)
        self.body(function.node, inner)
        return merged(inner.returned)

    def _object(self, item: Any, bound: dict[str, Value], node: ast.Call, frame: Frame) -> Value:
        try:
            function = python_function(item)
        except SourceNotFoundError as error:
            if names.is_user_code(item):
                self.add("unseen-helper", node, frame.file, str(error))
            return None
        except TypeError:
            return self._method(Instance(type(item)), "__call__", node, frame)
        return self.follow(function, bound, node, frame)

    def _method(self, owner: Instance, name: str, node: ast.Call, frame: Frame) -> Value:
        found = inspect.getattr_static(owner.kind, name, None)
        if isinstance(found, staticmethod):
            return self._called(PythonObject(found.__func__), node, frame)
        if not isinstance(found, types.FunctionType):
            self._bound(node, (), frame)
            return None
        first, *others = positional(found)
        bound = self._bound(node, tuple(others), frame)
        return self.follow(found, bound | {first: owner}, node, frame)

    def _construct(
        self, kind: type, bound: dict[str, Value], node: ast.Call, frame: Frame
    ) -> Value:
        if not names.is_user_code(kind):
            return None
        self._class(kind, node, frame)
        for name in ("__init__", "__post_init__"):
            found = kind.__dict__.get(name)
            # dataclasses make an __init__ that has no source
            if isinstance(found, types.FunctionType) and found.__code__.co_filename != "<string>":
                given = bound if name == "__init__" else {}
                self.follow(found, given | {positional(found)[0]: Instance(kind)}, node, frame)
        return Instance(kind)

    def _class(self, kind: type, place: ast.AST, frame: Frame) -> None:
        if kind in self._seen or not names.is_user_code(kind):
            return
        self._seen.add(kind)
        try:
            node, file = self.sources.of_class(kind)
        except SourceNotFoundError as error:
            self.add("unseen-helper", place, frame.file, str(error))
            return
        python_rules.check_class(kind, node, file, self._report)

    # Functions of NKI and of other libraries

    def _library(self, path: str, node: ast.Call, bound: dict[str, Value], frame: Frame) -> Value:
        top = path.split(".")[0]
        if top in names.FOREIGN and not self._in_constant:
            self.add("foreign-call", node, frame.file, path)
        if path in _TO_PYTHON and any(isinstance(value, Register) for value in bound.values()):
            self.add("register-control-flow", node, frame.file, ast.unparse(node))
        if path == "builtins.print":
            self._print(node, frame)
        if path in _LOOPS:
            self._loop(path, bound, node, frame)
        return self._instruction(path, node, bound, frame) if top in names.SHORT else None

    def _instruction(
        self, path: str, node: ast.Call, bound: dict[str, Value], frame: Frame
    ) -> Value:
        known = device_rules.PARAMETERS.get(path, ())
        spelled = {name: ast.unparse(argument) for name, argument in _named(node, known)}
        call = device_rules.Call(path, bound, spelled)
        for rule, detail in device_rules.check_call(call):
            self.add(rule, node, frame.file, detail)
        if path.startswith("ncc."):
            for name in bound:
                self.collective += [(tensor, node, frame.file) for tensor in call.tensors(name)]
        if path in _KEPT:
            return Path(path)
        value = device_rules.result(call)
        if isinstance(value, Tensor):
            return replace(value, origin=f"{frame.file}:{node.lineno}:{node.col_offset}")
        return value

    def _loop(self, path: str, bound: dict[str, Value], node: ast.Call, frame: Frame) -> None:
        if frame.no_reorder:
            self.add("no-reorder-loop", node, frame.file, path)
        body = bound.get("body_fun", bound.get("body"))
        if isinstance(body, LocalFunction):
            first = parameters(body.node)[:1]
            self._local(body, {argument.arg: Register() for argument in first}, frame)
        elif isinstance(body, PythonObject) and isinstance(body.item, types.FunctionType):
            given: dict[str, Value] = {name: Register() for name in positional(body.item)[:1]}
            self.follow(body.item, given, node, frame)

    def _print(self, node: ast.Call, frame: Frame) -> None:
        for argument in node.args:
            parts = argument.values if isinstance(argument, ast.JoinedStr) else [argument]
            for part in parts:
                shown = part.value if isinstance(part, ast.FormattedValue) else part
                value = self.expression(shown, frame)
                if isinstance(value, Tensor) and value.certain:
                    self.add("print-tensor", node, frame.file, ast.unparse(shown))


def merged(values: list[Value]) -> Value:
    """What is known of a value that is any of `values`."""
    result = values[0] if values else None
    for value in values[1:]:
        result = merge(result, value)
    return result


def _named(node: ast.Call, known: tuple[str, ...]) -> Iterator[tuple[str, ast.expr]]:
    """The arguments of a call with the names of their parameters, `#2` where that is not known."""
    for position, argument in enumerate(node.args):
        yield known[position] if position < len(known) else f"#{position}", argument
    for keyword in node.keywords:
        yield keyword.arg or "**", keyword.value


def _parameter_names(callee: Value) -> tuple[str, ...]:
    match callee:
        case Path():
            return device_rules.PARAMETERS.get(callee.path, ())
        case LocalFunction():
            return tuple(argument.arg for argument in parameters(callee.node))
        case PythonObject() if isinstance(callee.item, type):
            found = callee.item.__dict__.get("__init__")
            return positional(found)[1:] if isinstance(found, types.FunctionType) else ()
        case PythonObject():
            try:
                return positional(python_function(callee.item))
            except (SourceNotFoundError, TypeError):
                return ()
        case _:
            return ()
