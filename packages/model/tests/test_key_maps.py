"""Names, shapes and transforms of DiT weights, against diffusers and against plain arithmetic."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_files import TINY, canonical_tensors, comfyui_tensors, write_file
from diffusers import WanTransformer3DModel
from hypothesis import given, settings
from hypothesis import strategies as st

from wantrn.model.checkpoints import (
    CheckpointFormat,
    TensorStore,
    comfyui,
    detect_format,
    diffusers,
    infer_config,
    native,
    original,
)
from wantrn.model.checkpoints.key_maps import check_bijection
from wantrn.model.config import WanConfig
from wantrn.model.errors import CheckpointError

T2V = WanConfig()
I2V = WanConfig(in_channels=36)
TI2V = WanConfig(
    num_attention_heads=24, num_layers=30, ffn_dim=14336, in_channels=48, out_channels=48
)
CONFIGS = st.builds(
    WanConfig,
    patch_size=st.tuples(*[st.integers(1, 2)] * 3),
    num_attention_heads=st.integers(1, 3),
    attention_head_dim=st.sampled_from([2, 4, 10]),
    in_channels=st.integers(1, 5),
    out_channels=st.integers(1, 5),
    text_dim=st.integers(1, 6),
    freq_dim=st.sampled_from([2, 4]),
    ffn_dim=st.integers(1, 9),
    num_layers=st.integers(1, 3),
)


THEIRS: Any = WanTransformer3DModel  # diffusers' model classes have no types


def oracle(config: WanConfig) -> Any:
    keywords = {
        key: value for key, value in config.to_diffusers().items() if not key.startswith("_")
    }
    return THEIRS(**keywords)


@pytest.mark.parametrize("config", [TINY, T2V, I2V, TI2V], ids=["tiny", "t2v", "i2v", "ti2v"])
def test_canonical_tensors_are_those_of_diffusers(config: WanConfig) -> None:
    with torch.device("meta"):
        model = oracle(config)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert diffusers.canonical_shapes(config) == expected
    check_bijection(diffusers.key_map(config), expected, Path("oracle"))


def test_original_names_are_those_that_diffusers_converts(tmp_path: Path) -> None:
    model = oracle(TINY)
    model.save_pretrained(tmp_path / "config")
    saved = model.state_dict()
    keys = original.key_map(TINY)
    file = write_file(tmp_path / "o.safetensors", {keys[name]: saved[name] for name in saved})
    converted = THEIRS.from_single_file(
        str(file), config=str(tmp_path / "config"), local_files_only=True
    ).state_dict()
    assert converted.keys() == saved.keys()
    assert all(torch.equal(converted[name], saved[name]) for name in saved)


def test_original_names_of_one_block_and_the_ends() -> None:
    keys = original.key_map(replace(TINY, num_layers=1))
    block = {name.removeprefix("blocks.0.") for name in keys.values() if "blocks." in name}
    linears = [f"{a}_attn.{p}" for a in ("self", "cross") for p in "qkvo"] + ["ffn.0", "ffn.2"]
    expected = {f"{linear}.{leaf}" for linear in linears for leaf in ("weight", "bias")}
    expected |= {f"{a}_attn.norm_{p}.weight" for a in ("self", "cross") for p in "qk"}
    expected |= {"norm3.weight", "norm3.bias", "modulation"}
    assert block == expected
    assert {name for name in keys.values() if "blocks." not in name} == {
        *(f"time_embedding.{i}.{leaf}" for i in (0, 2) for leaf in ("weight", "bias")),
        *(f"text_embedding.{i}.{leaf}" for i in (0, 2) for leaf in ("weight", "bias")),
        *(f"{m}.{x}" for m in ("time_projection.1", "head.head") for x in ("weight", "bias")),
        *("patch_embedding.weight", "patch_embedding.bias", "head.modulation"),
    }


@given(config=CONFIGS, prefix=st.sampled_from(["", *original.PREFIXES]))
@settings(max_examples=30, deadline=None)
def test_key_maps_are_injective_over_all_tensors(config: WanConfig, prefix: str) -> None:
    names = diffusers.canonical_shapes(config).keys()
    for keys in (original.key_map(config, prefix), comfyui.key_map(config, prefix)):
        assert keys.keys() == names
        assert len(set(keys.values())) == len(names)
        assert original.find_prefix(keys.values()) == prefix


def test_the_published_fp8_file_has_as_many_tensors() -> None:
    # 1095 parameters, two scales for each of 406 Linears, one marker: 1908, of which 407 are FP8.
    shapes = diffusers.canonical_shapes(T2V)
    weights = [n for n in shapes if n.endswith("weight") and len(shapes[n]) == 2]
    assert (len(shapes), len(weights), len(shapes) + 2 * len(weights) + 1) == (1095, 406, 1908)


def test_bijection_errors_list_a_few_keys_and_count_the_rest() -> None:
    keys = {f"c{i:02}": f"s{i:02}" for i in range(20)}
    names = [f"s{i:02}" for i in range(8, 20)] + [f"x{i}" for i in range(10)]
    with pytest.raises(CheckpointError) as caught:
        check_bijection(keys, names, Path("folder/file"))
    text = str(caught.value)
    assert "folder/file: 8 missing tensors: s00, s01, s02, s03, s04, s05, s06, s07;" in text
    assert "10 unexpected tensors: x0, x1, x2, x3, x4, x5, x6, x7 and 2 more" in text
    check_bijection(keys, list(keys.values()), Path("file"))
    with pytest.raises(CheckpointError, match="s would be both a and b"):
        check_bijection({"a": "s", "b": "s"}, ["s"], Path("file"))


def expected_native_shapes(c: WanConfig) -> dict[str, tuple[int, ...]]:
    """Our parameters, written down from the model's description."""
    d, f, v = c.hidden_size, c.ffn_dim, c.patch_volume
    weights = {
        "patch_embedding": (d, c.in_channels * v),
        "time_embedding.linear_1": (d, c.freq_dim),
        "time_embedding.linear_2": (d, d),
        "time_embedding.proj": (6 * d, d),
        "text_embedding.linear_1": (d, c.text_dim),
        "text_embedding.linear_2": (d, d),
        "proj_out": (c.out_channels * v, d),
    }
    shapes: dict[str, tuple[int, ...]] = {"modulation": (1, 2, d)}
    for i in range(c.num_layers):
        block = f"blocks.{i}"
        weights[f"{block}.self_attention.qkv"] = (3 * d, d)
        weights[f"{block}.self_attention.out"] = (d, d)
        weights |= {f"{block}.cross_attention.{part}": (d, d) for part in ("q", "k", "v", "out")}
        weights[f"{block}.feed_forward.up"] = (f, d)
        weights[f"{block}.feed_forward.down"] = (d, f)
        shapes[f"{block}.modulation"] = (1, 6, d)
        for part in ("self_attention", "cross_attention"):
            shapes[f"{block}.{part}.q_norm.weight"] = (d,)
            shapes[f"{block}.{part}.k_norm.weight"] = (d,)
        shapes[f"{block}.cross_norm.weight"] = shapes[f"{block}.cross_norm.bias"] = (d,)
    for stem, (outputs, inputs) in weights.items():
        shapes |= {f"{stem}.weight": (outputs, inputs), f"{stem}.bias": (outputs,)}
    return shapes


@given(config=CONFIGS)
@settings(max_examples=30, deadline=None)
def test_native_round_trip_is_exact(config: WanConfig) -> None:
    canonical = canonical_tensors(config)
    state = native.to_native(canonical, config)
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    assert shapes == native.native_shapes(config) == expected_native_shapes(config)
    back = native.to_canonical(state, config)
    assert list(back) == list(canonical)
    assert all(torch.equal(back[name], canonical[name]) for name in canonical)


def test_every_canonical_tensor_has_one_place() -> None:
    used = [n for p in native.native_parameters(TINY).values() for n in p.sources]
    assert sorted(used) == sorted(diffusers.canonical_shapes(TINY))


@pytest.mark.parametrize("fault", ["missing", "unexpected", "shape"])
def test_transforms_refuse_other_names_and_shapes(fault: str) -> None:
    canonical = canonical_tensors()
    state = native.to_native(canonical, TINY)
    for tensors, act in ((canonical, native.to_native), (state, native.to_canonical)):
        changed = dict(tensors)
        name = "proj_out.bias"
        value = changed.pop(name)
        if fault == "unexpected":
            changed |= {name: value, "proj_out.gamma": value}
        elif fault == "shape":
            changed[name] = value[1:]
        with pytest.raises(ValueError, match=r"proj_out\.(bias|gamma)"):
            act(changed, TINY)


def test_flattened_patch_kernel_is_the_convolution() -> None:
    canonical = canonical_tensors()
    state = native.to_native(canonical, TINY)
    latents = torch.randn(1, 16, 2, 4, 6, dtype=torch.float64)
    weight, bias = (canonical[f"patch_embedding.{x}"].double() for x in ("weight", "bias"))
    expected = torch.nn.functional.conv3d(latents, weight, bias, stride=(1, 2, 2))
    # Tokens in (frame, row, column) order, each a patch in (channel, frame, row, column) order.
    patches = latents.reshape(16, 2, 1, 2, 2, 3, 2).permute(1, 3, 5, 0, 2, 4, 6).reshape(12, 64)
    tokens = patches @ state["patch_embedding.weight"].double().T + bias
    torch.testing.assert_close(tokens, expected.flatten(2)[0].T)


def test_fused_rows_are_q_k_v_in_rotate_half_order() -> None:
    canonical = canonical_tensors()
    state = native.to_native(canonical, TINY)
    order = [head * 128 + i for head in range(2) for i in (*range(0, 128, 2), *range(1, 128, 2))]
    for leaf in ("weight", "bias"):
        fused = state[f"blocks.1.self_attention.qkv.{leaf}"].numpy()
        parts = [canonical[f"blocks.1.attn1.to_{p}.{leaf}"].numpy() for p in "qkv"]
        np.testing.assert_array_equal(fused[:256], parts[0][order])
        np.testing.assert_array_equal(fused[256:512], parts[1][order])
        np.testing.assert_array_equal(fused[512:], parts[2])
    for part in "qk":
        ours = state[f"blocks.1.self_attention.{part}_norm.weight"].numpy()
        np.testing.assert_array_equal(
            ours, canonical[f"blocks.1.attn1.norm_{part}.weight"].numpy()[order]
        )
        ours = state[f"blocks.1.cross_attention.{part}_norm.weight"].numpy()
        np.testing.assert_array_equal(ours, canonical[f"blocks.1.attn2.norm_{part}.weight"].numpy())


def rms_norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    normed: np.ndarray = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight
    return normed


def interleaved_rope(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """``x [S, N, D]``, ``angles [S, D/2]``: pairs (0, 1), (2, 3), ... are rotated."""
    out = np.empty_like(x)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    out[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return out


def rotate_half_rope(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """The same with pairs (0, D/2), (1, D/2 + 1), ..."""
    cos = np.cos(np.concatenate([angles, angles], -1))[:, None]
    sin = np.sin(np.concatenate([angles, angles], -1))[:, None]
    low, high = np.split(x, 2, axis=-1)
    rotated: np.ndarray = x * cos + np.concatenate([-high, low], -1) * sin
    return rotated


def test_rotate_half_on_moved_channels_gives_the_scores_of_interleaved_rope() -> None:
    canonical = canonical_tensors()
    state = native.to_native(canonical, TINY)
    random = np.random.default_rng(0)
    x = random.standard_normal((7, 256))
    angles = random.uniform(-20, 20, (7, 64))

    def heads(weight: torch.Tensor, bias: torch.Tensor, gamma: torch.Tensor) -> np.ndarray:
        projected = x @ weight.double().numpy().T + bias.double().numpy()
        normed: np.ndarray = rms_norm(projected, gamma.double().numpy()).reshape(7, 2, 128)
        return normed

    theirs, ours = [], []
    for index, part in enumerate("qk"):
        stem = "blocks.0.attn1"
        linear = [canonical[f"{stem}.to_{part}.{leaf}"] for leaf in ("weight", "bias")]
        gamma = canonical[f"{stem}.norm_{part}.weight"]
        theirs.append(interleaved_rope(heads(linear[0], linear[1], gamma), angles))
        stem = "blocks.0.self_attention"
        fused = [state[f"{stem}.qkv.{leaf}"].chunk(3)[index] for leaf in ("weight", "bias")]
        gamma = state[f"{stem}.{part}_norm.weight"]
        ours.append(rotate_half_rope(heads(fused[0], fused[1], gamma), angles))
    expected = np.einsum("snd,tnd->nst", *theirs)
    scores = np.einsum("snd,tnd->nst", *ours)
    np.testing.assert_allclose(scores, expected, rtol=1e-12, atol=1e-9)


def stored(folder: Path, tensors: dict[str, torch.Tensor]) -> TensorStore:
    return TensorStore.open(write_file(folder / "model.safetensors", tensors))


@pytest.mark.parametrize("prefix", ["", *original.PREFIXES])
def test_formats_and_configurations_are_recognized(tmp_path: Path, prefix: str) -> None:
    config = WanConfig(
        patch_size=(1, 1, 2),
        num_attention_heads=2,
        in_channels=5,
        out_channels=3,
        text_dim=32,
        freq_dim=64,
        ffn_dim=48,
        num_layers=3,
    )
    canonical = canonical_tensors(config)
    keys = original.key_map(config, prefix)
    files = {
        CheckpointFormat.DIFFUSERS: canonical,
        CheckpointFormat.ORIGINAL: {keys[name]: canonical[name] for name in canonical},
        CheckpointFormat.COMFYUI_FP8: comfyui_tensors(canonical, config, prefix=prefix)[0],
    }
    for format, tensors in files.items():
        store = stored(tmp_path, tensors)
        assert detect_format(store) is format
        assert infer_config(store, format) == config


def test_a_missing_key_does_not_change_the_format(tmp_path: Path) -> None:
    config = replace(TINY, num_layers=1)
    canonical = canonical_tensors(config)
    keys = original.key_map(config)
    for name in canonical:
        for format, tensors in (
            (CheckpointFormat.DIFFUSERS, dict.fromkeys(canonical, torch.zeros(1))),
            (CheckpointFormat.ORIGINAL, dict.fromkeys(keys.values(), torch.zeros(1))),
        ):
            del tensors[name if format is CheckpointFormat.DIFFUSERS else keys[name]]
            assert detect_format(stored(tmp_path, tensors)) is format


def test_an_unknown_model_is_refused_with_some_of_its_keys(tmp_path: Path) -> None:
    store = stored(tmp_path, {f"unet.{i}.weight": torch.zeros(1) for i in range(20)})
    with pytest.raises(CheckpointError, match=r"unet\.\d+\.weight.* and 12 more") as caught:
        detect_format(store)
    assert "model.safetensors" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("patch_embedding.weight", None, "patch_embedding.weight"),
        ("patch_embedding.weight", torch.zeros(256, 64), "patch_embedding.weight.*5 dimensions"),
        ("patch_embedding.weight", torch.zeros(200, 16, 1, 2, 2), "200"),
        ("patch_embedding.weight", torch.zeros(0, 16, 1, 2, 2), "num_attention_heads"),
        ("proj_out.weight", torch.zeros(63, 256), "63"),
        ("blocks.7.norm2.bias", torch.zeros(256), "block 2.*block 7"),
        ("condition_embedder.time_embedder.linear_1.weight", torch.zeros(256, 63), "freq_dim"),
    ],
)
def test_a_configuration_that_shapes_cannot_tell_is_refused(
    tmp_path: Path, name: str, value: torch.Tensor | None, words: str
) -> None:
    tensors = canonical_tensors()
    if value is None:
        del tensors[name]
    else:
        tensors[name] = value
    store = stored(tmp_path, tensors)
    with pytest.raises(CheckpointError, match=words) as caught:
        infer_config(store, CheckpointFormat.DIFFUSERS)
    assert str(tmp_path) in str(caught.value)


def test_our_configuration_reads_what_diffusers_saves(tmp_path: Path) -> None:
    oracle(TINY).save_config(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert WanConfig.from_diffusers(config, "config.json") == TINY
