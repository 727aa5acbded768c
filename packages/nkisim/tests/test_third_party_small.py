"""The smaller kernels of aws-neuron/nki-library, as they are, against the references beside them.

Run with the environment variable `NKI_LIBRARY` set to a checkout. Tolerances are those of the
library's own tests, where they say one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import third_party_support as support
import torch
from third_party_support import Array, Library, assert_close, to_torch

import nkisim

pytestmark = [
    pytest.mark.skipif(not support.is_checkout(), reason=support.MISSING),
    pytest.mark.filterwarnings("ignore::nkisim.NkiWarning"),
]

BF16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture(scope="module")
def library() -> Iterator[Library]:
    with support.library() as found:
        yield found


def _random(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _torch(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: to_torch(value) for name, value in inputs.items()}


# maxima and indices


@pytest.mark.parametrize(("batch", "vocabulary"), [(3, 3168), (8, 4058)])
@pytest.mark.parametrize("lnc", [1, 2])
def test_cascaded_max(library: Library, batch: int, vocabulary: int, lnc: int) -> None:
    x = _random(batch, 1, vocabulary)
    x[0, 0, 7] = x[0, 0].max() + 1
    maxima, indices = nkisim.simulate(library.core("max.cascaded_max").cascaded_max)[lnc](x)
    np.testing.assert_array_equal(maxima.reshape(batch), x.max(-1)[:, 0])
    np.testing.assert_array_equal(indices.reshape(batch), x.argmax(-1)[:, 0])


@pytest.mark.parametrize("columns", [(None, None), (8, 4)])
@pytest.mark.parametrize("lnc", [1, 2])
def test_find_nonzero_indices(
    library: Library, columns: tuple[int | None, int | None], lnc: int
) -> None:
    start, count = columns
    rng = np.random.default_rng(0)
    x = (rng.random((512, 16)) < 0.1).astype(np.float32)
    inputs: dict[str, Any] = {"input_tensor": x}
    if start is not None:
        inputs |= {"col_start_id": np.array([start], np.int32), "n_cols": count}
    kernel = library.core("subkernels.find_nonzero_indices").find_nonzero_indices
    indices, counts = nkisim.simulate(kernel)[lnc](**inputs)
    first = start or 0
    chosen = range(first, first + (count or x.shape[1]))
    for row, column in enumerate(chosen):
        wanted = np.flatnonzero(x[:, column])
        assert counts[row] == len(wanted)
        np.testing.assert_array_equal(indices[row, : len(wanted)], wanted)
        assert (indices[row, len(wanted) :] == -1).all()


def test_find_nonzero_indices_with_count(library: Library) -> None:
    x = (np.random.default_rng(0).random((1, 300)) < 0.2).astype(np.float32)
    kernel = library.experimental("benchmark.find_nonzero_indices_with_count")
    result = nkisim.simulate(kernel.find_nonzero_indices_with_count)(x)
    wanted = np.flatnonzero(x)
    found = result.reshape(-1)
    np.testing.assert_array_equal(found[: len(wanted)], wanted)
    assert (found[len(wanted) : 300] == -1).all()
    assert found[300] == len(wanted)


def test_indexed_flatten(library: Library) -> None:
    experts, length, block = 8, 256, 16
    rng = np.random.default_rng(0)
    x = rng.integers(0, 1000, (experts, length)).astype(np.int32)
    # in units of blocks; later rows overwrite what earlier ones put behind their part
    offsets = np.sort(rng.choice(48, experts, replace=False)).astype(np.int32)
    inputs = {
        "input_tensor": x, "f_len": block, "output_len": 1024, "row_offsets": offsets,
    }  # fmt: skip
    kernel = library.core("subkernels.indexed_flatten").indexed_flatten
    reference = library.core("subkernels.indexed_flatten_torch").indexed_flatten_torch_ref
    result = nkisim.simulate(kernel)[2](**inputs)
    expected = reference(**_torch(inputs))
    np.testing.assert_array_equal(result.reshape(-1), _only(expected).numpy().reshape(-1))


def _only(reference: Any) -> torch.Tensor:
    """A reference's one result, which some give a name."""
    found = next(iter(reference.values())) if isinstance(reference, dict) else reference
    assert isinstance(found, torch.Tensor)
    return found


# convolutions


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "bias"),
    [(1, (0, 0), 1, False), (2, (1, 1), 1, True), (1, (2, 1), 2, True)],
)
@pytest.mark.parametrize("lnc", [1, 2])
def test_conv1d(
    library: Library, stride: int, padding: tuple[int, int], dilation: int, bias: bool, lnc: int
) -> None:
    inputs: dict[str, Any] = {
        "x_in": _random(2, 160, 100, dtype=BF16),
        "filters": _random(3, 160, 192, seed=1, dtype=BF16),
        "bias": _random(192, seed=2, dtype=BF16) if bias else None,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "lnc_shard": lnc == 2,
    }
    kernel = library.experimental("conv.conv1d").conv1d
    result = nkisim.simulate(kernel)[lnc](**inputs)
    singles = {
        name: value.astype(np.float32) if isinstance(value, np.ndarray) else value
        for name, value in inputs.items()
    }
    reference = library.experimental("conv.conv1d_torch").conv1d_torch_ref(**_torch(singles))
    assert_close(result, _only(reference), 1e-2, 1e-2)


def test_depthwise_conv1d(library: Library) -> None:
    channels, length, taps = 128, 64, 4
    image, filters = _random(1, channels, 1, length), _random(channels, 1, 1, taps, seed=1)
    kernel = library.experimental("conv.depthwise_conv1d").depthwise_conv1d_implicit_gemm
    result = nkisim.simulate(kernel)(
        image, filters, padding=((0, 0), (0, 0)), feature_group_count=channels
    )
    expected = torch.nn.functional.conv2d(
        to_torch(image).double(), to_torch(filters).double(), groups=channels
    )
    assert_close(result, expected, 1e-5)


# loss


@pytest.mark.parametrize(("tokens", "batch", "chunk"), [(1, 1, 300), (6, 4, 128), (130, 8, 300)])
@pytest.mark.parametrize("lnc", [1, 2])
def test_cross_entropy(library: Library, tokens: int, batch: int, chunk: int, lnc: int) -> None:
    import nki.language as nl  # pants: no-infer-dep

    module = library.experimental("loss.cross_entropy")
    logits = _random(tokens, 300)
    targets = np.random.default_rng(1).integers(0, 300, tokens).astype(np.int32)
    options = {"positions_per_batch": batch, "chunk_size": chunk, "dtype": nl.float32}
    loss, lse = nkisim.simulate(module.cross_entropy_forward)[lnc](logits, targets, **options)
    leaf = to_torch(logits).double().requires_grad_()
    wanted = torch.nn.functional.cross_entropy(leaf, to_torch(targets).long(), reduction="none")
    assert_close(loss, wanted.detach(), 1e-5)
    assert_close(lse, torch.logsumexp(leaf, -1).detach(), 1e-5)

    wanted.mean().backward()
    backward = nkisim.simulate(module.cross_entropy_backward)[lnc]
    gradient = backward(logits.copy(), targets, lse, reduction="mean", inplace=False, **options)
    assert_close(gradient, leaf.grad, 1e-5)


# a loop whose length is known on the device only


@pytest.mark.parametrize("tiles", [0, 1, 3])
@pytest.mark.parametrize("lnc", [1, 2])
def test_dynamic_elementwise_add(library: Library, tiles: int, lnc: int) -> None:
    a, b = _random(384, 512, dtype=BF16), _random(384, 512, seed=1, dtype=BF16)
    kernel = library.experimental("dynamic_shapes.dynamic_elementwise_add").dynamic_elementwise_add
    result = nkisim.simulate(kernel)[lnc](a, b, np.array([[tiles]], np.int32))
    rows = 128 * tiles
    np.testing.assert_array_equal(result[:rows], (a + b)[:rows])


# normalisation of a few tokens, left in SBUF


def _normed(library: Library, kind: str) -> Any:
    """A kernel around the sub-kernel, which writes its result to HBM."""
    import nki.isa as nisa  # pants: no-infer-dep
    import nki.language as nl  # pants: no-infer-dep

    subkernel = getattr(library.core(f"subkernels.{kind}_tkg"), f"{kind}_tkg")

    def kernel(x: Any, gamma: Any, beta: Any = None) -> Any:
        tokens, hidden = x.shape[0] * x.shape[1], x.shape[2]
        found = nl.ndarray((128, tokens, hidden // 128), x.dtype)
        more = {} if beta is None else {"beta": beta}
        subkernel(x, gamma, found, **more)
        out = nl.ndarray(found.shape, x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(out, found)
        return out

    return kernel


@pytest.mark.parametrize("tokens", [1, 6])
@pytest.mark.parametrize("lnc", [1, 2])
def test_rmsnorm_of_few_tokens(library: Library, tokens: int, lnc: int) -> None:
    x, gamma = _random(tokens, 1, 512, dtype=BF16), _random(1, 512, seed=1, dtype=BF16)
    result = nkisim.simulate(_normed(library, "rmsnorm"))[lnc](x, gamma)
    single = to_torch(x).float()
    wanted = single * torch.rsqrt(single.square().mean(-1, keepdim=True) + 1e-6)
    assert_close(_hidden_last(result, lnc), (wanted * to_torch(gamma).float())[:, 0], 1e-2, 1e-2)


@pytest.mark.parametrize("with_beta", [False, True])
@pytest.mark.parametrize("lnc", [1, 2])
def test_layernorm_of_few_tokens(library: Library, with_beta: bool, lnc: int) -> None:
    x, gamma = _random(6, 1, 512, dtype=BF16), _random(1, 512, seed=1, dtype=BF16)
    beta = _random(1, 512, seed=2, dtype=BF16) if with_beta else None
    result = nkisim.simulate(_normed(library, "layernorm"))[lnc](x, gamma, beta)
    single = to_torch(x).float()
    wanted = torch.nn.functional.layer_norm(single, (512,), eps=1e-6) * to_torch(gamma).float()
    if beta is not None:
        wanted = wanted + to_torch(beta).float()
    assert_close(_hidden_last(result, lnc), wanted[:, 0], 1e-2, 1e-2)


def _hidden_last(result: Array, lnc: int) -> Array:
    """`[128, tokens, hidden / 128]` as `[tokens, hidden]`; each core has its part of the hidden
    dimension, a partition of which holds neighbours."""
    partitions, tokens, columns = result.shape
    parts = result.reshape(partitions, tokens, lnc, columns // lnc)
    return parts.transpose(1, 2, 0, 3).reshape(tokens, partitions * columns)
