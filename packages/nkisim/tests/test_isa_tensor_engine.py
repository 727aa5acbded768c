from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from isa_tiles import (
    LAYOUTS,
    Array,
    assert_same,
    contents,
    empty,
    laid,
    on_core,
    refused,
    rejected,
    sample,
    tile,
    warned,
)
from matmul_tiles import (
    BF16,
    F32,
    FP8,
    FP16,
    PSUM,
    integers,
    ones,
    psum,
)

from nkisim import dtypes
from nkisim.enums import Engine, MatmulPerfMode
from nkisim.isa.matmul import nc_matmul, nc_matmul_mx, nc_transpose
from nkisim.isa.vector import tensor_copy
from nkisim.register import VirtualRegister
from nkisim.settings import Rules

pytestmark = pytest.mark.filterwarnings("error")

NARROW = (BF16, FP16, *FP8)
DOUBLE = MatmulPerfMode.double_row
SBUF_LAYOUTS = [layout for layout in LAYOUTS if layout != "psum"]


# ---- one product ----


@pytest.mark.parametrize(
    ("a", "b"),
    [pair for pair in itertools.product(NARROW, NARROW) if set(pair) != set(FP8[:2])]
    + [(F32, F32)],
)
def test_matmul_dtypes(a: Any, b: Any) -> None:
    rng = np.random.default_rng(1)
    left, right = sample(rng, (96, 40), a), sample(rng, (96, 70), b)

    def body() -> Array:
        dst = psum((40, 70))
        instruction = nc_matmul(dst, tile(left, a), tile(right, b))
        assert instruction.engine is Engine.tensor
        return contents(dst)

    found = on_core(body)
    scale = np.abs(left).T @ np.abs(right)
    assert (np.abs(found - left.T @ right) <= 1e-6 * scale).all()


@pytest.mark.parametrize(
    ("target", "K", "M", "N"),
    [("gen2", 128, 128, 512), ("gen3", 1, 1, 1), ("gen4", 128, 128, 4096), ("gen4", 7, 5, 513)],
)
def test_matmul_shapes(target: str, K: int, M: int, N: int) -> None:
    left, right = integers(1, K, M), integers(2, K, N)

    def body() -> Array:
        dst = psum((M, N))
        nc_matmul(dst, tile(left, BF16), tile(right, BF16))
        return contents(dst)

    assert_same(on_core(body, target), (left.T @ right).astype(np.float32))


@pytest.mark.parametrize("layout", SBUF_LAYOUTS)
def test_moving_layouts(layout: str) -> None:
    left, right = integers(1, 32, 16), integers(2, 32, 24)

    def body() -> Array:
        dst = psum((16, 24))
        nc_matmul(dst, tile(left, BF16), laid(right, BF16, layout))
        return contents(dst)

    assert_same(on_core(body), (left.T @ right).astype(np.float32))


def test_a_stationary_operand_of_two_dimensions_is_doubtful() -> None:
    left, right = integers(1, 32, 24), integers(2, 32, 10)

    def body(layout: str) -> Array:
        dst = psum((24, 10))
        nc_matmul(dst, laid(left, BF16, layout), tile(right, BF16))
        return contents(dst)

    wanted = (left.T @ right).astype(np.float32)
    # contiguous dimensions are one to the hardware, and so is one with a stride
    for layout in ("plain", "three", "strided"):
        assert_same(on_core(lambda layout=layout: body(layout)), wanted)
    found = warned(lambda: body("permuted"), "stationary_dims", stationary_dims="warn")
    assert_same(found, wanted)
    rejected(lambda: body("permuted"), "stationary", "2 free", rules=Rules(stationary_dims="error"))


def test_convolution_windows() -> None:
    """Moving [K, rows, columns] out of a larger image, into a window of a larger result."""
    image, kernel = integers(3, 16, 10 * 12), integers(4, 16, 8 * 9)

    def body() -> Array:
        source = tile(image.reshape(16, 10, 12), BF16)
        weights = tile(kernel.reshape(16, 9, 8), BF16)
        result = psum((8, 8, 10))
        for tap, (dy, dx) in enumerate(itertools.product(range(3), range(3))):
            window = source[:, dy : dy + 8, dx : dx + 10]
            nc_matmul(result, weights[:, tap], window, accumulate=tap > 0)
        return contents(result)

    pixels, taps = image.reshape(16, 10, 12), kernel.reshape(16, 9, 8)
    wanted = np.zeros((8, 8, 10))
    for m, y, x in itertools.product(range(8), range(8), range(10)):
        patch = pixels[:, y : y + 3, x : x + 3].reshape(16, 9)
        wanted[m, y, x] = (patch * taps[:, :, m]).sum()
    assert_same(on_core(body), wanted.reshape(8, 80).astype(np.float32))


def test_tfloat32_operands() -> None:
    values = np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)

    def body() -> Array:
        left, right = empty((8, 8), dtypes.tfloat32), empty((8, 8), dtypes.tfloat32)
        tensor_copy(left, tile(values))
        tensor_copy(right, tile(values))
        dst = psum((8, 8))
        nc_matmul(dst, left, right)
        nc_matmul(psum((8, 8)), left, tile(values))
        return contents(dst)

    # ten bits of mantissa below the leading one
    exponent = np.floor(np.log2(np.abs(values.astype(np.float64))))
    rounded = np.rint(values / 2.0 ** (exponent - 10)) * 2.0 ** (exponent - 10)
    np.testing.assert_allclose(on_core(body), rounded.T @ rounded, rtol=1e-5, atol=1e-5)


def test_hints_change_nothing() -> None:
    def body() -> Array:
        dst = psum((4, 4))
        nc_matmul(dst, tile(np.eye(4), BF16), ones((4, 4), BF16), True, True)
        return contents(dst)

    assert (on_core(body) == 1).all()


# ---- dynamic operands ----


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_windows_that_a_register_chooses(dtype: Any) -> None:
    source = integers(1, 8, 40)

    def body() -> Array:
        data, dst = tile(source, F32), psum((8, 5, 8), dtype)
        for k in (3, 0, 3):
            register = VirtualRegister(k)
            moving = data.ap([[40, 8], [1, 8]], scalar_offset=register, indirect_dim=1)
            nc_matmul(dst[:, register], tile(np.eye(8), F32), moving)
        return contents(dst[:, 3]), contents(dst[:, 0])

    chosen, first = on_core(body)
    assert_same(chosen, (2 * source[:, 3:11]).astype(dtype.numpy))
    assert_same(first, source[:, 0:8].astype(dtype.numpy))


def test_windows_of_registers_in_a_run_without_numerics() -> None:
    def body() -> list[int]:
        dst = psum((8, 5, 8))
        register = VirtualRegister()
        step = lambda: nc_matmul(dst[:, register], ones((8, 8)), ones((8, 8)))  # noqa: E731
        return [len(step().writes) for _ in range(2)]

    assert on_core(body, numerics=False) == [1, 1]


def test_indirect_operands() -> None:
    """Groups of 32 partitions share their indices on the Tensor engine."""
    left, right = integers(1, 64, 20), integers(2, 64, 30)
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 20, (64, 1)), rng.integers(0, 30, (64, 2))

    def body() -> Array:
        stationary = tile(left, BF16).indirect(tile(a, dtypes.uint32), 32)
        moving = tile(right, BF16).indirect(tile(b, dtypes.uint32), 50)
        dst = psum((32, 50))
        nc_matmul(dst, stationary, moving)
        return contents(dst)

    def chosen(values: Array, index: Array, count: int) -> Array:
        rows = []
        for p in range(64):
            group = index[p // 32 * 32 : p // 32 * 32 + 32]
            rows.append([values[p, group[i % 32, i // 32]] for i in range(count)])
        return np.array(rows)

    wanted = chosen(left, a, 32).T @ chosen(right, b, 50)
    assert_same(on_core(body), wanted.astype(np.float32))


def test_what_indirect_operands_may_not_do() -> None:
    def gathered(dtype: Any = BF16, shape: tuple[int, int] = (32, 32)) -> Any:
        return ones(shape, dtype).indirect(tile(np.zeros((32, 1)), dtypes.uint32), 32)

    dst = lambda dtype=F32: psum((32, 32), dtype)  # noqa: E731
    eye = lambda: tile(np.eye(32), BF16)  # noqa: E731
    rejected(lambda: nc_matmul(dst(), gathered(F32), ones((32, 32))), "stationary is float32")
    rejected(
        lambda: nc_matmul(dst(), eye(), gathered(), tile_position=(0, 0), tile_size=(32, 32)),
        "moving is indirect", "tile_position",
    )  # fmt: skip
    rejected(
        lambda: nc_matmul(dst(BF16), eye(), gathered(), is_transpose=True), "moving is indirect"
    )
    rejected(
        lambda: nc_matmul(
            psum((32, 32)).indirect(tile(np.zeros((32, 1)), dtypes.uint32), 32), eye(), eye()
        ),
        "nc_matmul: dst", "chosen by a tensor",
    )  # fmt: skip


# ---- double_row ----


@pytest.mark.parametrize("dtype", FP8)
def test_double_row(dtype: Any) -> None:
    left, right = integers(1, 64, 2, 24), integers(2, 64, 2, 100)

    def body() -> tuple[Array, Any]:
        dst = psum((24, 100))
        a, b = tile(left, dtype), tile(right, dtype)
        instruction = nc_matmul(
            dst, a, b, perf_mode=DOUBLE, tile_position=(0, 0), tile_size=(64, 128)
        )
        nc_matmul(dst, a, b, perf_mode="double_row")
        return contents(dst), instruction.details

    found, details = on_core(body)
    assert_same(found, 2 * np.einsum("kjm,kjn->mn", left, right).astype(np.float32))
    assert details == {"perf_mode": "double_row", "is_transpose": False}


def test_double_row_of_the_largest_shape() -> None:
    left, right = integers(1, 128, 2, 128), integers(2, 128, 2, 4096)

    def body() -> Array:
        dst = psum((128, 4096))
        for _ in range(2):
            nc_matmul(
                dst, tile(left, FP8[1]), tile(right, FP8[1]), perf_mode=DOUBLE,
                tile_position=(0, 0), tile_size=(128, 128),
            )  # fmt: skip
        return contents(dst)

    wanted = 2 * left.reshape(256, 128).T @ right.reshape(256, 4096)
    assert_same(on_core(body), wanted.astype(np.float32))


def test_what_double_row_rejects() -> None:
    fp8 = dtypes.float8_e5m2

    def call(
        left: tuple[int, ...] = (32, 2, 8), right: tuple[int, ...] = (32, 2, 16), dtype: Any = fp8,
        dst: tuple[int, int] = (8, 16), **options: Any,
    ) -> Any:  # fmt: skip
        options.setdefault("perf_mode", DOUBLE)
        kind = dtype if options.get("is_transpose") else F32
        return nc_matmul(psum(dst, kind), ones(left, dtype), ones(right, dtype), **options)

    on_core(call, "gen3")
    rejected(call, "double_row", "gen3", target="gen2")
    rejected(lambda: call(dtype=BF16), "stationary is bfloat16", "float8_e5m2")
    rejected(lambda: call((32, 16)), "stationary", "[K, 2, columns]")
    rejected(lambda: call((32, 4, 4)), "stationary", "[K, 2, columns]")
    rejected(lambda: call(right=(32, 32)), "moving", "[K, 2, columns]")
    rejected(lambda: call(is_transpose=True), "double_row", "is_transpose")
    rejected(lambda: call(tile_position=(0, 0), tile_size=(32, 64)), "double_row", "column tiles")
    rejected(lambda: call(dst=(8, 32)), "dst", "8 x 16")
    refused(lambda: call(perf_mode="triple_row"), "perf_mode", "triple_row")
    refused(lambda: call(perf_mode=1), "perf_mode", "1")


# ---- what nc_matmul rejects ----


def test_what_matmul_rejects() -> None:
    def call(
        K: int = 8,
        M: int = 4,
        N: int = 6,
        a: Any = BF16,
        b: Any = BF16,
        dst: Any = None,
        **options: Any,
    ) -> Any:
        result = psum((M, N)) if dst is None else dst()
        return nc_matmul(result, ones((K, M), a), ones((K, N), b), **options)

    e4m3, e4m3fn = FP8[0], FP8[1]
    op = "nc_matmul: "
    rejected(lambda: call(a=dtypes.int8), op + "stationary is int8", "bf16")
    rejected(lambda: call(b=dtypes.uint8), op + "moving is uint8", "bf16")
    rejected(lambda: call(b=dtypes.float8_e4m3fn_x4), op + "moving is float8_e4m3fn_x4")
    rejected(lambda: call(a=F32), op + "stationary is float32 and moving bfloat16", "both")
    rejected(lambda: call(b=F32), op + "stationary is bfloat16 and moving float32", "both")
    rejected(lambda: call(a=e4m3, b=e4m3fn), op + "stationary is float8_e4m3 and moving", "mix")
    rejected(lambda: call(a=e4m3fn), op + "stationary is float8_e4m3fn", target="gen3")
    rejected(lambda: call(b=e4m3fn), op + "moving is float8_e4m3fn", target="gen3")
    rejected(lambda: call(dst=lambda: psum((4, 6), FP16)), op + "dst is float16", "float32")
    rejected(lambda: call(dst=lambda: psum((4, 6), dtypes.int32)), op + "dst is int32", "float32")
    rejected(
        lambda: call(dst=lambda: psum((4, 6), BF16)), "bfloat16 dst", "gen4", "gen3", target="gen3"
    )
    rejected(lambda: call(N=513), op + "moving has 513 columns", "gen3", "512", target="gen3")
    rejected(lambda: call(N=4097, dst=lambda: psum((4, 4096))), op + "moving has 4097", "4096")
    rejected(
        lambda: call(N=8193, dst=lambda: psum((4, 8192), BF16)), op + "moving has 8193", "8192"
    )
    on_core(lambda: call(N=8192, dst=lambda: psum((4, 8192), BF16)))
    rejected(
        lambda: call(M=129, dst=lambda: psum((128, 6))), op + "stationary has 129 columns", "128"
    )
    rejected(lambda: call(dst=lambda: psum((4, 7))), op + "dst", "4 x 7", "4 x 6")
    rejected(lambda: call(dst=lambda: psum((5, 6))), op + "dst", "5 x 6", "4 x 6")
    rejected(lambda: call(dst=lambda: empty((4, 6))), op + "dst", "PSUM")
    refused(lambda: call(accumulate=1), op + "accumulate is 1", "None, True or False")
    refused(lambda: call(dst=lambda: np.zeros((4, 6))), op + "dst", "tensor")
    in_psum = lambda: ones((8, 4), F32, PSUM)  # noqa: E731
    rejected(lambda: nc_matmul(psum((4, 6)), in_psum(), ones((8, 6))), op + "stationary", "SBUF")
    rejected(lambda: nc_matmul(psum((6, 4)), ones((8, 6)), in_psum()), op + "moving", "SBUF")
    rejected(
        lambda: nc_matmul(psum((4, 6)), ones((8, 4)), ones((9, 6))),
        op + "stationary has 8 partitions and moving 9",
    )
    rejected(
        lambda: nc_matmul(psum((4, 6)), empty((8, 4)), ones((8, 6))),
        op + "stationary", "nothing has written",
    )  # fmt: skip
    rejected(
        lambda: nc_matmul(psum((4, 6)), ones((16, 4))[8:16], ones((8, 6))), op + "stationary starts"
    )


def test_a_destination_outside_psum_cannot_be_simulated_at_any_level() -> None:
    rejected(
        lambda: nc_matmul(empty((4, 6)), ones((8, 4)), ones((8, 6))),
        "nc_matmul: dst", "PSUM", rules=Rules(constraint="off"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("position", "size", "K", "M", "words"),
    [
        ((16, 0), (32, 32), 32, 32, ("tile_position is (16, 0)", "(32, 32)")),
        ((0, 96), (128, 64), 32, 32, ("tile_position is (0, 96)", "(128, 64)")),
        ((64, 0), (128, 128), 32, 32, ("tile_position is (64, 0)", "128 x 128")),
        ((0, 0), (16, 128), 16, 32, ("tile_size is (16, 128)", "32, 64, 128")),
        ((0, 0), (128, 100), 16, 32, ("tile_size is (128, 100)", "32, 64, 128")),
        ((0, 0), (32, 128), 64, 32, ("stationary", "does not fit", "(32, 128)")),
        ((0, 0), (128, 32), 64, 33, ("stationary", "does not fit", "(128, 32)")),
    ],
)
def test_tiles_of_the_array(
    position: Any, size: Any, K: int, M: int, words: tuple[str, ...]
) -> None:
    def call(position: Any, size: Any) -> Any:
        return nc_matmul(
            psum((M, 8)), ones((K, M), BF16), ones((K, 8), BF16),
            tile_position=position, tile_size=size,
        )  # fmt: skip

    rejected(lambda: call(position, size), "nc_matmul", *words)
    on_core(lambda: call((0, 0), (128, 128)))
    on_core(lambda: call((), ()))
    refused(lambda: call((0, 0), ()), "tile_position is (0, 0)", "tile_size ()")
    refused(lambda: call((0, 0, 0), (128, 128)), "tile_position is (0, 0, 0)")


def test_row_tiles_compute_what_the_whole_array_would() -> None:
    left, right = integers(1, 128, 16), integers(2, 128, 24)

    def body() -> Array:
        dst = psum((16, 24))
        a, b = tile(left, BF16), tile(right, BF16)
        for row in (0, 32, 64, 96):
            part = slice(row, row + 32)
            nc_matmul(dst, a[part], b[part], tile_position=(row, 0), tile_size=(32, 128))
        return contents(dst)

    assert_same(on_core(body), (left.T @ right).astype(np.float32))
    rejected(
        lambda: nc_matmul(
            psum((16, 8)), ones((32, 16)), ones((32, 8)), tile_position=(0, 0), tile_size=(32, 128)
        ),
        "tile_size is (32, 128)", "64, 128", target="gen2",
    )  # fmt: skip


# ---- the record ----


@pytest.mark.parametrize("numerics", [True, False])
def test_every_kind_of_product_is_recorded(numerics: bool) -> None:
    def body() -> list[tuple[str, Any]]:
        dtype = dtypes.float8_e4m3fn_x4
        one = tile(np.zeros((32, 4)), dtypes.uint32).view(dtype)
        scale = tile(np.full((32, 4), 127), dtypes.uint8)
        eye = tile(np.eye(32), BF16)
        made = [
            nc_matmul(psum((4, 6)), ones((8, 4)), ones((8, 6))),
            nc_matmul(psum((32, 32), BF16), eye, eye, is_transpose=True),
            nc_matmul_mx(psum((4, 4)), one, one, scale, scale),
            nc_transpose(psum((6, 8)), ones((8, 6))),
        ]
        return [(instruction.op, instruction.details) for instruction in made]

    plain = {"perf_mode": "none", "is_transpose": False}
    assert on_core(body, numerics=numerics) == [
        ("nc_matmul", plain),
        ("nc_matmul", plain | {"is_transpose": True}),
        ("nc_matmul_mx", None),
        ("nc_transpose", None),
    ]
