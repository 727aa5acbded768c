"""Operands that are found to be plain at once break none of the rules that are then not asked."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from isa_tiles import core, empty, on_core

from nkisim import dtypes
from nkisim.dtypes import DType
from nkisim.enums import Engine, MemoryRegion
from nkisim.errors import NkiError
from nkisim.isa import checks, matmul_checks
from nkisim.settings import Rules
from nkisim.tensor import NkiTensor

STRICT = Rules(stationary_dims="error")
SBUF, PSUM, HBM = MemoryRegion.sbuf, MemoryRegion.psum, MemoryRegion.shared_hbm


@dataclass(frozen=True)
class View:
    """A view of a new tensor: partitions `start:start + rows * step:step` of it.

    `apart`: none of the free dimensions continues another one.
    """

    rows: int
    columns: int
    region: MemoryRegion = SBUF
    dtype: DType = dtypes.float32
    start: int = 0
    step: int = 1
    middle: tuple[int, ...] = ()
    apart: bool = False

    def make(self) -> NkiTensor:
        high = self.start + self.rows * self.step
        columns = self.columns + self.apart
        tensor = empty((high, *self.middle, columns), self.dtype, self.region)
        if self.apart:
            last = len(self.middle)
            tensor = tensor.permute((0, *range(last, 0, -1), last + 1))
        found: NkiTensor = tensor[self.start : high : self.step, ..., : self.columns]
        return found


CHANGES: list[dict[str, Any]] = [
    {},
    *({"region": region} for region in (SBUF, PSUM, HBM)),
    *({"dtype": dtype} for dtype in dtypes.ALL),
    *({"start": start} for start in (1, 32, 64)),
    {"step": 2},
    *({"rows": rows} for rows in (16, 33, 128)),
    *({"columns": columns} for columns in (1, 2, 48, 128, 513, 600)),
    *({"middle": middle} for middle in ((1,), (2,), (1, 1, 1, 1), (2, 1, 2, 1), (1,) * 5)),
    *({"middle": (2,) * k, "columns": 96 >> k, "apart": True} for k in range(6)),
    *({"middle": (2,) * k, "columns": 128 >> k, "apart": True} for k in range(6)),
]


def changed(operands: tuple[View, ...]) -> Iterator[tuple[View, ...]]:
    """With every change of every operand, and every change of any two alike."""
    for change in CHANGES:
        for which in range(1, 2 ** len(operands)):
            yield tuple(
                replace(view, **change) if which >> k & 1 else view
                for k, view in enumerate(operands)
            )


def breaks(ask: Callable[[], None]) -> bool:
    try:
        ask()
    except (NkiError, TypeError):
        return True
    return False


def compare(
    plain: Callable[[list[NkiTensor]], bool],
    rules: Callable[[list[NkiTensor]], None],
    cases: Iterator[tuple[View, ...]],
    target: str,
) -> tuple[int, int]:
    """How many are plain, and how many break a rule; none does both."""

    def body() -> tuple[int, int]:
        found, broken = 0, 0
        for views in cases:
            try:
                operands = [view.make() for view in views]
            except NkiError:
                continue
            is_plain, breach = plain(operands), breaks(lambda made=operands: rules(made))
            assert not (is_plain and breach), views
            found += is_plain
            broken += breach
        return found, broken

    answer: tuple[int, int] = on_core(body, target, trace=False, rules=STRICT)
    return answer


@pytest.mark.parametrize("regions", [checks.SBUF, checks.ON_CHIP])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_plain_tiles_break_no_rule(regions: Any, count: int) -> None:
    def rules(operands: list[NkiTensor]) -> None:
        for tensor in operands:
            checks.operand(core(), "op", "dst", tensor, regions)
            checks.same_size(core(), "op", "dst", operands[0], "data", tensor)
            checks.no_packed(core(), "op", dst=tensor)
        if regions is checks.SBUF:
            named = {f"data{k}": tensor for k, tensor in enumerate(operands)}
            checks.not_both_psum(core(), "op", **named)
            checks.reach(core(), "op", Engine.gpsimd, **named)

    cases = changed((View(64, 96),) * count)
    found, broken = compare(lambda operands: checks.plain(regions, *operands), rules, cases, "gen4")
    assert found > 10
    assert broken > 5 * count


@pytest.mark.parametrize("target", ["gen2", "gen3", "gen4"])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16])
def test_plain_products_break_no_rule(target: str, dtype: DType) -> None:
    def rules(operands: list[NkiTensor]) -> None:
        out, left, right = operands
        checks.operand(core(), "op", "dst", out, checks.PSUM)
        checks.operand(core(), "op", "stationary", left, checks.SBUF)
        checks.operand(core(), "op", "moving", right, checks.SBUF)
        matmul_checks.check_dtypes(core(), out, left, right, False)
        matmul_checks.check_shapes(core(), "op", out, left, right, 1)
        matmul_checks.check_stationary_dims(core(), left)
        matmul_checks.check_indirect(core(), left, right, False, ())

    K, M, N = 64, 128, 96
    start = (View(M, N, PSUM), View(K, M, SBUF, dtype), View(K, N, SBUF, dtype))
    wide = (View(M, 512, PSUM), View(K, M, SBUF, dtype), View(K, 512, SBUF, dtype))
    cases = itertools.chain(changed(start), changed(wide))
    found, broken = compare(lambda operands: matmul_checks.plain(*operands), rules, cases, target)
    assert found > 10
    assert broken > 100


def test_what_is_no_tensor_is_not_plain() -> None:
    def body() -> None:
        tile = empty((8, 8))
        for operands in ((3.0,), (tile, None), (None, tile)):
            assert not checks.plain(checks.ON_CHIP, *operands)
        for operands in itertools.product((tile, None), repeat=3):
            assert not matmul_checks.plain(*operands)

    on_core(body)
