"""Registers: what they hold, and what they are good for."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from isa_tiles import core, empty, on_core, rejected, tile

import nkisim
import nkisim.isa as nisa
import nkisim.language as nl
from nkisim import dtypes
from nkisim.enums import Engine, MemoryRegion
from nkisim.register import VirtualRegister

HBM = MemoryRegion.private_hbm
LOADED = (
    dtypes.uint8, dtypes.int8, dtypes.uint16, dtypes.int16, dtypes.uint32, dtypes.int32,
    dtypes.float32,
)  # fmt: skip


@pytest.mark.parametrize(
    "use",
    [
        operator.add, operator.sub, operator.mul, operator.mod, operator.floordiv, operator.truediv,
        operator.pow, operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift,
        operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne, divmod,
    ],
)  # fmt: skip
def test_there_is_no_arithmetic_on_registers(use: Callable[[Any, Any], Any]) -> None:
    register = VirtualRegister(3)
    for left, right in ((register, 2), (2, register), (register, VirtualRegister(3))):
        with pytest.raises(TypeError, match="arithmetic"):
            use(left, right)


@pytest.mark.parametrize("use", [operator.neg, operator.pos, operator.invert, abs])
def test_there_is_no_sign_of_registers(use: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="arithmetic"):
        use(VirtualRegister(3))


@pytest.mark.parametrize("use", [bool, int, float, range, operator.index, [1, 2, 3].__getitem__])
def test_registers_do_not_steer_python(use: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="fori_loop"):
        use(VirtualRegister(3))


def test_a_register_may_be_compared_to_none_and_be_a_key() -> None:
    register = VirtualRegister(0)
    assert (register != None) is True and (register == None) is False  # noqa: E711
    assert register is not None and {register: 1}[register] == 1


@pytest.mark.parametrize(
    "value", [0, -5, 2**32 - 1, -(2**31), 2.5, np.int32(7), np.uint32(2**32 - 1), np.float32(0.5)]
)
def test_a_register_holds_what_it_is_given(value: Any) -> None:
    def body() -> list[Any]:
        first, second, third = nisa.register_alloc(value), nisa.register_alloc(), VirtualRegister()
        nisa.register_move(second, value)
        nisa.register_move(third, first)
        return [first.value, second.value, third.value]

    assert on_core(body) == [value] * 3


def test_the_source_of_a_move_was_called_imm() -> None:
    def body() -> Any:
        register = nisa.register_alloc()
        nisa.register_move(register, imm=4)
        return register.value

    assert on_core(body) == 4


@pytest.mark.parametrize("value", [2**32, -(2**31) - 1])
def test_a_register_has_32_bits(value: int) -> None:
    rejected(lambda: nisa.register_alloc(value), "32 bits")


@pytest.mark.parametrize("value", [None, "1", True, [1]])
def test_only_numbers_and_registers_are_moved(value: Any) -> None:
    with pytest.raises(TypeError, match="register_move"):
        on_core(lambda: nisa.register_move(nisa.register_alloc(), value))


@pytest.mark.parametrize("dtype", LOADED)
@pytest.mark.parametrize("region", [HBM, MemoryRegion.sbuf])
def test_load_and_store(dtype: dtypes.DType, region: MemoryRegion) -> None:
    value = {True: -3, False: 250}[dtype in (dtypes.int8, dtypes.int16, dtypes.int32)]

    def body() -> list[Any]:
        source, target = empty((1, 1), dtype, region), empty((1, 1), dtype, region)
        source.array()[...] = value
        source.storage.coverage.full = True
        register = nisa.register_alloc()
        nisa.register_load(register, source)
        nisa.register_store(target, register)
        other = nisa.register_alloc(source)
        return [register.value, other.value, target.array().item()]

    assert on_core(body) == [value] * 3


def test_one_element_of_a_larger_tensor_is_loaded() -> None:
    def body() -> Any:
        source = tile(np.arange(12).reshape(3, 4), dtypes.int32)
        register = nisa.register_alloc()
        nisa.register_load(register, source[2:3, 1:2])
        return register.value

    assert on_core(body) == 9


def test_an_element_that_another_register_chooses_is_loaded() -> None:
    def body() -> Any:
        source = tile(np.arange(12).reshape(1, 12) * 10, dtypes.int32)
        register = nisa.register_alloc(7)
        nisa.register_load(register, source.ap([[12, 1], [1, 1]], scalar_offset=register,
                                               indirect_dim=1))  # fmt: skip
        return register.value

    assert on_core(body) == 70


def test_instructions_of_registers_are_recorded() -> None:
    def body() -> list[Any]:
        register = nisa.register_alloc(tile([[4]], dtypes.int32))
        nisa.register_move(register, 3)
        nisa.register_store(empty((1, 1), dtypes.int32), register)
        return [(i.op, i.engine) for i in core().trace]

    sync = Engine.sync
    wanted = [("register_load", sync), ("register_move", sync), ("register_store", sync)]
    assert on_core(body) == wanted


def test_what_cannot_be_loaded_or_stored() -> None:
    rejected(
        lambda: nisa.register_load(nisa.register_alloc(), tile(np.zeros((1, 2), np.float32))), "one"
    )
    rejected(
        lambda: nisa.register_load(nisa.register_alloc(), tile([[1]], dtypes.bfloat16)), "bfloat16"
    )
    rejected(lambda: nisa.register_store(empty((2, 1)), nisa.register_alloc(1)), "one element")
    rejected(lambda: nisa.register_store(empty((1, 1)), nisa.register_alloc()), "nothing has set")
    with pytest.raises(TypeError, match="dst is 3"):
        on_core(lambda: nisa.register_move(3, 4))
    with pytest.raises(TypeError, match="src is 3"):
        on_core(lambda: nisa.register_store(empty((1, 1)), 3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="src is 3"):
        on_core(lambda: nisa.register_load(nisa.register_alloc(), 3))  # type: ignore[arg-type]


def test_the_variable_of_a_loop_is_not_written() -> None:
    def body() -> None:
        nl.fori_loop(0, 2, lambda i: nisa.register_move(i, 3))

    with pytest.raises(TypeError, match="loop"):
        on_core(body)


def test_outside_a_kernel_there_are_no_registers() -> None:
    with pytest.raises(nkisim.NkiOutsideKernelError, match="register_alloc"):
        nisa.register_alloc(3)


# Registers as indices


@pytest.mark.parametrize("row", [0, 3])
def test_a_register_is_an_index_a_start_and_an_offset(row: int) -> None:
    numbers = np.arange(24).reshape(4, 6)

    def body() -> list[Any]:
        register = nisa.register_alloc(row)
        table = tile(numbers, dtypes.int32)
        hbm = empty((4, 6), dtypes.int32, HBM)
        hbm.array()[...] = numbers
        views = [
            hbm[register],
            hbm[nl.ds(register, 1)],
            hbm.select(0, register),
            hbm[1, register],
            hbm.ap([[1, 6]], scalar_offset=register),
            hbm.ap([[6, 4], [1, 1]], scalar_offset=register, indirect_dim=1),
            table[:, register],
            table[:, nl.ds(register, 2)],
        ]
        return [view.values().copy() for view in views]

    wanted = [
        numbers[row], numbers[row : row + 1], numbers[row], numbers[1, row : row + 1], numbers[row],
        numbers[:, row : row + 1], numbers[:, row : row + 1], numbers[:, row : row + 2],
    ]  # fmt: skip
    for found, expected in zip(on_core(body), wanted, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_the_element_of_a_tensor_is_an_index_too() -> None:
    def body() -> Any:
        chosen = tile([[2]], dtypes.uint32)
        return tile(np.arange(12).reshape(3, 4), dtypes.int32)[:, chosen].values().copy()

    np.testing.assert_array_equal(on_core(body), [[2], [6], [10]])


@pytest.mark.parametrize("value", [-1, 4, 2**32 - 1])
def test_an_index_out_of_range_is_found_when_it_is_followed(value: int) -> None:
    def body() -> Any:
        hbm = empty((4, 6), dtypes.int32, HBM)
        return hbm[nisa.register_alloc(value)].values()

    rejected(body, f"is {value}", "0..3")


def test_the_last_start_leaves_room_for_the_slice() -> None:
    def body(start: int) -> Any:
        table = tile(np.arange(6).reshape(1, 6), dtypes.int32)
        return table[:, nl.ds(nisa.register_alloc(start), 4)].values().copy()

    np.testing.assert_array_equal(on_core(lambda: body(2)), [[2, 3, 4, 5]])
    rejected(lambda: body(3), "is 3", "0..2")


def test_an_index_is_an_integer_that_is_known() -> None:
    def chosen(register: VirtualRegister) -> Any:
        return empty((4, 6), dtypes.int32, HBM)[register].values()

    rejected(lambda: chosen(nisa.register_alloc(1.5)), "no integer")
    rejected(lambda: chosen(nisa.register_alloc()), "no value")
    assert on_core(lambda: chosen(nisa.register_alloc(1.0)).shape) == (6,)


def test_a_view_takes_one_dynamic_index() -> None:
    def table() -> Any:
        return empty((4, 6, 2), dtypes.int32, HBM)

    def register() -> VirtualRegister:
        return nisa.register_alloc(1)

    words = "one"
    rejected(lambda: table()[register(), register()], words)
    rejected(lambda: table()[register()][register()], words)
    rejected(lambda: table()[register()].select(0, register()), words)
    rejected(lambda: table()[register()].ap([[1, 2]], scalar_offset=register()), words)


def test_what_no_register_chooses() -> None:
    rejected(lambda: tile(np.zeros((4, 6), np.float32))[nisa.register_alloc(1)], "partition")
    rejected(
        lambda: tile(np.zeros((4, 6), np.float32)).select(0, nisa.register_alloc(1)), "partition"
    )
    with pytest.raises(IndexError, match="7 elements"):
        on_core(lambda: tile(np.zeros((4, 6), np.float32))[:, nl.ds(nisa.register_alloc(0), 7)])


@pytest.mark.parametrize(
    ("index", "kind"), [([[1, 2]], np.int32), ([[1.0]], np.float32), ([[1]], np.int16)]
)
def test_a_tensor_as_index_is_one_integer(index: Any, kind: Any) -> None:
    rejected(lambda: tile(np.zeros((4, 6), np.float32))[:, tile(np.array(index, kind))], "index is")


def test_a_view_that_moves_may_be_cut_and_reshaped() -> None:
    numbers = np.arange(120).reshape(4, 5, 6)

    def body() -> list[Any]:
        register = nisa.register_alloc(2)
        hbm = empty((4, 5, 6), dtypes.int32, HBM)
        hbm.array()[...] = numbers
        moved = hbm[register]
        views = [
            moved[1:3, ::2],
            moved.reshape((30,))[7:9],
            moved.permute((1, 0)),
            moved.flatten_dims(0, 1),
            moved[:, 0:2].view(dtypes.int16),
            moved.ap([[6, 5], [1, 2]], offset=1),
        ]
        return [view.values().copy() for view in views]

    row = numbers[2].astype(np.int32)
    wanted = [
        row[1:3, ::2], row.reshape(30)[7:9], row.T, row.reshape(30),
        np.ascontiguousarray(row[:, 0:2]).view(np.int16), row[:, 1:3],
    ]  # fmt: skip
    for found, expected in zip(on_core(body), wanted, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_registers_in_loops() -> None:
    numbers = np.arange(24, dtype=np.int32).reshape(4, 6)

    def kernel(x: Any) -> Any:
        out = nl.ndarray((4, 6), nl.int32, buffer=nl.shared_hbm)
        nl.fori_loop(0, 4, lambda i: nisa.dma_copy(out[nl.ds(i, 1)], x[nl.ds(i, 1)]))
        return out

    np.testing.assert_array_equal(nkisim.simulate(kernel)(numbers), numbers)


def test_a_run_without_numerics_knows_python_numbers_and_arguments() -> None:
    def kernel(x: Any) -> Any:
        register = nisa.register_alloc(x[0:1])
        tiles = nl.ndarray((1, 1), nl.int32, nl.sbuf)
        nisa.dma_copy(tiles, x[0:1])
        loaded = nisa.register_alloc(tiles)
        found.append((register.value, loaded.value))
        return x

    found: list[Any] = []
    nkisim.simulate(kernel, numerics=False)(np.array([3, 4], np.int32))
    assert found == [(3, None)]
