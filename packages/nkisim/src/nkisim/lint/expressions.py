"""Evaluates expressions as far as that goes without running the kernel."""

from __future__ import annotations

import ast
import inspect
import types
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from nkisim.lint import device_rules, names
from nkisim.lint.rules import Report
from nkisim.lint.values import (
    TILE_SIZE,
    Known,
    LocalFunction,
    Part,
    Path,
    PythonObject,
    Register,
    Several,
    Tensor,
    Value,
    fold,
    integer,
    merge,
    subscript,
)


@dataclass
class Frame:
    """One function while it is walked through.

    Attributes:
        function: whose globals and closure say what free names mean
        file: where its source is
        values: what is known of its local names
        returned: what its `return` statements gave
        no_reorder: how many `with nl.no_reorder()` it stands in
    """

    function: types.FunctionType
    file: str
    values: dict[str, Value] = field(default_factory=dict)
    returned: list[Value] = field(default_factory=list)
    no_reorder: int = 0


class Expressions(ABC):
    """Knows what expressions evaluate to, and reports the rules that they break."""

    def __init__(self, report: Report) -> None:
        self._report = report

    @abstractmethod
    def call(self, node: ast.Call, frame: Frame) -> Value:
        """What is known of the result of a call."""

    def add(self, rule: str, node: ast.AST, file: str, detail: str) -> None:
        """Reports that `node` breaks `rule`."""
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        self._report.add(rule, file, line, column + 1, detail)

    def expression(self, node: ast.expr, frame: Frame) -> Value:
        """What is known of the value of `node`."""
        match node:
            case ast.Constant():
                return Known(node.value)
            case ast.Name():
                return self._name(node, frame)
            case ast.Attribute():
                return self.attribute(node, self.expression(node.value, frame), frame)
            case ast.Subscript():
                return self._subscript(node, frame)
            case ast.Call():
                return self.call(node, frame)
            case ast.Tuple() | ast.List():
                items = tuple(self.expression(element, frame) for element in node.elts)
                starred = any(isinstance(element, ast.Starred) for element in node.elts)
                return None if starred else Several(items)
            case ast.Lambda():
                return LocalFunction(node)
            case ast.NamedExpr():
                value = self.expression(node.value, frame)
                self.bind(node.target, value, frame)
                return value
            case _:
                return self._operation(node, frame)

    def _operation(self, node: ast.expr, frame: Frame) -> Value:
        match node:
            case ast.BinOp():
                left, right = self.expression(node.left, frame), self.expression(node.right, frame)
                self.no_registers(node, (left, right), frame)
                return fold(node.op, left, right)
            case ast.UnaryOp():
                return self._unary(node, frame)
            case ast.Compare():
                self._compare(node, frame)
            case ast.BoolOp():
                for operand in node.values:
                    self.test(operand, frame)
            case ast.IfExp():
                self.test(node.test, frame)
                then = self.expression(node.body, frame)
                return merge(then, self.expression(node.orelse, frame))
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                self._comprehension(node, frame)
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.expression(child, frame)
        return None

    def test(self, node: ast.expr, frame: Frame) -> None:
        """Evaluates a condition, which may not be a register."""
        if isinstance(self.expression(node, frame), Register):
            self.add("register-control-flow", node, frame.file, ast.unparse(node))

    def no_registers(self, node: ast.AST, values: Iterable[Value], frame: Frame) -> None:
        """Reports arithmetic on registers."""
        if any(isinstance(value, Register) for value in values):
            self.add("register-arithmetic", node, frame.file, ast.unparse(node))

    def bind(self, target: ast.expr, value: Value, frame: Frame) -> None:
        """Assigns `value` to `target`."""
        match target:
            case ast.Name():
                frame.values[target.id] = value
            case ast.Tuple() | ast.List():
                items: tuple[Value, ...] = (None,) * len(target.elts)
                if isinstance(value, Several) and len(value.items) == len(items):
                    items = value.items
                for element, item in zip(target.elts, items, strict=True):
                    self.bind(element, item, frame)
            case ast.Starred():
                self.bind(target.value, None, frame)
            case ast.Subscript():
                self.expression(target.value, frame)
                self.expression(target.slice, frame)
                self.changes_outside(target.value, target, frame)
            case ast.Attribute():
                self.changes_outside(target.value, target, frame)

    def changes_outside(self, changed: ast.expr, place: ast.AST, frame: Frame) -> None:
        """Reports a change of something that is not local to the function."""
        root = changed
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        local = not isinstance(root, ast.Name) or root.id in frame.values
        if not local and names.is_outer(frame.function, ast.unparse(root)):
            self.add("global-state", place, frame.file, ast.unparse(changed))

    def _name(self, node: ast.Name, frame: Frame) -> Value:
        if node.id in frame.values:
            return frame.values[node.id]
        value = names.lookup(frame.function, node.id)
        if isinstance(value, Path):
            self._path(value.path, node, frame)
        return value

    def _path(self, path: str, node: ast.AST, frame: Frame) -> None:
        for rule, detail in device_rules.check_path(path):
            self.add(rule, node, frame.file, detail)

    def attribute(self, node: ast.Attribute, owner: Value, frame: Frame) -> Value:
        """What is known of an attribute of `owner`."""
        match owner:
            case Path("nl.tile_size") if node.attr in TILE_SIZE:
                return Known(TILE_SIZE[node.attr])
            case Path():
                path = names.shorten(f"{owner.path}.{node.attr}")
                self._path(path, node, frame)
                return Path(path)
            case Tensor():
                return _tensor_attribute(owner, node.attr)
            case PythonObject():
                missing = object()
                found = inspect.getattr_static(owner.item, node.attr, missing)
                return None if found is missing else names.of_object(found)
            case _:
                return None

    def _subscript(self, node: ast.Subscript, frame: Frame) -> Value:
        value = self.expression(node.value, frame)
        if isinstance(value, Tensor):
            indices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return subscript(value, self._parts(indices, value, frame))
        index = integer(self.expression(node.slice, frame))
        if isinstance(value, Several) and index is not None:
            inside = -len(value.items) <= index < len(value.items)
            return value.items[index] if inside else None
        # kernel[2] is the same kernel with a launch grid
        return value if isinstance(value, PythonObject) and callable(value.item) else None

    def _parts(
        self, indices: list[ast.expr], tensor: Tensor, frame: Frame
    ) -> tuple[Part, ...] | None:
        parts: list[Part] = []
        understood = True
        shape = tensor.shape or ()
        for dim, index in enumerate(indices):
            if isinstance(index, ast.Slice):
                parts.append(self._slice(index, shape[dim] if dim < len(shape) else None, frame))
                continue
            value = self.expression(index, frame)
            if value == Path("nl.ds"):
                parts.append(self._ds(index, frame))
            elif isinstance(value, Known) and type(value.value) is int:
                parts.append(Part(value.value if value.value >= 0 else None, 1, drops=True))
            elif value != Known(...) or len(indices) > 1:
                understood = False
        return tuple(parts) if understood else None

    def _slice(self, node: ast.Slice, extent: int | None, frame: Frame) -> Part:
        ends = [
            None if end is None else self.expression(end, frame)
            for end in (node.lower, node.upper, node.step)
        ]
        start = 0 if node.lower is None else _counted(integer(ends[0]), extent)
        stop = extent if node.upper is None else _counted(integer(ends[1]), extent)
        if node.step is not None or start is None or stop is None:
            return Part(start, None)
        return Part(start, stop - start)

    def _ds(self, node: ast.expr, frame: Frame) -> Part:
        if not isinstance(node, ast.Call):
            return Part(None, None)
        values = [self.expression(argument, frame) for argument in node.args[:2]]
        values += [self.expression(keyword.value, frame) for keyword in node.keywords]
        return (
            Part(integer(values[0]), integer(values[1])) if len(values) == 2 else Part(None, None)
        )

    def _unary(self, node: ast.UnaryOp, frame: Frame) -> Value:
        if isinstance(node.op, ast.Not):
            self.test(node.operand, frame)
            return None
        value = self.expression(node.operand, frame)
        self.no_registers(node, (value,), frame)
        return fold(ast.Sub(), Known(0), value) if isinstance(node.op, ast.USub) else None

    def _compare(self, node: ast.Compare, frame: Frame) -> None:
        values = [self.expression(side, frame) for side in (node.left, *node.comparators)]
        # a comparison with None asks whether the register was given
        if Known(None) not in values:
            self.no_registers(node, values, frame)

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, frame: Frame
    ) -> None:
        inner = replace(frame, values=dict(frame.values))
        for part in node.generators:
            self.expression(part.iter, inner)
            self.bind(part.target, None, inner)
            for condition in part.ifs:
                self.test(condition, inner)
        for element in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
            self.expression(element, inner)


def _counted(index: int | None, extent: int | None) -> int | None:
    """A slice's end, counted from the front."""
    if index is None or index >= 0:
        return index
    return None if extent is None else extent + index


def _tensor_attribute(tensor: Tensor, name: str) -> Value:
    if name == "shape" and tensor.shape is not None:
        return Several(tuple(None if size is None else Known(size) for size in tensor.shape))
    if name == "dtype" and tensor.dtype is not None:
        return Known(tensor.dtype)
    if name == "buffer" and tensor.buffer is not None and not tensor.parameter:
        return Path(f"nl.{tensor.buffer}")
    return None
