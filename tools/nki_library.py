"""A checkout of github.com/aws-neuron/nki-library: its kernels, and the tables of its tests."""

from __future__ import annotations

import ast
import importlib
import operator
import sys
from pathlib import Path
from typing import Any

import nkisim

_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def load(checkout: Path, module: str) -> Any:
    """A module of the library, with nkisim as its `nki`.

    Raises:
        SystemExit: another `nki` is installed.
        ImportError: the checkout has no such module.
    """
    if not nkisim.install():
        raise SystemExit("an nki other than nkisim is installed; this program needs nkisim")
    sys.path.insert(0, str(checkout / "src"))
    return importlib.import_module(module)


def assigned(path: Path) -> dict[str, ast.expr]:
    """What a file assigns to names, wherever in it, as expressions; of several the last."""
    return {
        node.targets[0].id: node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


def constant(node: ast.expr) -> Any:
    """A literal, a name's last part (a data type), or arithmetic such as 16 * 1024 + 16.

    Raises:
        ValueError: it is anything else.
    """
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Tuple):
        return tuple(constant(item) for item in node.elts)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](constant(node.left), constant(node.right))
    return ast.literal_eval(node)
