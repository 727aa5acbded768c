"""The kernels of the NKI documentation, as they are.

Run with the environment variable `NEURON_SDK` set to a checkout of aws-neuron/aws-neuron-sdk.
"""

from __future__ import annotations

import importlib
import os
import runpy
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from third_party_support import Array, assert_close, brought_in

import nkisim

VARIABLE = "NEURON_SDK"
pytestmark = pytest.mark.skipif(
    VARIABLE not in os.environ, reason=f"{VARIABLE} does not name a checkout of aws-neuron-sdk"
)

BF16 = np.dtype(ml_dtypes.bfloat16)
E5M2 = np.dtype(ml_dtypes.float8_e5m2)
E2M1 = np.dtype(ml_dtypes.float4_e2m1fn)
FOLDERS = ("average_pool2d", "transpose2d", "matrix_multiplication", "tensor_addition",
           "fused_mamba")  # fmt: skip


class Guide:
    """The documentation's examples, by their place in a checkout."""

    def __init__(self, root: Path) -> None:
        self.examples = root / "nki" / "examples"
        self.mx = root / "nki" / "deep-dives" / "src" / "mxfp-matmul"

    def paths(self) -> list[str]:
        return [str(self.mx), *(str(self.examples / folder) for folder in FOLDERS)]

    def module(self, name: str) -> types.ModuleType:
        return importlib.import_module(name)

    def file(self, name: str) -> dict[str, Any]:
        return runpy.run_path(str(self.examples / name))


@pytest.fixture(scope="module")
def guide() -> Iterator[Guide]:
    found = Guide(Path(os.environ[VARIABLE]))
    names = [Path(path).stem for folder in found.paths() for path in Path(folder).glob("*.py")]
    with brought_in(found.paths(), ("nki", *names)):
        yield found


def _random(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


MATMULS = {
    "nki_matmul_basic_": (128, 64, 512),
    "nki_matmul_tiled_": (256, 256, 1024),
    "nki_matmul_hoist_load_": (256, 256, 1024),
    "nki_matmul_block_free_dimension_": (256, 512, 1024),
    "nki_matmul_fully_optimized_": (1024, 2048, 1024),
}


@pytest.mark.parametrize("target", ["gen2", "gen3", "gen4"])
@pytest.mark.parametrize("name", MATMULS)
def test_matrix_multiplication(guide: Guide, name: str, target: str) -> None:
    k, m, n = MATMULS[name]
    left, right = _random(k, m, dtype=BF16), _random(k, n, seed=1, dtype=BF16)
    kernel = getattr(guide.module("matrix_multiplication_nki_kernels"), name)
    result = nkisim.simulate(kernel, target=target)(left, right)
    assert_close(result, left.astype(np.float32).T @ right.astype(np.float32), 2**-8)


def _windows(x: Array, pool: int) -> Array:
    c, h, w = x.shape
    return x.reshape(c, h // pool, pool, w // pool, pool).swapaxes(2, 3)


def test_average_pooling(guide: Guide) -> None:
    x = _random(32, 12, 8)
    module = guide.module("average_pool2d_nki_kernels")
    result = nkisim.simulate(module.tensor_avgpool_kernel)(x, 4)
    assert_close(result, _windows(x, 4).mean((3, 4)), 1e-6)


def test_maximum_pooling(guide: Guide) -> None:
    x = _random(32, 12, 8)
    kernel = guide.file("index-case-3.py")["tensor_maxpool_kernel_"]
    result = nkisim.simulate(kernel)(x, 2)
    np.testing.assert_array_equal(result, _windows(x, 2).max((3, 4)))


def test_transposition_within_rows(guide: Guide) -> None:
    x = _random(128, 3 * 8)
    kernel = guide.module("transpose2d_nki_kernels").tensor_transpose2D_kernel_
    result = nkisim.simulate(kernel)(x, (3, 8))
    np.testing.assert_array_equal(result, x.reshape(128, 3, 8).swapaxes(1, 2).reshape(128, 24))


def test_even_and_odd_columns(guide: Guide) -> None:
    x = _random(20, 33, dtype=BF16)
    kernel = guide.file("index-case-1.py")["tensor_split_kernel_"]
    even, odd = nkisim.simulate(kernel)(x)
    np.testing.assert_array_equal(even, x[:, ::2])
    np.testing.assert_array_equal(odd, x[:, 1::2])


@pytest.mark.parametrize("lnc", [1, 2])
def test_addition(guide: Guide, lnc: int) -> None:
    a, b = _random(128, 512), _random(128, 512, seed=1)
    kernel = guide.module("tensor_addition_nki_kernels").nki_tensor_add
    np.testing.assert_array_equal(nkisim.simulate(kernel)[lnc](a, b), a + b)


def test_the_example_of_the_simulator(guide: Guide) -> None:
    """The page on `nki.simulate`, run as it is: it checks its result itself."""
    values = guide.file("simulate/nki_simulate_example.py")
    assert values["result"].shape == (128, 512)


@pytest.mark.parametrize("name", ["mamba_v1", "mamba_v2", "mamba_v3"])
def test_mamba(guide: Guide, name: str) -> None:
    batch, channels, length, states = 1, 128, 512, 4
    delta, u = (_random(batch, channels, length, seed=seed) for seed in (0, 1))
    a = -np.abs(_random(channels, states, seed=2))
    b, c = (_random(batch, states, length, seed=seed) for seed in (3, 4))
    delta = np.abs(delta)
    kernel = getattr(guide.module("mamba_nki_kernels"), name)
    result = nkisim.simulate(kernel)(delta, u, a, b, c)

    state = np.zeros((batch, channels, states))
    expected = np.empty((batch, channels, length))
    for t in range(length):
        step = delta[:, :, t, None]
        state = np.exp(step * a) * state + step * u[:, :, t, None] * b[:, None, :, t]
        expected[:, :, t] = (state * c[:, None, :, t]).sum(-1)
    assert_close(result, expected, 1e-5)


# MX matmuls, whose host side is part of the example


def _mx(guide: Guide, name: str) -> Any:
    return nkisim.simulate(getattr(guide.module("mx_kernels"), name), target="gen4")


def _packed_type(dtype: Any) -> Any:
    import nki.language as nl  # pants: no-infer-dep

    return nl.float8_e5m2_x4 if dtype == E5M2 else nl.float4_e2m1fn_x4


@pytest.mark.parametrize("dtype", [E5M2, E2M1], ids=str)
def test_mx_matmul_of_what_the_host_quantised(guide: Guide, dtype: Any) -> None:
    host = guide.module("mx_cpu_utils")
    _, _, left, left_scale = host.generate_stabilized_mx_data(dtype.type, (128, 128 * 4))
    _, _, right, right_scale = host.generate_stabilized_mx_data(dtype.type, (128, 512 * 4))
    run = _mx(guide, "kernel_offline_quantized_mx_matmul")
    result = run(left, left_scale, right, right_scale, _packed_type(dtype))
    expected = host.nc_matmul_mx_golden(
        left, right, left_scale, right_scale, dtype.type, dtype.type
    )
    assert_close(result, expected, 2**-8)


@pytest.mark.parametrize("left_dtype", [E2M1, E5M2], ids=str)
def test_mx_matmul_with_quantisation_on_the_device(guide: Guide, left_dtype: Any) -> None:
    host = guide.module("mx_cpu_utils")
    _, _, left, left_scale = host.generate_stabilized_mx_data(left_dtype.type, (128, 128 * 4))
    values, _, right, right_scale = host.generate_stabilized_mx_data(E5M2.type, (128, 512 * 4))
    run = _mx(guide, "kernel_on_device_quantize_matmul_mx")
    types = _packed_type(left_dtype), _packed_type(E5M2)
    result = run(left, left_scale, values.astype(BF16), *types)
    expected = host.nc_matmul_mx_golden(
        left, right, left_scale, right_scale, left_dtype.type, E5M2.type
    )
    assert_close(result, expected, 2**-8)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("by_copy", [False, True])
def test_mx_matmul_of_strided_operands(guide: Guide, by_copy: bool, packed: bool) -> None:
    host = guide.module("mx_cpu_utils")
    left, *_ = host.generate_stabilized_mx_data(E5M2.type, (512, 128))
    right, *_ = host.generate_stabilized_mx_data(E5M2.type, (512, 512))
    name = "kernel_copy_strided_quantize_matmul_mx" + "_packed_scale" * packed
    run = _mx(guide, name)
    result = run(left.astype(BF16), right.astype(BF16), _packed_type(E5M2), by_copy)
    assert_close(result, left.T.astype(np.float64) @ right, 5e-2, 5e-2)
