"""Runs without values: what a view means whose index they do not compute."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import nkisim.isa as nisa
import nkisim.language as nl
from nkisim import TensorSpec, World, simulate
from nkisim.enums import OobMode
from nkisim.errors import NkiValidationError
from nkisim.trace import Access

TABLE = np.arange(48, dtype=np.float32).reshape(8, 6)
ROWS = np.array([[5], [0], [7], [2]], np.int32)
PATTERN = [[6, 4], [1, 6]]

Views = Callable[[Any, Any], Any]


def _vector(table: Any, index: Any) -> Any:
    return table.ap(PATTERN, vector_offset=index)


def _selected(table: Any, index: Any) -> Any:
    return table.vector_select(0, index)


def _scalar(table: Any, index: Any) -> Any:
    return table.ap([[6, 1], [1, 6]], scalar_offset=index[0:1, 0:1], indirect_dim=0)


def _register(table: Any, index: Any) -> Any:
    register = nisa.register_alloc(index[0:1, 0:1])
    return table.ap([[6, 1], [1, 6]], scalar_offset=register, indirect_dim=0)


VIEWS: list[Views] = [_vector, _selected, _scalar, _register]


def _load(view: Any) -> Any:
    tile = nl.ndarray(view.shape, view.dtype, nl.sbuf)
    nisa.dma_copy(tile, view)
    return tile


def _zeros(view: Any) -> Any:
    zeros = nl.ndarray(view.shape, view.dtype, nl.sbuf)
    nisa.memset(zeros, 0.0)
    return zeros


def _gather(view: Any) -> None:
    _load(view)


def _gather_what_is_there(view: Any) -> None:
    nisa.dma_copy(_zeros(view), view, oob_mode=OobMode.skip)


def _scatter(view: Any) -> None:
    nisa.dma_copy(view, _zeros(view))


def _scatter_what_fits(view: Any) -> None:
    nisa.dma_copy(view, _zeros(view), oob_mode=OobMode.skip)


def _scatter_add(view: Any) -> None:
    nisa.dma_compute(view, [view, _zeros(view)], nl.add)


USES = [_gather, _gather_what_is_there, _scatter, _scatter_what_fits]
CASES = [*itertools.product(VIEWS, USES), (_vector, _scatter_add), (_selected, _scatter_add)]


@pytest.mark.parametrize(("view", "use"), CASES)
@pytest.mark.parametrize(("ranks", "lnc"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_what_has_values_does_not_tell_the_instructions(
    view: Views, use: Callable[[Any], None], ranks: int, lnc: int
) -> None:
    """The record is that of a run with values, from arrays and from their shapes alike."""

    def kernel(table: Any, rows: Any) -> Any:
        if nl.program_id(0) == 0:
            use(view(table, _load(rows)))
        return table

    def record(numerics: bool, given: list[tuple[Any, Any]]) -> Any:
        _, trace = World(ranks, lnc, "trn2", numerics=numerics).launch(kernel, given)
        return [[(i.op, _bytes(i.reads), _bytes(i.writes)) for i in core] for core in trace.cores]

    arrays = [(TABLE.copy(), ROWS) for _ in range(ranks)]
    specs = (TensorSpec(TABLE.shape, nl.float32), TensorSpec(ROWS.shape, nl.int32))
    found = record(False, arrays)
    assert found == record(False, [specs] * ranks)
    assert found == record(True, arrays)


def _bytes(accesses: Sequence[Access]) -> list[Any]:
    names = Access.__slots__
    return [[a.place.name, *(getattr(a, n) for n in names if n != "place")] for a in accesses]


def test_a_register_holds_what_is_known() -> None:
    def kernel(numbers: Any, index: Any) -> Any:
        def at(chosen: Any) -> Any:
            row = numbers.ap([[1, 1], [1, 1]], scalar_offset=chosen, indirect_dim=0)
            return nisa.register_alloc(row).value

        tile = _load(index)
        loaded.append([at(nisa.register_alloc(index)), at(nisa.register_alloc(tile)), at(tile)])
        nisa.dma_copy(numbers[5:6], _zeros(numbers[5:6]))
        loaded.append(at(nisa.register_alloc(index)))
        return numbers

    index = np.array([[5]], np.int32)
    loaded: list[Any] = []
    simulate(kernel)(TABLE.copy(), index)
    assert loaded == [[30, 30, 30], 0]
    loaded.clear()
    simulate(kernel, numerics=False)(TABLE.copy(), index)
    assert loaded == [[30, None, None], None]


def test_what_is_printed_is_what_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    def kernel(numbers: Any, index: Any) -> Any:
        nl.device_print("given", numbers[0:1, 0:2])
        nl.device_print("chosen", numbers.ap([[6, 1], [1, 2]], vector_offset=_load(index)))
        nisa.dma_copy(numbers[1:2], _zeros(numbers[1:2]))
        nl.device_print("written", numbers[1:2, 0:2])
        return numbers

    index = np.array([[5]], np.int32)
    simulate(kernel, numerics=False)(TABLE.copy(), index)
    assert capsys.readouterr().out == (
        "given [1, 2] float32\n[[0. 1.]]\nchosen [1, 2] float32\nwritten [1, 2] float32\n"
    )
    simulate(kernel)(TABLE.copy(), index)
    assert "chosen [1, 2] float32\n[[30. 31.]]" in capsys.readouterr().out


def test_with_values_an_index_must_be_set() -> None:
    def kernel(numbers: Any) -> Any:
        nisa.register_alloc(numbers.ap([[1, 1]], scalar_offset=nisa.register_alloc()))

    with pytest.raises(NkiValidationError, match="the register holds no value"):
        simulate(kernel)(TABLE)
