"""What the linter follows from a kernel: helpers, methods, closures and branches."""

from __future__ import annotations

from typing import Any

from lint_marks import marked as _marked

import nkisim.isa as nisa
import nkisim.language as nl
from nkisim.kernel import jit
from nkisim.lint import lint

P = 128


def _inner(tile: Any) -> None:
    nisa.memset(tile[1:2], 0.0)  # here


def _outer(tile: Any, depth: int) -> None:
    if depth:
        _outer(tile, depth - 1)
    _inner(tile)


def test_helpers_are_followed_once_and_recursion_ends() -> None:
    def kernel(x: Any) -> None:
        tile = nl.ndarray((P, 8), nl.float32)
        _outer(tile, 3)
        _outer(tile, 4)

    assert [(finding.rule, finding.line) for finding in lint(kernel)] == [
        ("partition-start", *_marked(_inner))
    ]


class Stage(nl.NKIObject):
    def __init__(self, start: int):
        self.start = start

    def run(self, tile: Any) -> None:
        self.clear(tile[3:4])

    def clear(self, tile: Any) -> None:
        nisa.memset(tile, 0.0)  # here


def test_methods_closures_and_jitted_helpers_are_followed() -> None:
    tile_rows = 7

    @jit
    def helper(tile: Any) -> None:
        nisa.memset(tile[tile_rows:P], 0.0)  # here

    def kernel(x: Any) -> None:
        tile = nl.ndarray((P, 8), nl.float32)
        Stage(0).run(tile)
        helper(tile)

    found = {(finding.rule, finding.line) for finding in lint(kernel)}
    assert found == {
        ("partition-start", *_marked(Stage.clear)),
        ("partition-start", *_marked(helper.function)),
    }


def test_branches_that_disagree_leave_a_value_unknown() -> None:
    def kernel(x: Any, packed: bool) -> None:
        dtype = nl.int32
        tile = nl.ndarray((P, 8), nl.float32)
        if packed:
            dtype = nl.float32
            tile = nl.ndarray((P, 1), nl.float32)
        wide = nl.ndarray((P, 8), nl.float32)
        nisa.tensor_tensor(wide, wide, tile, nl.add)
        nisa.memset(nl.ndarray((P, 8), dtype), 1.0)

    assert lint(kernel) == []
