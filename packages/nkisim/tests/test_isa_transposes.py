from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from isa_tiles import (
    DTYPES,
    LAYOUTS,
    Array,
    assert_same,
    contents,
    empty,
    laid,
    on_core,
    rejected,
    tile,
    warned,
)
from matmul_tiles import (
    BF16,
    F32,
    FP8,
    FP16,
    PSUM,
    any_bits,
    bits,
    integers,
    ones,
    psum,
    tile_of,
)

from nkisim.enums import Engine, MemoryRegion
from nkisim.isa.matmul import nc_matmul, nc_transpose
from nkisim.settings import Rules

pytestmark = pytest.mark.filterwarnings("error")


# ---- is_transpose ----


@pytest.mark.parametrize("dtype", [F32, BF16, FP16])
@pytest.mark.parametrize("identity", ["moving", "stationary"])
def test_transposes_move_bits(dtype: Any, identity: str) -> None:
    values = any_bits(1, (48, 20), dtype)

    def body() -> Array:
        data, eye = tile_of(values, dtype), tile(np.eye(48), dtype)
        if identity == "moving":
            dst = psum((20, 48), dtype)
            nc_matmul(dst, data, eye, is_transpose=True)
        else:
            dst = psum((48, 20), dtype)
            nc_matmul(dst, eye, data, is_transpose=True)
        return contents(dst)

    wanted = values.T if identity == "moving" else values
    assert_same(bits(on_core(body)), bits(wanted))


@pytest.mark.parametrize("dtype", FP8)
def test_transposes_of_bytes_have_a_zero_byte_above(dtype: Any) -> None:
    values = any_bits(2, (32, 20), dtype)

    def body(result: Any) -> Array:
        dst = psum((20, 32), result)
        nc_matmul(dst, tile_of(values, dtype), tile(np.eye(32), dtype), is_transpose=True)
        return contents(dst)

    for result in (FP16, BF16):
        found = on_core(lambda result=result: body(result))
        assert_same(bits(found), bits(values.T).astype(np.uint16))


def test_transposes_by_a_permutation() -> None:
    order = np.random.default_rng(3).permutation(16)
    values = any_bits(4, (16, 8), BF16)

    def body() -> Array:
        dst = psum((8, 16), BF16)
        nc_matmul(dst, tile_of(values, BF16), tile(np.eye(16)[:, order], BF16), is_transpose=True)
        return contents(dst)

    assert_same(bits(on_core(body)), bits(values[order].T))


def test_what_transposes_reject() -> None:
    def call(dst: Any = BF16, moving: Any = None, dtype: Any = BF16, **options: Any) -> Any:
        eye = np.eye(16) if moving is None else moving
        data = tile(np.full((16, 8), 2.0), dtype)
        return nc_matmul(psum((8, 16), dst), data, tile(eye, dtype), is_transpose=True, **options)

    on_core(call, "gen2")
    rejected(lambda: call(F32), "dst is float32", "transpose of bfloat16 gives bfloat16")
    rejected(lambda: call(F32, dtype=FP8[2]), "dst is float32", "transpose of float8_e5m2")
    rejected(lambda: call(moving=np.full((16, 16), 0.5)), "is_transpose", "single 1")
    rejected(lambda: call(moving=np.ones((16, 16))), "is_transpose", "single 1")
    rejected(lambda: call(moving=2 * np.eye(16)), "is_transpose", "single 1")


def test_a_transpose_onto_older_results_is_doubtful() -> None:
    def body(flag: bool | None) -> Array:
        dst = psum((8, 16), BF16)
        for value in (1.0, 2.0):
            data = tile(np.full((16, 8), value), BF16)
            nc_matmul(dst, data, tile(np.eye(16), BF16), is_transpose=True, accumulate=flag)
        return contents(dst).astype(np.float32)

    assert (on_core(lambda: body(False)) == 2).all()
    assert (warned(lambda: body(None), "accumulate=False") == 2).all()
    rejected(lambda: body(None), "is_transpose", "dst", rules=Rules(accumulate="error"))


# ---- nc_transpose ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("engine", "P", "F", "region"),
    [
        (Engine.unknown, 128, 128, PSUM),
        (Engine.tensor, 70, 3, PSUM),
        (Engine.unknown, 32, 32, MemoryRegion.sbuf),
        (Engine.vector, 32, 17, PSUM),
        (Engine.vector, 1, 32, MemoryRegion.sbuf),
    ],
)
def test_nc_transpose(dtype: Any, engine: Engine, P: int, F: int, region: MemoryRegion) -> None:
    values = any_bits(P, (P, F), dtype)

    def body() -> tuple[Array, Engine]:
        dst = empty((F, P), dtype, region)
        instruction = nc_transpose(dst, tile_of(values, dtype), engine)
        return contents(dst), instruction.engine

    found, chosen = on_core(body)
    assert_same(bits(found), bits(values.T))
    by_buffer = Engine.tensor if region is PSUM else Engine.vector
    assert chosen is (by_buffer if engine is Engine.unknown else engine)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nc_transpose_layouts(layout: str) -> None:
    values = integers(1, 32, 24)

    def body() -> Array:
        dst = laid(np.zeros((24, 32)), F32, layout)
        nc_transpose(dst, laid(values, F32, layout), Engine.vector)
        return contents(dst)

    assert_same(on_core(body), values.T.astype(np.float32))


def test_nc_transpose_in_place_and_from_a_pending_product() -> None:
    values = integers(1, 16, 16)

    def body() -> tuple[Array, Array]:
        square = tile(values, F32)
        nc_transpose(square, square)
        product, dst = psum((16, 16)), empty((16, 16))
        nc_matmul(product, tile(np.eye(16), F32), tile(values, F32))
        nc_transpose(dst, product)
        return contents(square), contents(dst)

    for found in on_core(body):
        assert_same(found, values.T.astype(np.float32))


def test_only_the_tensor_engine_counts_as_a_matmul() -> None:
    def body(engine: Engine) -> Array:
        dst = psum((16, 16))
        nc_transpose(dst, ones((16, 16)), engine)
        nc_matmul(dst, ones((3, 16)), ones((3, 16)))
        return contents(dst)

    assert (on_core(lambda: body(Engine.tensor)) == 4).all()
    assert (on_core(lambda: body(Engine.vector)) == 3).all()


def test_what_nc_transpose_rejects() -> None:
    def call(dst: Any, shape: tuple[int, ...], *engine: Any, dtype: Any = F32) -> Any:
        return nc_transpose(dst(), ones(shape, dtype), *engine)

    op = "nc_transpose: "
    small, wide = lambda: empty((8, 4)), lambda: psum((8, 4))
    rejected(lambda: call(lambda: psum((4, 8), BF16), (8, 4)), op + "dst is bfloat16", "float32")
    rejected(lambda: call(lambda: empty((33, 4)), (4, 33)), op + "data", "4 x 33", "32 x 32")
    rejected(lambda: call(lambda: psum((33, 4)), (4, 33), Engine.vector), "4 x 33", "32 x 32")
    rejected(lambda: call(lambda: psum((129, 4)), (4, 129)), "128")
    rejected(lambda: call(lambda: psum((128, 4)), (4, 129)), op + "data", "4 x 129", "128 x 128")
    rejected(lambda: call(small, (8, 4)), op + "dst", "4 x 8")
    rejected(lambda: call(wide, (8, 4)), op + "dst", "4 x 8")
    rejected(lambda: call(lambda: empty((4, 8)), (8, 4), Engine.tensor), op + "dst", "PSUM")
    rejected(lambda: call(lambda: psum((4, 8)), (8, 4), Engine.gpsimd), op + "engine", "tensor")
    in_psum = lambda: ones((8, 4), F32, PSUM)  # noqa: E731
    rejected(lambda: nc_transpose(psum((4, 8)), in_psum()), op + "data", "SBUF")
    rejected(lambda: nc_transpose(psum((4, 8)), empty((8, 4))), op + "data", "nothing has written")
