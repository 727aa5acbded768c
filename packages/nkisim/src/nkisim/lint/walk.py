"""Walks through a kernel in the order of its statements, and keeps what is known of its values."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterable

from nkisim.lint import names, python_rules
from nkisim.lint.calls import Calls, merged
from nkisim.lint.expressions import Frame
from nkisim.lint.source import FunctionNode
from nkisim.lint.syntax import as_read, assigned, imported, parameters
from nkisim.lint.values import (
    LocalFunction,
    Path,
    Register,
    Several,
    Tensor,
    Value,
    fold,
    merge,
)

_TENSORS = ("ndarray", "NkiTensor", "tensor")


class Walk(Calls):
    """Goes through a kernel, and once each through the functions that it calls."""

    def kernel(self, function: types.FunctionType) -> None:
        """Examines a kernel.

        Raises:
            SourceNotFoundError: its source cannot be read.
        """
        source = self.sources.of(function)
        python_rules.check_kernel(source.node, source.file, self._report)
        python_rules.check_function(source.node, source.file, self._report)
        values = {argument.arg: _parameter(argument) for argument in parameters(source.node)}
        frame = Frame(function, source.file, values)
        self.annotate(source.node, frame, source.node)
        self.body(source.node, frame)
        for value in frame.returned:
            for item in value.items if isinstance(value, Several) else (value,):
                if isinstance(item, Tensor) and not item.parameter:
                    self._result(item, source.node, frame)

    def _result(self, tensor: Tensor, node: FunctionNode, frame: Frame) -> None:
        if tensor.buffer in ("sbuf", "psum", "private_hbm"):
            self.add("output-buffer", node, frame.file, f"a result is in {tensor.buffer}")
        for used, place, file in self.collective:
            if used.origin == tensor.origin:
                self.add("collective-io", place, file, "a result of the kernel is used")

    def body(self, node: FunctionNode, frame: Frame) -> None:
        if isinstance(node, ast.Lambda):
            frame.returned.append(self.expression(node.body, frame))
        else:
            self._block(node.body, frame)

    def _block(self, statements: Iterable[ast.stmt], frame: Frame) -> None:
        for node in statements:
            self._statement(node, frame)

    def _statement(self, node: ast.stmt, frame: Frame) -> None:
        match node:
            case ast.Assign():
                value = self.expression(node.value, frame)
                for target in node.targets:
                    self.bind(target, value, frame)
            case ast.AnnAssign():
                value = None if node.value is None else self.expression(node.value, frame)
                self.bind(node.target, value, frame)
            case ast.AugAssign():
                self._augmented(node, frame)
            case ast.Return():
                if node.value is not None:
                    frame.returned.append(self.expression(node.value, frame))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                frame.values[node.name] = LocalFunction(node)
            case ast.ClassDef():
                frame.values[node.name] = None
            case ast.Import() | ast.ImportFrom():
                for local, path in imported(node):
                    frame.values[local] = Path(names.shorten(path))
            case ast.Assert():
                self.test(node.test, frame)
            case ast.If() | ast.For() | ast.While() | ast.With() | ast.Try() | ast.TryStar():
                self._compound(node, frame)
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.expression(child, frame)

    def _augmented(self, node: ast.AugAssign, frame: Frame) -> None:
        left = self.expression(as_read(node.target), frame)
        right = self.expression(node.value, frame)
        self.no_registers(node, (left, right), frame)
        self.bind(node.target, fold(node.op, left, right), frame)

    def _compound(
        self, node: ast.If | ast.For | ast.While | ast.With | ast.Try | ast.TryStar, frame: Frame
    ) -> None:
        match node:
            case ast.If():
                self.test(node.test, frame)
                self._branches([node.body, node.orelse], frame)
            case ast.While():
                if isinstance(self.expression(node.test, frame), Register):
                    self.add("register-while", node.test, frame.file, ast.unparse(node.test))
                self.test(node.test, frame)
                self._repeated(node.body, frame)
                self._block(node.orelse, frame)
            case ast.For():
                self._for(node, frame)
            case ast.With():
                self._with(node, frame)
            case ast.Try() | ast.TryStar():
                handlers = [handler.body for handler in node.handlers]
                self._branches([node.body + node.orelse, *handlers], frame)
                self._block(node.finalbody, frame)

    def _branches(self, bodies: list[list[ast.stmt]], frame: Frame) -> None:
        before = dict(frame.values)
        results = []
        for body in bodies:
            frame.values = dict(before)
            self._block(body, frame)
            results.append(frame.values)
        frame.values = results[0]
        for other in results[1:]:
            frame.values = _joined(frame.values, other)

    def _repeated(self, body: list[ast.stmt], frame: Frame) -> None:
        # what the body assigns may come from the iteration before
        for name in assigned(body) & frame.values.keys():
            frame.values[name] = None
        self._block(body, frame)

    def _for(self, node: ast.For, frame: Frame) -> None:
        iterated = self.expression(node.iter, frame)
        element: Value = None
        if iterated == Path("nl.dynamic_range"):
            element = Register()
        elif isinstance(iterated, Several):
            element = merged(list(iterated.items))
        elif isinstance(iterated, Register):
            self.add("register-control-flow", node.iter, frame.file, ast.unparse(node.iter))
        self.bind(node.target, element, frame)
        self._repeated(node.body, frame)
        self._block(node.orelse, frame)

    def _with(self, node: ast.With, frame: Frame) -> None:
        ordered = 0
        for item in node.items:
            ordered += self.expression(item.context_expr, frame) == Path("nl.no_reorder")
            if item.optional_vars is not None:
                self.bind(item.optional_vars, None, frame)
        frame.no_reorder += ordered
        self._block(node.body, frame)
        frame.no_reorder -= ordered


def _parameter(argument: ast.arg) -> Value:
    """A parameter of the kernel: a tensor for certain only if it is annotated as one."""
    if argument.annotation is None:
        return Tensor(argument.arg, parameter=True, certain=False, buffer="hbm")
    annotation = ast.unparse(argument.annotation)
    if any(name in annotation for name in _TENSORS):
        return Tensor(argument.arg, parameter=True, buffer="hbm")
    return None


def _joined(first: dict[str, Value], second: dict[str, Value]) -> dict[str, Value]:
    """What holds after two branches: a name that only one of them has keeps its value."""
    return {
        name: merge(first.get(name, second.get(name)), second.get(name, first.get(name)))
        for name in first.keys() | second.keys()
    }
