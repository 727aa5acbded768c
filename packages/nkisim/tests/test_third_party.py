"""Kernels of aws-neuron/nki-library, as they are, against the torch references beside them.

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


# cumsum


@pytest.mark.parametrize(
    ("shape", "dtype", "rtol"),
    [((1, 256), np.float32, 1e-3), ((8, 4, 1024), BF16, 1e-2), ((128, 2300), np.float32, 1e-3)],
)
def test_cumsum(library: Library, shape: tuple[int, ...], dtype: Any, rtol: float) -> None:
    x = _random(*shape, dtype=dtype)
    result = nkisim.simulate(library.core("cumsum.cumsum").cumsum)(x)
    reference = library.core("cumsum.cumsum_torch").cumsum_torch_ref(to_torch(x).float())
    assert_close(result, reference["output_0"], rtol, 1e-3)


# rotary embeddings


@pytest.mark.parametrize(
    ("d", "contiguous", "relayout", "lnc"),
    [(64, True, False, 1), (128, True, False, 2), (64, False, False, 1), (128, False, True, 1)],
)
def test_rope(library: Library, d: int, contiguous: bool, relayout: bool, lnc: int) -> None:
    inputs = {
        "x_in": _random(d, 2, 2, 32),
        "cos": _random(d // 2, 2, 32, seed=1),
        "sin": _random(d // 2, 2, 32, seed=2),
        "lnc_shard": lnc == 2,
        "contiguous_layout": contiguous,
        "relayout_in_sbuf": relayout,
    }
    result = nkisim.simulate(library.core("embeddings.rope").RoPE)[lnc](**inputs)
    reference = library.core("embeddings.rope_torch").rope_torch_ref(**_torch(inputs))
    assert_close(result, reference["x_out"], 1e-5, 1e-5)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("lnc", [1, 2])
def test_rope_hf(library: Library, backward: bool, packed: bool, lnc: int) -> None:
    q, k = _random(2, 3, 256, 64), _random(2, 1, 256, 64, seed=1)
    inputs = {"q": q, "k": k, "q_out": np.zeros_like(q), "k_out": np.zeros_like(k)}
    inputs["backward"] = backward
    if packed:
        inputs["rope_cache"] = _random(256, 128, seed=2)
    else:
        inputs |= {"cos": _random(2, 256, 64, seed=2), "sin": _random(2, 256, 64, seed=3)}
    reference = library.core("embeddings.rope_hf_torch").rope_hf_torch_ref(**_torch(inputs))
    expected = {name: value.clone() for name, value in reference.items()}
    results = nkisim.simulate(library.core("embeddings.rope_hf").rope_hf)[lnc](**inputs)
    for name, result in zip(("q_out", "k_out"), results, strict=True):
        assert_close(result, expected[name], 1e-6, 1e-6)
        # the outputs are arguments, which change in place
        np.testing.assert_array_equal(inputs[name], result)


# attention

ATTENTION = {
    "causal": {},
    "full": {"causal_mask": False, "scale": 0.125},
    "transposed": {"tp_q": False, "tp_k": True, "tp_out": True},
    "sliding": {"sliding_window": 100},
    "sink": {"sink": True},
    "cached": {"cache_softmax": True},
    "prefix": {"prior": 384, "used": 200},
    "parallel": {"cp_rank": 1, "global_cp_deg": 2},
    "strided": {"cp_rank": 1, "global_cp_deg": 2, "cp_strided_q_slicing": True},
    "grouped": {"heads": 4},
}


def _attention_inputs(options: dict[str, Any], d: int, s_q: int, s_kv: int) -> dict[str, Any]:
    """The arguments of the kernel; `options` are its flags, and what to make inputs from."""
    options = dict(options)
    batch = options.pop("heads", 2)
    prior, used = options.pop("prior", 0), options.pop("used", 0)
    inputs: dict[str, Any] = {
        "q": _random(batch, s_q, d, seed=1, dtype=BF16),
        "k": _random(2, d, s_kv, seed=2, dtype=BF16),
        "v": _random(2, s_kv, d, seed=3, dtype=BF16),
    }
    if prior:
        inputs["k_prior"] = _random(2, d, prior, seed=4, dtype=BF16)
        inputs["v_prior"] = _random(2, prior, d, seed=5, dtype=BF16)
        inputs["prior_used_len"] = np.array([used], np.int32)
    if "cp_rank" in options:
        rank = options.pop("cp_rank")
        offset = rank if options.get("cp_strided_q_slicing") else rank * s_q
        inputs["cp_offset"] = np.array([[offset]], np.int32)
    if options.pop("sink", False):
        # large, so that leaving it out shows
        inputs["sink"] = np.linspace(15.0, 25.0, batch, dtype=np.float32)[:, None]
    if options.get("tp_k"):
        inputs["k"] = np.ascontiguousarray(inputs["k"].swapaxes(1, 2))
    if not options.get("tp_q", True):
        inputs["q"] = np.ascontiguousarray(inputs["q"].swapaxes(1, 2))
    return inputs | options


@pytest.mark.parametrize("case", ATTENTION)
@pytest.mark.parametrize("lnc", [1, 2])
def test_attention_cte(library: Library, case: str, lnc: int) -> None:
    s_kv = 512 if "cp_rank" in ATTENTION[case] else 256
    inputs = _attention_inputs(ATTENTION[case], 64, 256, s_kv)
    _check_attention(library, inputs, lnc)


def test_attention_cte_with_several_sections_and_a_ragged_length(library: Library) -> None:
    _check_attention(library, _attention_inputs({"causal_mask": False}, 128, 130, 1100), 1)


def _check_attention(library: Library, inputs: dict[str, Any], lnc: int) -> None:
    kernel = library.core("attention.attention_cte").attention_cte
    reference = library.core("attention.attention_cte_torch").attention_cte_torch_ref
    results = nkisim.simulate(kernel)[lnc](**inputs)
    expected = reference(**_torch(inputs))
    if not inputs.get("cache_softmax"):
        results, expected = (results,), (expected,)
    for result, wanted in zip(results, expected, strict=True):
        assert_close(result, wanted, 2e-2, 1e-5)


# QKV projection


@pytest.mark.parametrize("norm", ["NO_NORM", "RMS_NORM", "LAYER_NORM"])
@pytest.mark.parametrize("layout", ["BSD", "NBSd"])
@pytest.mark.parametrize(("fused_add", "lnc"), [(False, 1), (True, 2)])
def test_qkv_cte(library: Library, norm: str, layout: str, fused_add: bool, lnc: int) -> None:
    inputs = _qkv_inputs(library, norm, layout, fused_add, tokens=192)
    result = nkisim.simulate(library.core("qkv.qkv").qkv)[lnc](**inputs)
    assert_close(result, _qkv_reference(library, inputs), 1e-2, 1e-3)


@pytest.mark.parametrize("lnc", [1, 2])
def test_qkv_of_few_tokens(library: Library, lnc: int) -> None:
    inputs = _qkv_inputs(library, "RMS_NORM", "BSD", False, tokens=4)
    result = nkisim.simulate(library.core("qkv.qkv").qkv)[lnc](**inputs)
    assert_close(result, _qkv_reference(library, inputs), 1e-2, 1e-3)


def test_qkv_cte_with_rotary_embedding(library: Library) -> None:
    plain = _qkv_inputs(library, "RMS_NORM", "BSD", False, tokens=192)
    half = _random(1, 192, 64, seed=9), _random(1, 192, 64, seed=10)
    cos, sin = (np.tile(array, 2).astype(BF16) for array in half)
    fused = {"fused_rope": True, "cos_cache": cos, "sin_cache": sin}
    result = nkisim.simulate(library.core("qkv.qkv").qkv)(**plain, **fused)
    # two query heads and a key head are rotated, the value head is not
    heads = _qkv_reference(library, plain).reshape(1, 192, 4, 128).permute(0, 2, 1, 3)
    rotated = library.core("embeddings.rope_hf_torch").rope_hf_torch_ref(
        heads[:, :2], heads[:, 2:3], None, None, to_torch(cos).float(), to_torch(sin).float()
    )
    expected = torch.cat([rotated["q_out"], rotated["k_out"], heads[:, 3:]], dim=1)
    assert_close(result, expected.permute(0, 2, 1, 3).reshape(1, 192, 512), 1e-2, 1e-3)


def _qkv_inputs(
    library: Library, norm: str, layout: str, fused_add: bool, tokens: int
) -> dict[str, Any]:
    types = library.core("utils.common_types")
    hidden, width = 256, 512
    inputs: dict[str, Any] = {
        "input": _random(1, tokens, hidden, dtype=BF16),
        "fused_qkv_weights": (_random(hidden, width, seed=1) / 16).astype(BF16),
        "output_layout": types.QKVOutputLayout[layout],
        "bias": _random(1, width, seed=2, dtype=BF16),
        "fused_residual_add": fused_add,
        "fused_norm_type": types.NormType[norm],
        "d_head": 128,
        "num_q_heads": 2,
        "num_kv_heads": 1,
    }
    if fused_add:
        inputs["mlp_prev"] = _random(1, tokens, hidden, seed=3, dtype=BF16)
        inputs["attention_prev"] = _random(1, tokens, hidden, seed=4, dtype=BF16)
    if norm != "NO_NORM":
        inputs["gamma_norm_weights"] = _random(1, hidden, seed=5, dtype=BF16)
    if norm == "LAYER_NORM":
        inputs["layer_norm_bias"] = _random(1, hidden, seed=6, dtype=BF16)
    return inputs


def _qkv_reference(library: Library, inputs: dict[str, Any]) -> torch.Tensor:
    """The library's reference, which has other names for the same arguments."""
    names = {
        "input": "hidden",
        "fused_qkv_weights": "qkv_w",
        "bias": "qkv_bias",
        "fused_residual_add": "fused_add",
        "attention_prev": "attn_prev",
        "fused_norm_type": "norm_type",
        "gamma_norm_weights": "norm_w",
        "layer_norm_bias": "norm_bias",
    }
    arguments = {names.get(name, name): value for name, value in _torch(inputs).items()}
    result = library.core("qkv.qkv_tkg_torch").qkv_tkg_torch_ref(**arguments)["out"]
    assert isinstance(result, torch.Tensor)
    return result


# normalisation with quantisation


@pytest.mark.parametrize("norm", ["RMS_NORM", "NO_NORM"])
@pytest.mark.parametrize(("lower_bound", "lnc"), [(0.0, 1), (0.5, 1), (0.0, 2)])
def test_rmsnorm_quant(library: Library, norm: str, lower_bound: float, lnc: int) -> None:
    module, types = library.core("rmsnorm.rmsnorm_quant"), library.core("utils.common_types")
    hidden, gamma = _random(1, 160, 256, dtype=BF16), _random(1, 256, seed=1, dtype=BF16)
    settings = module.RmsNormQuantKernelArgs(lower_bound, types.NormType[norm])
    result = nkisim.simulate(module.rmsnorm_quant_kernel)[lnc](hidden, gamma, settings)

    row = np.ascontiguousarray(result).view(np.uint8)
    codes = row[..., :256].view(ml_dtypes.float8_e4m3).astype(np.float32)
    scale = np.ascontiguousarray(row[..., 256:]).view(np.float32)
    expected = to_torch(hidden).float()
    if norm == "RMS_NORM":
        reference = library.core("subkernels.rmsnorm_torch").rms_norm_torch_ref
        expected = reference(expected, to_torch(gamma).float())
    if lower_bound:
        expected = expected.clamp(-lower_bound, lower_bound)
    # 240 is the largest value of float8_e4m3; three mantissa bits err by one part in sixteen
    largest = expected.abs().amax(-1, keepdim=True)
    assert_close(scale, largest / 240, 7e-3)
    error = np.abs(codes * scale - expected.numpy())
    assert (error <= np.abs(expected.numpy()) * 0.072 + 1e-2 * largest.numpy()).all()


def _mx_kernel(library: Library) -> Any:
    """A kernel around the sub-kernel, which leaves its results in SBUF."""
    import nki.isa as nisa  # pants: no-infer-dep
    import nki.language as nl  # pants: no-infer-dep

    quantize = library.core("subkernels.rmsnorm_mx_quantize_tkg").rmsnorm_mx_quantize_tkg

    def kernel(hidden: Any, gamma: Any) -> Any:
        tokens, groups = hidden.shape[0] * hidden.shape[1], hidden.shape[2] // 512
        output = nl.ndarray((128, tokens, 4 * groups), hidden.dtype)
        codes = nl.ndarray((128, groups, tokens), nl.float8_e4m3fn_x4)
        scales = nl.ndarray((128, groups, tokens), nl.uint8)
        quantize(input=hidden, gamma=gamma, output=output, output_quant=codes, output_scale=scales)
        stored_output = nl.ndarray(output.shape, output.dtype, buffer=nl.shared_hbm)
        stored_codes = nl.ndarray(codes.shape, codes.dtype, buffer=nl.shared_hbm)
        stored_scales = nl.ndarray((16, groups, tokens), nl.uint8, buffer=nl.shared_hbm)
        # each core has everything, and stores its half
        half = nl.ds(nl.program_id(0) * tokens // 2, tokens // 2)
        nisa.dma_copy(stored_output[:, half, :], output[:, half, :])
        nisa.dma_copy(stored_codes[:, :, half], codes[:, :, half])
        for quadrant in range(4):
            rows, stored = nl.ds(32 * quadrant, 4), nl.ds(4 * quadrant, 4)
            nisa.dma_copy(stored_scales[stored, :, half], scales[rows, :, half])
        return stored_output, stored_codes, stored_scales

    return kernel


def test_rmsnorm_mx_quantize(library: Library) -> None:
    tokens, hidden_size = 32, 1024
    hidden = _random(tokens, 1, hidden_size, dtype=np.float16)
    gamma = _random(1, hidden_size, seed=1, dtype=np.float16)
    run = nkisim.simulate(_mx_kernel(library), target="gen4")
    output, codes, scales = run[2](hidden, gamma)

    reference = library.core("subkernels.rmsnorm_torch").rms_norm_torch_ref
    normed = reference(to_torch(hidden), to_torch(gamma).float()).reshape(tokens, -1, 128)
    assert_close(output, normed.permute(2, 0, 1), 1e-2, 1e-3)

    # four values of an element are a quarter of the free dimension apart
    groups = hidden_size // 512
    values = output.astype(np.float32).reshape(128, tokens, 4, groups).transpose(0, 3, 1, 2)
    steps = np.exp2(np.repeat(scales.astype(np.float32), 8, axis=0) - 127)[..., None]
    found = support.unpack(codes).reshape(128, groups, tokens, 4) * steps
    np.testing.assert_allclose(found, values, rtol=2**-4, atol=2**-9 * np.abs(values).max())

    common = library.core("utils.mx_torch_common")
    packed, dense = common.quantize_to_mx(values.reshape(128, -1), "float8_e4m3fn_x4")
    golden = common.unpack_float8_e4m3fn_x4(packed).reshape(128, -1, 4)
    golden = golden * torch.from_numpy(np.exp2(np.repeat(dense, 8, axis=0) - 127.0))[..., None]
    # the reference saturates from 448 to 512 parts of its step, the hardware since NKI 0.5 does not
    assert_close(found.reshape(128, -1, 4), golden, 64 / 448)


# top-k


@pytest.mark.parametrize(
    ("rows", "vocabulary", "k", "lnc"),
    [(4, 512, 64, 1), (10, 600, 20, 2), (3, 64, 8, 1), (2, 64, 64, 1)],
)
def test_rotational_topk(library: Library, rows: int, vocabulary: int, k: int, lnc: int) -> None:
    module = library.core("topk.rotational_topk")
    x = _random(rows, vocabulary)
    topk = module.create_topk_config(
        inp_shape=x.shape, inp_dtype=_nl().float32, k=k, sorted=True, num_programs=lnc
    )
    config = module.create_rotational_topk_config(inp_shape=x.shape, topk_config=topk)
    config = module.prepare_rotational_constants(config)
    try:
        values, indices = nkisim.simulate(module.rotational_topk)[lnc](x, config)
    finally:
        module.cleanup_rotational_constants()
    expected = library.core("topk.torch_ref").topk_torch_ref(to_torch(x), config)["topk_values"]
    # a k of the whole vocabulary returns the input as it is
    sorted_values = -np.sort(-values, axis=-1)
    np.testing.assert_array_equal(sorted_values, expected.numpy())
    found = np.take_along_axis(x, indices.astype(np.int64), axis=-1)
    np.testing.assert_array_equal(found, values)


def _nl() -> Any:
    import nki.language as nl  # pants: no-infer-dep

    return nl
