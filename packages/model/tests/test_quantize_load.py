"""Reading FP8 weights back: every tensor is accounted for; ComfyUI's codes are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from checkpoint_files import SMALL, canonical_tensors, comfyui_tensors, write_file
from safetensors.torch import load_file, save_file

from wantrn.model.checkpoints import CheckpointFormat, TensorStore, export_state, native
from wantrn.model.errors import CheckpointError
from wantrn.model.quantization import (
    Group,
    QuantizationOptions,
    QuantizedState,
    load_quantized,
    quantize_state,
    quantize_store,
)
from wantrn.model.quantization.run import QuantizationJob
from wantrn.model.quantization.source import LayerSource

ALL = QuantizationOptions()
Tensors = dict[str, torch.Tensor]


def fp32(name: str) -> torch.dtype:
    return torch.float32


def write_source(folder: Path, tensors: Tensors) -> Path:
    write_file(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(SMALL.to_diffusers()))
    return folder


def quantized(source: Path, destination: Path, options: QuantizationOptions = ALL) -> Path:
    QuantizationJob.plan(source, destination, options).run(lambda done: None)
    return destination


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source = write_source(tmp_path / "source", canonical_tensors(SMALL))
    return quantized(source, tmp_path / "fp8")


def same(left: QuantizedState, right: QuantizedState) -> None:
    assert left.layers.keys() == right.layers.keys()
    for layer, weight in left.layers.items():
        other = right.layers[layer]
        assert torch.equal(weight.codes.view(torch.uint8), other.codes.view(torch.uint8))
        assert torch.equal(weight.scales, other.scales)
    assert left.parameters.keys() == right.parameters.keys()
    for name, tensor in left.parameters.items():
        assert tensor.dtype == right.parameters[name].dtype
        assert torch.equal(tensor, right.parameters[name])
    assert left.errors == right.errors


@pytest.mark.parametrize("groups", [frozenset(Group), *(frozenset({group}) for group in Group)])
@pytest.mark.parametrize("format", [CheckpointFormat.DIFFUSERS, CheckpointFormat.ORIGINAL])
def test_what_is_read_is_what_the_pure_function_makes(
    tmp_path: Path, groups: frozenset[Group], format: CheckpointFormat
) -> None:
    state = native.to_native(canonical_tensors(SMALL), SMALL)
    source = write_source(tmp_path / "source", export_state(state, SMALL, format))
    options = QuantizationOptions(groups)
    expected = quantize_state(state, SMALL, options)
    config, found = load_quantized(quantized(source, tmp_path / "fp8", options), fp32)
    assert config == SMALL
    same(found, expected)
    same(quantize_store(TensorStore.open(source), SMALL, options, fp32), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_parameters_are_kept_as_stored(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in canonical_tensors(SMALL).items()}
    target = quantized(write_source(tmp_path / "source", tensors), tmp_path / "fp8")
    store = TensorStore.open(target)
    bias = "blocks.0.self_attention.qkv.bias"
    assert store.info(bias).dtype == dtype
    _, found = load_quantized(target, lambda name: torch.bfloat16 if name == bias else dtype)
    assert found.parameters[bias].dtype == torch.bfloat16
    state = native.to_native(tensors, SMALL)
    expected = quantize_state(state, SMALL, ALL)
    parameters = {**expected.parameters, bias: expected.parameters[bias].to(torch.bfloat16)}
    same(found, QuantizedState(expected.layers, parameters, expected.errors))


@pytest.mark.parametrize(
    "spelling", [("scale_weight", "scale_input"), ("weight_scale", "input_scale")]
)
@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_comfyui_codes_are_kept(tmp_path: Path, spelling: tuple[str, str], prefix: str) -> None:
    stored, values = comfyui_tensors(canonical_tensors(SMALL), SMALL, spelling, prefix)
    source = write_source(tmp_path / "source", stored)
    config, found = load_quantized(quantized(source, tmp_path / "fp8"), fp32)
    same(found, quantize_store(TensorStore.open(source), config, ALL, fp32))
    # not a bit is lost: codes times scales are the values that the file stands for
    state = native.to_native(values, SMALL)
    for layer, weight in found.layers.items():
        assert torch.equal(weight.dequantized(), state[f"{layer}.weight"])
        assert found.errors[layer] is None
    for name, tensor in found.parameters.items():
        assert torch.equal(tensor, state[name])
    q, k, v = found.layers["blocks.0.self_attention.qkv"].scales.chunk(3, dim=1)
    assert all(bool((part == part[0, 0]).all()) for part in (q, k, v))
    assert len({float(part[0, 0]) for part in (q, k, v)}) == 3


def test_comfyui_codes_above_a_smaller_limit_are_made_anew(tmp_path: Path) -> None:
    stored, values = comfyui_tensors(canonical_tensors(SMALL))
    source = TensorStore.open(write_source(tmp_path / "source", stored))
    options = QuantizationOptions(limit=240.0)
    found = quantize_store(source, SMALL, options, fp32)
    same(found, quantize_state(native.to_native(values, SMALL), SMALL, options))
    for weight in found.layers.values():
        assert weight.codes.float().abs().max() == 240


def test_layers_that_comfyui_keeps_plain_are_quantized(tmp_path: Path) -> None:
    stored, values = comfyui_tensors(canonical_tensors(SMALL))
    plain = {"blocks.0.self_attn.k": "attn1.to_k", "blocks.1.ffn.0": "ffn.net.0.proj"}
    for stem, canonical in plain.items():
        block = ".".join(stem.split(".")[:2])
        stored[f"{stem}.weight"] = values[f"{block}.{canonical}.weight"]
        del stored[f"{stem}.scale_weight"], stored[f"{stem}.scale_input"]
    found = quantize_store(
        TensorStore.open(write_source(tmp_path / "source", stored)), SMALL, ALL, fp32
    )
    made = {layer for layer, error in found.errors.items() if error is not None}
    assert made == {"blocks.0.self_attention.qkv", "blocks.1.feed_forward.up"}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"blocks.0.ffn.2.weight": torch.full((16, 64), float("nan")).to(torch.float8_e4m3fn)},
         "holds NaN"),
        ({"blocks.0.ffn.2.scale_weight": torch.tensor(0.0)}, "finite and positive"),
        ({"blocks.0.ffn.2.scale_weight": torch.tensor(float("inf"))}, "finite and positive"),
    ],
    ids=["NaN", "zero scale", "infinite scale"],
)  # fmt: skip
def test_bad_comfyui_values_are_named(tmp_path: Path, change: Tensors, word: str) -> None:
    stored, _ = comfyui_tensors(canonical_tensors(SMALL))
    store = TensorStore.open(write_source(tmp_path / "source", {**stored, **change}))
    with pytest.raises(CheckpointError, match=rf"model\.safetensors: blocks\.0\.ffn\.2\..*{word}"):
        quantize_store(store, SMALL, ALL, fp32)


def test_two_experts_have_different_fingerprints(tmp_path: Path) -> None:
    tensors = canonical_tensors(SMALL)
    store = TensorStore.open(write_source(tmp_path / "a", tensors))
    prints = {LayerSource.open(store, SMALL).fingerprint() for _ in range(2)}
    assert len(prints) == 1
    tensors["blocks.1.ffn.net.2.bias"][-1] += 1
    other = TensorStore.open(write_source(tmp_path / "b", tensors))
    assert LayerSource.open(other, SMALL).fingerprint() not in prints


def rewrite(folder: Path, change: Tensors, drop: str | None = None) -> None:
    """Replace tensors in the file and the index that hold them; new ones go to the last file."""
    files = sorted(folder.glob("*.safetensors"))
    for file in files:
        tensors = load_file(file)
        tensors = {name: change.get(name, tensor) for name, tensor in tensors.items()}
        tensors.pop(drop or "", None)
        if file == files[-1]:
            known = {name for other in files for name in load_file(other)}
            tensors |= {name: tensor for name, tensor in change.items() if name not in known}
        save_file(tensors, file)
    index = next(folder.glob("*.index.json"))
    weight_map = {name: file.name for file in files for name in load_file(file)}
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


CODES, SCALES = "blocks.1.feed_forward.up.codes", "blocks.1.feed_forward.up.scales"
FP8 = torch.float8_e4m3fn


@pytest.mark.parametrize(
    ("change", "drop", "words"),
    [
        ({}, CODES, ("1 missing", CODES)),
        ({}, "proj_out.bias", ("1 missing", "proj_out.bias")),
        ({"x.codes": torch.zeros(4)}, None, ("1 unexpected", "x.codes")),
        ({CODES: torch.zeros(4, 64, 2).to(FP8)}, None, ("1 misshaped", f"{CODES} [4, 64, 2]")),
        ({CODES: torch.zeros(4, 64, 4)}, None, (CODES, "float32")),
        ({SCALES: torch.ones(1, 64).double()}, None, (SCALES, "float64")),
        ({CODES: torch.full((4, 64, 4), float("nan")).to(FP8)}, None, (CODES, "NaN")),
        ({SCALES: torch.zeros(1, 64)}, None, (SCALES, "positive")),
        ({"modulation": torch.full((1, 2, 16), float("inf"))}, None, ("modulation", "infinity")),
        ({"modulation": torch.zeros(1, 2, 16).to(FP8)}, None, ("modulation", "float8")),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_named(
    folder: Path, change: Tensors, drop: str | None, words: tuple[str, ...]
) -> None:
    rewrite(folder, change, drop)
    with pytest.raises(CheckpointError) as caught:
        load_quantized(folder, fp32)
    for word in (str(folder), *words):
        assert word in str(caught.value)


def test_a_manifest_that_does_not_fit_is_named(folder: Path) -> None:
    file = folder / "quantization.json"
    value = json.loads(file.read_text())
    last = max(value["files"])
    less = {**value["files"], last: {}}
    for bad, word in (
        ({**value, "format": "other"}, "'other'"),
        ({**value, "groups": ["ffn"]}, "ffn"),
        ({**value, "limit": 100}, "limit"),
        ({**value, "files": less}, "does not list blocks.1"),
        ({**value, "groups": ["feed_forward"]}, "missing"),
        ({key: entry for key, entry in value.items() if key != "fingerprint"}, "fingerprint"),
    ):
        file.write_text(json.dumps(bad))
        with pytest.raises(CheckpointError, match=word):
            load_quantized(folder, fp32)
    file.unlink()
    with pytest.raises(CheckpointError, match=r"quantization\.json: file not found"):
        load_quantized(folder, fp32)


def test_a_dtype_that_is_not_plain_is_named(folder: Path) -> None:
    with pytest.raises(ValueError, match="dtype of patch_embedding"):
        load_quantized(folder, lambda name: torch.int8)
