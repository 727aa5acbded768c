"""Classes, memories, slices and annotations of `nki.language`, `nki.typing` and `nki.dtype`."""

from __future__ import annotations

import enum
from dataclasses import FrozenInstanceError, dataclass
from typing import ClassVar, Optional

import ml_dtypes
import numpy as np
import pytest
import torch

import nkisim
import nkisim.dtype
import nkisim.isa as nisa
import nkisim.language as nl
import nkisim.typing as nt


class Plain(nl.NKIObject):
    size: int = 3
    name: str | None = None
    parts: list = []
    missing: int
    count: ClassVar[int] = 9
    unannotated = 5
    _hidden = 6

    def method(self):
        return self.unannotated


class Derived(Plain):
    name: str = "derived"
    more: dict = {"a": [1]}


def test_fields_have_the_defaults_of_the_class():
    plain = Plain()
    assert (plain.size, plain.name, plain.parts) == (3, None, [])
    assert not hasattr(plain, "missing")
    assert plain.__dict__ == {"size": 3, "name": None, "parts": [], "unannotated": 5}
    plain.missing = 4
    assert plain.missing == 4


def test_keyword_arguments_set_fields():
    derived = Derived(size=7, missing=1, name="x")
    assert derived.__dict__ == {
        "size": 7, "name": "x", "parts": [], "missing": 1, "more": {"a": [1]}, "unannotated": 5
    }  # fmt: skip
    assert Derived().name == "derived"


@pytest.mark.parametrize("name", ["sise", "count", "method", "_hidden"])
def test_what_is_no_field_is_rejected(name):
    with pytest.raises(TypeError, match=rf"Plain\(\) got an unexpected keyword argument '{name}'"):
        Plain(**{name: 1})


def test_fields_need_no_annotation():
    assert Plain(unannotated=8).method() == 8

    @dataclass
    class Data(nl.NKIObject):
        tiles = 4
        name: str = "x"

    assert (Data().tiles, Data(tiles=2).tiles, Data().name) == (4, 2, "x")


def test_positions_are_rejected():
    with pytest.raises(TypeError):
        Plain(3)


def test_no_two_instances_share_a_mutable_default():
    first, second = Derived(), Derived()
    first.parts.append(1)
    first.more["a"].append(2)
    assert (second.parts, second.more) == ([], {"a": [1]})
    assert Derived.more == {"a": [1]}

    class Outer(nl.NKIObject):
        inner: Plain = Plain(size=4)

    one, two = Outer(), Outer()
    one.inner.size = 5
    assert two.inner.size == 4


def test_post_init_runs_last():
    class Scaled(nl.NKIObject):
        factor: float = 2.0

        def __post_init__(self):
            self.square = self.factor**2

    assert Scaled(factor=3.0).square == 9.0


def test_hand_written_constructors():
    class Alone(nl.NKIObject):
        size: int = 1

        def __init__(self, size):
            self.size = size

    class Calling(nl.NKIObject):
        size: int = 1
        other: int = 2

        def __init__(self, size):
            super().__init__(size=size)

    assert Alone(4).size == 4
    assert (Calling(4).size, Calling(4).other) == (4, 2)


class Kind(enum.Enum):
    row = 1


@dataclass(frozen=True)
class Frozen(nl.NKIObject):
    kind: Kind
    eps: float = 1e-6

    def __post_init__(self):
        assert self.eps > 0


def test_dataclasses_may_be_frozen():
    frozen = Frozen(Kind.row, eps=0.5)
    assert frozen == Frozen(Kind.row, 0.5) and frozen != Frozen(Kind.row)
    with pytest.raises(FrozenInstanceError):
        frozen.eps = 1.0
    with pytest.raises(AssertionError):
        Frozen(Kind.row, 0.0)


def test_objects_are_equal_as_python_says():
    assert Plain() != Plain()


def test_objects_pass_through_a_launch():
    received = []

    def kernel(x, plain, frozen):
        received.extend([plain, frozen, frozen.kind.name])
        return x

    plain, frozen = Plain(), Frozen(Kind.row)
    nkisim.simulate(kernel)(np.zeros((1, 1), np.float32), plain, frozen=frozen)
    assert received[0] is plain and received[1] is frozen and received[2] == "row"


REGIONS = {
    nl.sbuf: "is_sbuf", nl.psum: "is_psum", nl.hbm: "is_hbm", nl.private_hbm: "is_hbm",
    nl.shared_hbm: "is_hbm",
}  # fmt: skip


@pytest.mark.parametrize("region", REGIONS)
def test_memories(region):
    found = {name for name in ("is_sbuf", "is_psum", "is_hbm") if getattr(nl, name)(region)}
    assert found == {REGIONS[region]}
    assert nl.is_on_chip(region) is (REGIONS[region] != "is_hbm")
    assert isinstance(region, nl.MemoryRegion)


def test_memories_are_objects_with_documented_values():
    assert [region.value for region in nl.MemoryRegion] == [
        "sbuf",
        "psum",
        "private_hbm",
        "shared_hbm",
    ]
    assert nl.hbm is nl.private_hbm
    for ask in (nl.is_hbm, nl.is_sbuf, nl.is_psum, nl.is_on_chip):
        with pytest.raises(TypeError, match=r"nl\.sbuf"):
            ask("sbuf")


def test_ds_is_a_slice():
    assert nl.ds(3, 4) == slice(3, 7)
    assert nl.ds(np.int64(0), np.int32(2)) == slice(0, 2)
    for start, size in ((0, -1), (-1, 1)):
        with pytest.raises(ValueError, match="at least"):
            nl.ds(start, size)
    for start, size in ((0.5, 1), (0, 1.5), ("0", 1)):
        with pytest.raises(TypeError):
            nl.ds(start, size)


def test_a_slice_of_nothing_may_be_made_and_not_used():
    x = np.arange(20, dtype=np.float32).reshape(10, 2)

    def kernel(x, use):
        out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nothing = x[nl.ds(10, 0)]
        assert nothing.shape == (0, 2) and nothing.size == 0
        nl.store(out, nl.load(nothing if use else x))
        return out

    np.testing.assert_array_equal(nkisim.simulate(kernel)(x, False), x)
    with pytest.raises(nkisim.NkiValidationError, match=r"\[0, 2\]|least"):
        nkisim.simulate(kernel)(x, True)


def test_ds_of_a_register_is_read_when_the_instruction_runs():
    x = np.arange(20, dtype=np.float32).reshape(2, 10)

    def kernel(x):
        tile = nl.load(x)
        register = nisa.register_alloc(2)
        view = tile[:, nl.ds(register, 3)]
        nisa.register_move(register, 6)
        out = nl.ndarray((2, 3), nl.float32, nl.shared_hbm)
        nl.store(out, nl.copy(view))
        return out

    np.testing.assert_array_equal(nkisim.simulate(kernel)(x), x[:, 6:9])


def test_annotations_have_no_effect():
    def kernel(
        x: nt.tensor[4, 6],
        y: nt.mutable_tensor,
        z: Optional[nt.tensor] = None,  # noqa: UP045
        *,
        lse_dtype: nkisim.dtype = None,
        k: nl.tensor = 0,
    ) -> nt.tensor | None:
        assert z is None
        return x

    assert kernel.__annotations__
    x = np.ones((4, 6), np.float32)
    np.testing.assert_array_equal(nkisim.simulate(kernel)(x, x), x)
    evaluated = [nt.tensor[4, 6], nt.mutable_tensor[2], nt.tensor | None, Optional[nt.tensor[1]]]  # noqa: UP045
    assert len(set(map(str, evaluated))) == 4
    assert "4, 6" in str(nt.tensor[4, 6])


DTYPES = {
    "int8": np.int8, "int16": np.int16, "int32": np.int32, "uint8": np.uint8, "uint16": np.uint16,
    "uint32": np.uint32, "float32": np.float32, "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16, "float8_e4m3": ml_dtypes.float8_e4m3,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2,
    "float8_e8m0fnu": ml_dtypes.float8_e8m0fnu, "bool_": np.bool_,
}  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
def test_data_types(name):
    dtype = getattr(nl, name)
    assert dtype is getattr(nkisim.dtype, name)
    assert f"{dtype}" == dtype == name
    assert dtype == np.dtype(DTYPES[name]) and dtype == DTYPES[name]
    assert {name: 1}[dtype] == 1
    if hasattr(torch, name.rstrip("_")):
        assert dtype == getattr(torch, name.rstrip("_"))


def test_further_data_types_and_aliases():
    for name, size in (
        ("tfloat32", 4), ("float8_e4m3fn_x4", 4), ("float8_e5m2_x4", 4), ("float4_e2m1fn_x4", 2)
    ):  # fmt: skip
        assert getattr(nl, name) is getattr(nkisim.dtype, name)
        assert getattr(nl, name).itemsize == size
    assert nl.bool is nl.bool_
    assert nl.tensor is nl.NkiTensor and issubclass(nl.dtype, str)


def test_functions_print_as_their_names():
    for name in ("add", "maximum", "exp", "sum", "max", "min", "abs", "average", "bypass", "prelu"):
        assert repr(getattr(nl, name)) == getattr(nl, name).__name__ == name


def test_opcodes_alone_cannot_be_called():
    for token in (nl.average, nl.bypass, nl.prelu):
        assert not callable(token)


def test_everything_public_is_there():
    for module in (nl, nisa, nt, nkisim.dtype, nkisim):
        assert len(set(module.__all__)) == len(module.__all__)
        for name in module.__all__:
            assert hasattr(module, name), name
