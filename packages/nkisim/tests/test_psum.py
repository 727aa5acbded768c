from __future__ import annotations

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_tiles import (
    Array,
    assert_same,
    contents,
    empty,
    on_core,
    rejected,
    tile,
    warned,
)
from matmul_tiles import (
    BF16,
    F32,
    integers,
    ones,
    psum,
)

from nkisim.isa.matmul import nc_matmul
from nkisim.isa.vector import memset, tensor_copy
from nkisim.settings import Rules

pytestmark = pytest.mark.filterwarnings("error")

QUIET = Rules(uninitialized="off", overwritten="off", aliased="off", accumulate="off")


def test_none_overwrites_first_and_adds_later() -> None:
    left, right = integers(1, 5, 8, 8), integers(2, 5, 8, 12)

    def body(flags: list[bool | None]) -> tuple[Array, list[int]]:
        dst = psum((8, 12))
        reads = []
        for k, flag in enumerate(flags):
            instruction = nc_matmul(dst, tile(left[k], F32), tile(right[k], F32), accumulate=flag)
            reads.append(len(instruction.reads))
        return contents(dst), reads

    products = [a.T @ b for a, b in zip(left, right, strict=True)]
    for flags, parts, reads in (
        ([None] * 5, products, [2, 3, 3, 3, 3]),
        ([False, True, True, True, True], products, [2, 3, 3, 3, 3]),
        ([None, None, False, None, True], products[2:], [2, 3, 2, 3, 3]),
        ([False] * 5, products[4:], [2, 2, 2, 2, 2]),
    ):
        found, seen = on_core(lambda flags=flags: body(flags))
        assert_same(found, sum(parts).astype(np.float32))
        assert seen == reads


@pytest.mark.parametrize("K", [128, 100, 3])
def test_chains_longer_than_any_buffer(K: int) -> None:
    steps = 45
    left, right = integers(1, steps, K, 16), integers(2, steps, K, 40)

    def body() -> Array:
        dst = psum((16, 40))
        for a, b in zip(left, right, strict=True):
            nc_matmul(dst, tile(a, BF16), tile(b, BF16))
        return contents(dst)

    wanted = np.einsum("skm,skn->mn", left, right)
    assert_same(on_core(body), wanted.astype(np.float32))


@pytest.mark.parametrize("one_tensor", [True, False])
def test_chains_interleaved_over_banks(one_tensor: bool) -> None:
    left, right = integers(1, 4, 16, 8), integers(2, 4, 16, 8 * 512)

    def body() -> Array:
        if one_tensor:
            whole = psum((8, 8 * 512))
            banks = [whole[:, 512 * b : 512 * b + 512] for b in range(8)]
        else:
            banks = [psum((8, 512), bank=b) for b in range(8)]
        for a, b in zip(left, right, strict=True):
            stationary, moving = tile(a, BF16), tile(b, BF16)
            for number, bank in enumerate(banks):
                nc_matmul(bank, stationary, moving[:, 512 * number : 512 * number + 512])
        return np.concatenate([contents(bank) for bank in banks], axis=1)

    assert_same(on_core(body), np.einsum("skm,skn->mn", left, right).astype(np.float32))


def test_reading_in_the_middle_of_a_chain() -> None:
    left, right = integers(1, 4, 8, 8), integers(2, 4, 8, 12)

    def body() -> list[Array]:
        dst, copy = psum((8, 12)), empty((8, 12))
        seen = []
        for a, b in zip(left, right, strict=True):
            nc_matmul(dst, tile(a, F32), tile(b, F32))
            tensor_copy(copy, dst)
            seen.append(contents(copy))
        return seen

    partial = np.cumsum([a.T @ b for a, b in zip(left, right, strict=True)], axis=0)
    for found, wanted in zip(on_core(body), partial, strict=True):
        assert_same(found, wanted.astype(np.float32))


def test_operands_overwritten_after_issue() -> None:
    left, right = integers(1, 3, 8, 8), integers(2, 3, 8, 12)

    def body() -> Array:
        dst = psum((8, 12))
        stationary, moving = empty((8, 8)), empty((8, 12))
        for a, b in zip(left, right, strict=True):
            tensor_copy(stationary, tile(a, F32))
            tensor_copy(moving, tile(b, F32))
            nc_matmul(dst, stationary, moving)
            memset(stationary, 1000.0)
            memset(moving, 1000.0)
        return contents(dst)

    assert_same(on_core(body), np.einsum("skm,skn->mn", left, right).astype(np.float32))


def test_other_instructions_write_between_products() -> None:
    def body(value: float) -> Array:
        dst = psum((4, 6))
        nc_matmul(dst, ones((3, 4)), ones((3, 6)))
        memset(dst[:, 0:2], value)
        nc_matmul(dst, ones((5, 4)), ones((5, 6)))
        return contents(dst)

    assert on_core(lambda: body(100.0)).tolist() == [[105, 105, 8, 8, 8, 8]] * 4


def test_the_first_product_overwrites_what_others_wrote() -> None:
    def body() -> Array:
        dst = psum((4, 6))
        memset(dst, 100.0)
        nc_matmul(dst, ones((3, 4)), ones((3, 6)))
        return contents(dst)

    assert (on_core(body) == 3).all()


def test_overlapping_windows_accumulate_element_by_element() -> None:
    def body() -> Array:
        dst = psum((4, 12))
        for start, K in ((0, 1), (4, 10), (2, 100)):
            nc_matmul(dst[:, start : start + 8], ones((K, 4)), ones((K, 8)))
        return contents(dst)

    wanted = np.zeros(12)
    for start, K in ((0, 1), (4, 10), (2, 100)):
        wanted[start : start + 8] += K
    assert_same(on_core(body), np.tile(wanted, (4, 1)).astype(np.float32))


def test_a_partly_new_window_of_strided_columns() -> None:
    def body() -> Array:
        dst = psum((64, 3, 8))
        nc_matmul(dst[0:32, 1, :], ones((1, 32)), ones((1, 8)))
        nc_matmul(dst[:, :, 0:8:2], ones((2, 64)), ones((2, 12)))
        nc_matmul(dst, ones((4, 64)), ones((4, 24)))
        return contents(dst)

    wanted = np.full((64, 3, 8), 4.0)
    wanted[:, :, ::2] += 2
    wanted[:32, 1] += 1
    assert_same(on_core(body), wanted.reshape(64, 24).astype(np.float32))


def test_a_bank_allocated_anew_begins_again() -> None:
    """How a QKV kernel goes through its groups: fresh tiles on the same bank, accumulate=None."""

    def body() -> list[Array]:
        results = []
        for group in range(3):
            dst = psum((8, 512), bank=3)
            for _ in range(2):
                nc_matmul(dst, ones((group + 1, 8), BF16), ones((group + 1, 512), BF16))
            copy = empty((8, 512))
            tensor_copy(copy, dst)
            results.append(contents(copy))
        return results

    for group, found in enumerate(on_core(body)):
        assert (found == 2 * (group + 1)).all()


def test_unread_products_of_an_older_tensor_stay_behind() -> None:
    """Both tensors are alive, and neither was read before the end."""

    def body() -> tuple[Array, Array]:
        old, new = psum((8, 512), bank=0), psum((8, 600), bank=0)
        nc_matmul(old, ones((1, 8)), ones((1, 512)))
        nc_matmul(new[:, 100:300], ones((2, 8)), ones((2, 200)))
        nc_matmul(new[:, 100:300], ones((3, 8)), ones((3, 200)))
        return contents(new), contents(old)

    new, old = on_core(body, rules=QUIET)
    wanted = np.ones(512)
    wanted[100:300] = 5
    assert_same(old, np.tile(wanted, (8, 1)).astype(np.float32))
    assert_same(new[:, :512], old)


@pytest.mark.parametrize("collect", [False, True])
def test_products_outlive_their_tensor(collect: bool) -> None:
    """A kernel may let a tile go and read the bank through another one."""

    def write() -> None:
        nc_matmul(psum((8, 512), bank=2), ones((7, 8)), ones((7, 512)))

    def body() -> Array:
        write()
        if collect:
            gc.collect()
        return contents(psum((8, 512), bank=2))

    assert (on_core(body, rules=QUIET) == 7).all()


def test_tensors_of_no_address_are_freed_with_their_products() -> None:
    def body() -> bool:
        dst = psum((8, 512))
        nc_matmul(dst, ones((7, 8)), ones((7, 512)))
        reference = weakref.ref(dst.storage)
        del dst
        return reference() is None

    assert on_core(body, trace=False)


def test_adding_to_what_nothing_wrote() -> None:
    def body() -> Array:
        dst = psum((4, 6))
        nc_matmul(dst, ones((3, 4)), ones((3, 6)), accumulate=True)
        return contents(dst)

    assert np.isnan(warned(body, "part of dst")).all()
    rejected(body, "accumulate=True", "dst", "never written", rules=Rules(accumulate="error"))


def test_adding_to_what_another_engine_wrote() -> None:
    def body() -> Array:
        dst = psum((4, 6))
        memset(dst, 10.0)
        instruction = nc_matmul(dst, ones((3, 4)), ones((3, 6)), accumulate=True)
        assert len(instruction.reads) == 3
        return contents(dst)

    assert (on_core(body) == 13).all()
    assert (warned(body, "no matmul wrote", "gen3") == 13).all()


def test_adding_to_what_another_tensor_overwrote() -> None:
    def body() -> None:
        old, new = psum((8, 512), bank=0), psum((8, 512), bank=0)
        nc_matmul(old, ones((1, 8)), ones((1, 512)))
        nc_matmul(new, ones((1, 8)), ones((1, 512)))
        nc_matmul(old, ones((1, 8)), ones((1, 512)))

    rejected(body, "nc_matmul", "dst", "overwrote")


def test_bf16_psum_rounds_after_each_instruction() -> None:
    rng = np.random.default_rng(1)
    left, right = rng.standard_normal((20, 16, 8)), rng.standard_normal((20, 16, 12))
    left, right = (x.astype(BF16.numpy).astype(np.float64) for x in (left, right))

    def body() -> Array:
        dst = psum((8, 12), BF16)
        for a, b in zip(left, right, strict=True):
            nc_matmul(dst, tile(a, BF16), tile(b, BF16))
        return contents(dst)

    total = np.zeros((8, 12), ml_dtypes.bfloat16)
    for a, b in zip(left, right, strict=True):
        product = (a.T @ b).astype(np.float32)
        total = (total.astype(np.float32) + product).astype(ml_dtypes.bfloat16)
    found = on_core(body).astype(np.float32)
    exact = np.einsum("skm,skn->mn", left, right)
    # the products may differ in their last bit, so that a tie may go the other way once
    assert (found == total.astype(np.float32)).mean() > 0.95
    np.testing.assert_allclose(found, total.astype(np.float32), rtol=0.03, atol=0.1)
    assert not np.allclose(found, exact.astype(ml_dtypes.bfloat16).astype(np.float32), rtol=1e-6)


Step = tuple[int, int, int, bool | None, int, int]


@settings(max_examples=120, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(0, 5),
            st.integers(1, 6),
            st.sampled_from([None, None, False, True]),
            st.integers(1, 4),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=14,
    ),
    st.booleans(),
)
def test_any_program_of_overlapping_products(steps: list[Step], bf16: bool) -> None:
    """Three tensors at one address, windows of any columns; reads and other writes in between.

    The model: memory as it is, and for each tensor which columns a matmul has written.
    """
    dtype, width = (BF16, 12) if bf16 else (F32, 12)

    def program() -> list[Array]:
        tensors = [psum((4, width), dtype, bank=1) for _ in range(3)]
        memset(tensors[0], 0.0)
        seen = []
        for which, start, count, flag, value, then in steps:
            window = tensors[which][:, start : start + count]
            nc_matmul(window, ones((value, 4), BF16), ones((value, count), BF16), accumulate=flag)
            if then == 1:
                seen.append(contents(tensors[(which + 1) % 3]))
            if then == 2:
                memset(tensors[(which + 2) % 3][:, 3:7], 1.0)
        return [*seen, contents(tensors[0])]

    memory, written, wanted = np.zeros(width), np.zeros((3, width), bool), []
    for which, start, count, flag, value, then in steps:
        part = slice(start, start + count)
        adds = written[which, part] if flag is None else np.full(count, flag)
        memory[part] = np.where(adds, memory[part] + value, value)
        written[which, part] = True
        if then == 1:
            wanted.append(memory.copy())
        if then == 2:
            memory[3:7] = 1
    wanted.append(memory)
    found = on_core(program, rules=QUIET)
    assert len(found) == len(wanted)
    for array, row in zip(found, wanted, strict=True):
        assert array.astype(np.float64).tolist() == [row.tolist()] * 4
