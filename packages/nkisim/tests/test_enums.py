"""Enumerations of NKI: their values, how they print, and what stands for a member."""

from __future__ import annotations

import enum
from typing import Any

import pytest

import nkisim.isa as nisa
from nkisim.enums import MemoryRegion, member

# nki-api, as published in the stubs of NKI 0.6
VALUES: dict[type[enum.Enum], dict[str, Any]] = {
    nisa.engine: {
        "unknown": 0, "tensor": 1, "scalar": 2, "gpsimd": 3, "dma": 4, "vector": 5, "sync": 6
    },
    nisa.reduce_cmd: {"idle": 0, "reset": 1, "reduce": 2, "reset_reduce": 3, "load_reduce": 4},
    nisa.dge_mode: {"unknown": 0, "swdge": 1, "hwdge": 2, "none": 3},
    nisa.oob_mode: {"error": 0, "skip": 1},
    nisa.matmul_perf_mode: {"none": "none", "double_row": "double_row"},
    nisa.nc_version: {"gen2": 2, "gen3": 3, "gen4": 4},
    nisa.dma_engine: {"dma": 1, "gpsimd_dma": 2},
    MemoryRegion: {
        "sbuf": "sbuf", "psum": "psum", "private_hbm": "private_hbm", "shared_hbm": "shared_hbm"
    },
}  # fmt: skip
MEMBERS = [pytest.param(one, id=repr(one)) for kind in VALUES for one in kind]


@pytest.mark.parametrize("kind", VALUES)
def test_the_members_are_those_of_nki(kind: type[enum.Enum]) -> None:
    assert {one.name: one.value for one in kind} == VALUES[kind]


@pytest.mark.parametrize("one", MEMBERS)
def test_a_member_prints_as_nki_does(one: enum.Enum) -> None:
    name = one.name if isinstance(one, MemoryRegion) else f"{type(one).__name__}.{one.name}"
    assert repr(one) == name
    assert {one: 1}[type(one)[one.name]] == 1


def test_names_are_in_lower_case() -> None:
    assert [str(nisa.engine.vector), repr(nisa.dge_mode.none)] == ["engine.vector", "dge_mode.none"]
    assert f"{nisa.nc_version.gen3}" in ("nc_version.gen3", "3")


def test_generations_compare_with_each_other_and_with_integers() -> None:
    gen3 = nisa.nc_version.gen3
    assert gen3 >= 3 and gen3 < nisa.nc_version.gen4 and gen3 != 2 and int(gen3) == 3


@pytest.mark.parametrize("one", MEMBERS)
def test_a_member_stands_for_itself_and_so_do_its_name_and_text(one: enum.Enum) -> None:
    kind = type(one)
    assert member(kind, one, "op: mode") is one
    assert member(kind, one.name, "op: mode") is one
    if isinstance(one.value, str):
        assert member(kind, one.value, "op: mode") is one


@pytest.mark.parametrize("value", [0, 1, 3, True, None, 1.0, "nothing", "engine.vector", b"none"])
@pytest.mark.parametrize("kind", VALUES)
def test_anything_else_is_refused_with_the_names_of_the_members(
    kind: type[enum.Enum], value: Any
) -> None:
    with pytest.raises(TypeError) as raised:
        member(kind, value, "op: mode")
    text = str(raised.value)
    assert text.startswith(f"op: mode is {value!r}; it must be one of ")
    assert all(f"{kind.__name__}.{name}" in text for name in VALUES[kind])


def test_a_member_of_another_enumeration_is_refused() -> None:
    with pytest.raises(TypeError, match=r"engine\.sync"):
        member(nisa.dge_mode, nisa.engine.sync, "op: mode")
