"""Kernels of several ranks and cores: moving each core's share, and dense statements in NumPy."""

from __future__ import annotations

import inspect
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import nkisim.isa as nisa
import nkisim.language as nl
from nkisim.errors import NkiWarning
from nkisim.simulation import World
from nkisim.tensor import NkiTensor

Array = npt.NDArray[Any]
Groups = Sequence[Sequence[int]]

# nothing here may hang the test run itself
PATIENCE = 30.0

LNCS = [1, 2]
OPS = {"add": nl.add, "minimum": nl.minimum, "maximum": nl.maximum}


def my_rows(rows: int) -> slice | None:
    """The rows that this core moves: all, or its half; None where there is no row for it."""
    if nl.num_programs() == 1:
        return slice(0, rows)
    half = (rows + 1) // 2
    start, end = (0, half) if nl.program_id(0) == 0 else (half, rows)
    return slice(start, end) if start < end else None


def share(dst: NkiTensor, src: NkiTensor) -> None:
    """Copy this core's rows."""
    rows = my_rows(src.shape[0])
    if rows is not None:
        nisa.dma_copy(dst[rows], src[rows])


def staged(x: NkiTensor, name: str, buffer: Any = nl.shared_hbm) -> NkiTensor:
    """A tensor of its own for a collective, with the values of an argument."""
    made = nl.ndarray(x.shape, x.dtype, buffer, name=name)
    if buffer is nl.shared_hbm:
        share(made, x)
    else:
        nisa.dma_copy(made, x)
    return made


def handed_over(result: NkiTensor, name: str) -> NkiTensor:
    """A tensor to return, with the values of what a collective has written."""
    out = nl.ndarray(result.shape, result.dtype, nl.shared_hbm, name=name)
    share(out, result)
    return out


def group_of(groups: Groups, rank: int, ranks: int) -> list[int]:
    """The ranks that exchange data with `rank`."""
    if not groups:
        return list(range(ranks))
    return next(list(group) for group in groups if rank in group)


def sample(shape: tuple[int, ...], dtype: Any, seed: int) -> Any:
    """Whole numbers, so that sums of a few are exact in all types but those of 8 bits."""
    rng = np.random.default_rng(seed)
    low = 0 if np.dtype(dtype).kind == "u" else -9
    return rng.integers(low, 10, shape).astype(np.float32).astype(dtype)


def reduced(arrays: list[Any], op: str) -> Any:
    """`op` over all arrays, exactly, and rounded or saturated once."""
    dtype = arrays[0].dtype
    stack = np.stack([array.astype(np.float64) for array in arrays])
    total = {"add": np.sum, "minimum": np.min, "maximum": np.max}[op](stack, axis=0)
    if dtype.kind in "iu":
        total = np.clip(total, np.iinfo(dtype).min, np.iinfo(dtype).max)
    return total.astype(np.float32).astype(dtype)


def same(found: Any, wanted: Any) -> None:
    """Equal elements of one type."""
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))


def quiet(world: World, kernel: Any, inputs: Sequence[Any]) -> list[Any]:
    """The results of a run that reports nothing at all."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", NkiWarning)
        return bounded(lambda: world.run(kernel, inputs))


def bounded(call: Callable[[], Any]) -> Any:
    """What `call` returns or raises; fails if it takes too long, or leaves a thread behind."""
    outcome: dict[str, Any] = {}
    before = set(threading.enumerate())

    def run() -> None:
        try:
            outcome["result"] = call()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "the run hangs"
    # a thread that was told to end may take a moment
    end = time.monotonic() + 2
    while set(threading.enumerate()) - before and time.monotonic() < end:
        time.sleep(0.01)
    assert set(threading.enumerate()) <= before
    if "error" in outcome:
        raise outcome["error"]
    return outcome["result"]


def fails(kind: type[BaseException], call: Callable[[], Any], *texts: str) -> str:
    """The text and the notes of the error that `call` ends with; it has all of `texts`."""
    with pytest.raises(kind) as raised:
        bounded(call)
    told = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
    for text in texts:
        assert text in told, told
    return told


def line_of(function: Callable[..., Any], marker: str) -> str:
    """`file:line` of the line of `function` that has `marker`."""
    lines, first = inspect.getsourcelines(inspect.unwrap(function))
    found = [first + i for i, line in enumerate(lines) if marker in line]
    assert len(found) == 1, (marker, found)
    return f"{inspect.getsourcefile(inspect.unwrap(function))}:{found[0]}"
