"""Operands that are gathered once and serve several products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isa_tiles import Array, assert_same, contents, empty, on_core, tile
from matmul_tiles import BF16, F32, FP8, integers, psum

import nkisim.collectives as ncc
import nkisim.language as nl
from nkisim import gathered
from nkisim.gathered import Gathered, GatheredPool, Operand
from nkisim.isa.dma import dma_copy
from nkisim.isa.matmul import nc_matmul
from nkisim.isa.registers import register_alloc, register_move
from nkisim.isa.vector import memset, tensor_copy, tensor_tensor
from nkisim.settings import Rules
from nkisim.simulation import World
from nkisim.tensor import NkiTensor


class Source:
    """Makes operands, and counts how many of them are read."""

    def __init__(self) -> None:
        self.reads = 0

    def operand(self, mark: Any, rows: int = 4, columns: int = 3, value: float = 0.0) -> Operand:
        def values() -> Array:
            self.reads += 1
            return np.full((rows, columns), value)

        return Operand(rows, columns, values, None if mark is None else (mark,))


def chain(pool: GatheredPool, operands: list[Operand]) -> Array:
    """What `operands` make when they are gathered one after the other."""
    found = pool.take(operands[0])
    for operand in operands:
        assert found.has_room(operand)
        found.append(operand)
    values: Array = found.values().copy()
    pool.give_back(found)
    return values


def test_equal_marks_are_read_once() -> None:
    source, pool = Source(), GatheredPool()
    for _ in range(3):
        found = chain(pool, [source.operand("a", value=1), source.operand("b", value=2)])
        assert_same(found, np.repeat(np.float32([1, 2]), 4)[:, None] * np.ones((1, 3), np.float32))
    assert source.reads == 2


def test_what_differs_is_read_again_and_all_that_follows() -> None:
    source, pool = Source(), GatheredPool()
    chain(pool, [source.operand(mark) for mark in "abc"])
    chain(pool, [source.operand(mark) for mark in "axc"])
    assert source.reads == 3 + 2
    # fewer rows at the same place
    chain(pool, [source.operand("a"), source.operand("x", rows=2), source.operand("c")])
    assert source.reads == 5 + 2


def test_operands_without_a_mark_are_always_read() -> None:
    source, pool = Source(), GatheredPool()
    for _ in range(3):
        chain(pool, [source.operand(None), source.operand("a")])
    assert source.reads == 6


def test_chains_that_take_turns_are_all_found_again() -> None:
    """As the columns of a moving matrix do under every row of the stationary one."""
    source, pool = Source(), GatheredPool()
    reads = []
    for _ in range(6):
        before = source.reads
        for mark in "abcd":
            chain(pool, [source.operand(mark), source.operand(mark * 2)])
        reads.append(source.reads - before)
    assert reads[0] == 8
    assert reads[2:] == [0] * 4


def test_chains_that_never_come_back_take_one_buffer() -> None:
    source, pool = Source(), GatheredPool()
    seen = set()
    for mark in range(100):
        found = pool.take(source.operand(mark))
        seen.add(id(found))
        found.append(source.operand(mark))
        pool.give_back(found)
    assert len(seen) == 1


def test_buffers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(gathered, "Gathered", lambda *size: made.append(size) or Gathered(*size))
    source, pool = Source(), GatheredPool()
    for _ in range(5):
        for mark in range(50):
            chain(pool, [source.operand(mark)])
    assert len(made) <= 9


def test_two_at_a_time_are_two() -> None:
    source, pool = Source(), GatheredPool()
    first = source.operand("a", value=1)
    one, two = pool.take(first), pool.take(first)
    assert one is not two
    one.append(first)
    two.append(source.operand("b", value=2))
    assert one.values()[0, 0] == 1
    assert two.values()[0, 0] == 2


# On a core


def products(dst: Any, chains: list[list[tuple[Any, Any]]]) -> list[Array]:
    found = []
    for operands in chains:
        for k, (left, right) in enumerate(operands):
            nc_matmul(dst, left, right, accumulate=k > 0)
        found.append(contents(dst))
    return found


def test_an_operand_overwritten_between_two_chains() -> None:
    left, right = integers(1, 2, 8, 8), integers(2, 2, 8, 12)

    def body() -> list[Array]:
        dst = psum((8, 12))
        stationary, moving = tile(left[0], F32), tile(right[0], F32)
        found = products(dst, [[(stationary, moving)]] * 2)
        tensor_copy(stationary, tile(left[1], F32))
        found += products(dst, [[(stationary, moving)]])
        dma_copy(moving, tile(right[1], F32))
        found += products(dst, [[(stationary, moving)]])
        # a part of one
        memset(moving[:, 3:5], 7.0)
        return found + products(dst, [[(stationary, moving)]])

    last = right[1].copy()
    last[:, 3:5] = 7
    wanted = [
        left[0].T @ right[0], left[0].T @ right[0], left[1].T @ right[0], left[1].T @ right[1],
        left[1].T @ last,
    ]  # fmt: skip
    for one, other in zip(on_core(body), wanted, strict=True):
        assert_same(one, other.astype(np.float32))


def test_an_operand_overwritten_through_another_tensor_at_its_address() -> None:
    left, right = integers(1, 8, 8), integers(2, 2, 8, 12)

    def body() -> list[Array]:
        dst = psum((8, 12))
        moving, alias = empty((8, 12), F32, address=(0, 0)), empty((8, 12), F32, address=(0, 0))
        stationary = tile(left, F32)
        tensor_copy(moving, tile(right[0], F32))
        found = products(dst, [[(stationary, moving)]] * 2)
        tensor_copy(alias, tile(right[1], F32))
        return found + products(dst, [[(stationary, moving)]])

    found = on_core(body, rules=Rules(overwritten="off"))
    for one, other in zip(found, (right[0], right[0], right[1]), strict=True):
        assert_same(one, (left.T @ other).astype(np.float32))


def test_an_operand_chosen_by_a_register() -> None:
    left, right = integers(1, 8, 8), integers(2, 8, 24)

    def body() -> list[Array]:
        dst = psum((8, 12))
        stationary, moving = tile(left, F32), tile(right, F32)
        register = register_alloc(0)
        found = products(dst, [[(stationary, moving[:, nl.ds(register, 12)])]] * 2)
        register_move(register, 12)
        return found + products(dst, [[(stationary, moving[:, nl.ds(register, 12)])]])

    for one, other in zip(
        on_core(body), (right[:, :12], right[:, :12], right[:, 12:]), strict=True
    ):
        assert_same(one, (left.T @ other).astype(np.float32))


def test_the_same_bytes_in_other_shapes_and_types() -> None:
    """Views of one tensor that cover the same bytes are not the same operand."""
    raw = np.random.default_rng(0).integers(-4, 5, (8, 2, 12)).astype(FP8[0].numpy)
    left = integers(1, 8, 2, 6)

    def body() -> list[Array]:
        dst = psum((12, 12))
        moving = tile(raw.astype(np.float64), FP8[0])
        double, single = tile(left, FP8[0]), tile(left.reshape(8, 12), FP8[0])
        nc_matmul(dst[:6], double, moving, perf_mode="double_row", accumulate=False)
        found = [contents(dst[:6])]
        for view in (moving[:, 1], moving[:, 0], moving.view(FP8[2])[:, 0], moving[:, 0]):
            kind = tile(left.reshape(8, 12), FP8[2]) if view.dtype is FP8[2] else single
            nc_matmul(dst, kind, view, accumulate=False)
            found.append(contents(dst))
        return found

    values = raw.astype(np.float64)
    other_kind = raw.view(FP8[2].numpy).astype(np.float64)
    wanted = [np.einsum("kjm,kjn->mn", left, values)]
    for view in (values[:, 1], values[:, 0], other_kind[:, 0], values[:, 0]):
        wanted.append(left.reshape(8, 12).T @ view)
    for one, other in zip(on_core(body, "gen4"), wanted, strict=True):
        assert_same(one, other.astype(np.float32))


def test_an_operand_that_a_collective_fills() -> None:
    left = integers(1, 8, 8)

    def kernel(x: Any) -> Any:
        out = nl.ndarray((3, 8, 512), nl.float32, buffer=nl.shared_hbm)
        stationary, moving = tile(left, F32), nl.ndarray((8, 512), nl.float32)
        mine = nl.ndarray((8, 512), nl.float32)
        dma_copy(mine, x)
        memset(moving, 1.0)
        group = ncc.ReplicaGroup([[0, 1]])
        for turn in range(3):
            dst = psum((8, 512))
            nc_matmul(dst, stationary, moving)
            shown = nl.ndarray((8, 512), nl.float32)
            tensor_copy(shown, dst)
            dma_copy(out[turn], shown)
            ncc.all_reduce([mine], [moving], group, nl.add)
            tensor_tensor(mine, mine, moving, nl.add)
        return out

    inputs = integers(2, 2, 8, 512).astype(np.float32)
    results = World(2).run(kernel, [(inputs[0],), (inputs[1],)])
    mine = inputs.copy()
    moving = np.ones((8, 512), np.float32)
    for turn in range(3):
        for result in results:
            assert_same(result[turn], (left.T @ moving).astype(np.float32))
        moving = mine.sum(axis=0)
        mine = mine + moving


Step = tuple[str, int, int, int]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["product", "product", "product", "write", "part", "read"]),
            st.integers(0, 2),
            st.integers(0, 3),
            st.integers(0, 1),
        ),
        min_size=4,
        max_size=40,
    )
)
def test_any_program_of_products_and_writes(steps: list[Step]) -> None:
    """Three stationary and four moving tiles, in two chains, against a dense statement."""
    rng = np.random.default_rng(5)
    lefts = rng.integers(-4, 5, (3, 8, 6)).astype(np.float64)
    rights = rng.integers(-4, 5, (4, 8, 10)).astype(np.float64)

    def program() -> list[Array]:
        stationary = [tile(values, BF16) for values in lefts]
        moving = [tile(values, BF16) for values in rights]
        dst = [psum((6, 10)) for _ in range(2)]
        started = [False, False]
        found = []
        for count, (kind, i, j, which) in enumerate(steps):
            if kind == "product":
                nc_matmul(dst[which], stationary[i], moving[j], accumulate=started[which])
                started[which] = True
            elif kind == "write":
                memset(stationary[i], float(count % 5))
            elif kind == "part":
                memset(moving[j][:, i : i + 3], float(count % 7))
            elif started[which]:
                found.append(contents(dst[which]))
                started[which] = False
        return found

    def dense() -> list[Array]:
        stationary, moving = lefts.copy(), rights.copy()
        total: list[Array | None] = [None, None]
        found = []
        for count, (kind, i, j, which) in enumerate(steps):
            old = total[which]
            if kind == "product":
                product = stationary[i].T @ moving[j]
                total[which] = product if old is None else old + product
            elif kind == "write":
                stationary[i] = count % 5
            elif kind == "part":
                moving[j][:, i : i + 3] = count % 7
            elif old is not None:
                found.append(old)
                total[which] = None
        return found

    for one, other in zip(on_core(program), dense(), strict=True):
        assert_same(one, other.astype(np.float32))


def test_a_tiled_product_reads_its_operands_a_few_times() -> None:
    """It is what the reuse is for."""
    reads = []

    def body() -> None:
        stationary, moving = tile(np.ones((128, 8, 64)), BF16), tile(np.ones((128, 8, 256)), BF16)
        values = NkiTensor.values

        def counted(tensor: NkiTensor, *given: Any) -> Any:
            reads.append(tensor)
            return values(tensor, *given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(NkiTensor, "values", counted)
            for m in range(0, 64, 16):
                for n in range(0, 256, 128):
                    dst = psum((16, 128))
                    for k in range(8):
                        nc_matmul(dst, stationary[:, k, m : m + 16], moving[:, k, n : n + 128])
                    assert (dst.array() == 1024).all()

    on_core(body)
    # 4 x 2 x 8 products: 32 stationary tiles once each, 16 moving ones twice
    assert len(reads) <= 32 + 2 * 16
