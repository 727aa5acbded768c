"""Kernels of transformer layers of aws-neuron/nki-library, as they are, against the references
beside them.

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
FP8 = np.dtype(ml_dtypes.float8_e4m3)
LARGEST_FP8 = 240.0


@pytest.fixture(scope="module")
def library() -> Iterator[Library]:
    with support.library() as found:
        yield found


def _random(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def _single(array: Array) -> Array:
    return array.astype(np.float32)


# attention, backward

BACKWARD: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"use_causal_mask": True},
    "sliding": {"use_causal_mask": True, "sliding_window": 100},
    "grouped": {"use_causal_mask": True, "heads": 4},
    "mixed": {"use_causal_mask": True, "mixed_precision": True},
    "sink": {"use_causal_mask": True, "sinks": 1},
}


@pytest.mark.parametrize("case", BACKWARD)
@pytest.mark.parametrize("lnc", [1, 2])
def test_attention_bwd(library: Library, case: str, lnc: int) -> None:
    options = dict(BACKWARD[case])
    heads, sinks = options.pop("heads", 2), options.pop("sinks", 0)
    shape = 1, 2, 64, 512
    q, dy = (_random(1, heads, 64, 512, seed=seed, dtype=BF16) for seed in (1, 4))
    k, v = (_random(*shape, seed=seed, dtype=BF16) for seed in (2, 3))
    sink = _random(1, heads, seed=5, dtype=BF16) if sinks else None
    module = library.core("attention.attention_bwd_torch")
    o, lse, _ = module.compute_o_lse(
        to_torch(q),
        to_torch(k),
        to_torch(v),
        options.get("use_causal_mask", False),
        options.get("mixed_precision", False),
        sliding_window=options.get("sliding_window"),
        sinks=None if sink is None else to_torch(sink),
    )
    inputs: dict[str, Any] = {
        "q_ref": q, "k_ref": k, "v_ref": v, "o_ref": o.float().numpy().astype(BF16),
        "dy_ref": dy, "lse_ref": lse.float().numpy(), "sinks_ref": sink,
    }  # fmt: skip
    inputs |= options
    kernel = library.core("attention.attention_bwd").attention_bwd
    results = nkisim.simulate(kernel)[lnc](**inputs)
    reference = module.attention_bwd_torch_ref(**{n: to_torch(x) for n, x in inputs.items()})
    expected = list(reference.values()) if isinstance(reference, dict) else list(reference)
    for result, wanted in zip(results, expected, strict=True):
        assert_close(result.reshape(wanted.shape), wanted, 2e-2, 1e-5)


# output projection


def _quantised(values: Array, axis: int | None) -> tuple[Array, Array]:
    """fp8 codes, and the scale that gives the values back."""
    scale = np.abs(values).max(axis=axis, keepdims=True) / LARGEST_FP8
    return (values / scale).astype(FP8), scale.astype(np.float32)


@pytest.mark.parametrize("quantisation", ["NONE", "STATIC", "ROW"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("lnc", [1, 2])
def test_output_projection_of_few_tokens(
    library: Library, quantisation: str, transposed: bool, lnc: int
) -> None:
    heads, d, hidden = 4, 64, 1024
    kind = library.core("utils.common_types").QuantizationType[quantisation]
    attention = _random(d, 2, heads, 3, dtype=BF16)
    weight = _random(heads * d, hidden, seed=1) / 16
    inputs: dict[str, Any] = {
        "attention": attention,
        "weight": weight.astype(BF16),
        "bias": _random(1, hidden, seed=2, dtype=BF16),
        "quantization_type": kind,
        "TRANSPOSE_OUT": transposed,
    }
    used = _single(inputs["weight"])
    if quantisation != "NONE":
        codes, scale = _quantised(weight, 0 if quantisation == "ROW" else None)
        width = hidden if quantisation == "ROW" else 1
        inputs |= {"weight": codes, "weight_scale": np.tile(scale, (128, 1))[:, :width]}
        used = _single(codes) * scale
    if quantisation == "STATIC":
        largest = np.abs(_single(attention)).max() / LARGEST_FP8
        inputs["input_scale"] = np.full((128, 1), largest, np.float32)
    kernel = library.core("output_projection.output_projection_tkg").output_projection_tkg
    result = nkisim.simulate(kernel)[lnc](**inputs)
    rows = _single(attention).transpose(1, 3, 2, 0).reshape(6, heads * d)
    expected = rows @ used + _single(inputs["bias"])
    if transposed:
        # [128, cores, hidden / 128 / cores, tokens]
        result = result.reshape(128, lnc, -1, 6).transpose(3, 1, 0, 2)
    # fp8 has three mantissa bits, and activations are rounded to it as well
    assert_close(result.reshape(expected.shape), expected, 1e-2 if quantisation == "NONE" else 4e-2)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("lnc", [1, 2])
def test_output_projection(library: Library, with_bias: bool, lnc: int) -> None:
    heads, d, tokens, hidden = 2, 128, 256, 512
    attention = _random(1, heads, d, tokens, dtype=BF16)
    weight = (_random(heads * d, hidden, seed=1) / 16).astype(BF16)
    bias = _random(1, hidden, seed=2, dtype=BF16) if with_bias else None
    module = library.core("output_projection.output_projection_cte.output_projection_cte")
    result = nkisim.simulate(module.output_projection_cte)[lnc](attention, weight, bias)
    rows = _single(attention).transpose(0, 3, 1, 2).reshape(1, tokens, heads * d)
    expected = rows @ _single(weight) + (0 if bias is None else _single(bias))
    assert_close(result, expected, 1e-2)


# routing of tokens to experts


@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("scatter", [False, True])
@pytest.mark.parametrize("lnc", [1, 2])
def test_router_topk(library: Library, pre_norm: bool, norm: bool, scatter: bool, lnc: int) -> None:
    tokens, hidden, experts, k = 40, 512, 64, 4
    types = library.core("utils.common_types")
    module = library.core("router_topk.router_topk")
    x, w = _random(tokens, hidden, dtype=BF16), _random(hidden, experts, seed=1, dtype=BF16)

    def kernel(x: Any, w: Any, logits: Any, affinities: Any, index: Any) -> Any:
        module.router_topk(
            x, w, None, logits, affinities, index,
            act_fn=types.RouterActFnType.SOFTMAX, k=k,
            x_hbm_layout=module.XHBMLayout_T_H__1, x_sb_layout=module.XSBLayout_tp102__0,
            router_pre_norm=pre_norm, norm_topk_prob=norm, use_indirect_dma_scatter=scatter,
        )  # fmt: skip
        return logits, affinities, index

    outputs = (
        np.zeros((tokens, experts), BF16),
        np.zeros((tokens, experts), np.float32),
        np.zeros((tokens, k), np.uint32),
    )
    logits, affinities, index = nkisim.simulate(kernel)[lnc](x, w, *outputs)
    wanted = torch.from_numpy(_single(x) @ _single(w))
    assert_close(logits, wanted, 1e-2)
    # the kernel chooses among its own logits, before it rounds them
    best = wanted.topk(k + 1, dim=-1).values
    clear = (-best.diff(dim=-1) > 0.1).all(-1).numpy()
    assert clear.sum() > 8
    expected = library.core("router_topk.router_topk_torch").router_topk_torch_ref(
        to_torch(_single(x)), to_torch(_single(w)), None, *map(to_torch, outputs),
        act_fn=types.RouterActFnType.SOFTMAX, k=k, x_hbm_layout=1, x_sb_layout=0,
        router_pre_norm=pre_norm, norm_topk_prob=norm,
    )  # fmt: skip
    chosen = np.sort(expected["expert_index"].numpy(), -1)
    np.testing.assert_array_equal(np.sort(index, -1)[clear], chosen[clear])
    assert_close(affinities[clear], expected["expert_affinities"][clear], 2e-2, 1e-3)
