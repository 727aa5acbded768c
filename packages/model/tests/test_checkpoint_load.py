"""Loading and saving: the same model from every format, all of it or an error."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import (
    SMALL,
    TINY,
    canonical_tensors,
    comfyui_tensors,
    is_quantized,
    write_file,
    write_shards,
)
from diffusers import WanTransformer3DModel
from torch import nn
from transformers import UMT5Config, UMT5EncoderModel

from wantrn.model.checkpoints import (
    CheckpointFormat,
    TensorStore,
    export_state,
    load_module,
    load_transformer_state,
    original,
    save_sharded,
)
from wantrn.model.checkpoints.native import native_shapes, to_native
from wantrn.model.config import WanConfig
from wantrn.model.errors import CheckpointError
from wantrn.model.transformer import WanTransformer

State = dict[str, torch.Tensor]
THEIR_DIT: Any = WanTransformer3DModel  # these classes have no types
THEIR_ENCODER: Any = UMT5EncoderModel
FORMATS = ("diffusers", "original", "comfyui-1", "comfyui-2")
SPELLINGS = {
    "comfyui-1": ("scale_weight", "scale_input"),
    "comfyui-2": ("weight_scale", "input_scale"),
}


def fp32(name: str) -> torch.dtype:
    return torch.float32


def file_tensors(
    format: str, canonical: Mapping[str, torch.Tensor], config: WanConfig = SMALL
) -> tuple[State, State]:
    """What a file of ``format`` holds, and the canonical values that this stands for."""
    if format == "diffusers":
        return dict(canonical), dict(canonical)
    if format == "original":
        keys = original.key_map(config)
        return {keys[name]: canonical[name] for name in canonical}, dict(canonical)
    return comfyui_tensors(canonical, config, SPELLINGS[format])


def load(path: Path, parameter_dtype: Callable[[str], torch.dtype] = fp32) -> State:
    return load_transformer_state(TensorStore.open(path), SMALL, parameter_dtype)


def refused(path: Path, *words: str) -> None:
    """Loading fails and the error names the file and all ``words``."""
    with pytest.raises(CheckpointError) as caught:
        load(path)
    for word in (path.name, *words):
        assert word in str(caught.value), f"{word!r} not in {caught.value}"


def equal(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name])
        for name in left
    )


@pytest.mark.parametrize("config", [SMALL, TINY], ids=["small", "tiny"])
@pytest.mark.parametrize("format", FORMATS)
def test_loads_the_values_of_the_file(tmp_path: Path, format: str, config: WanConfig) -> None:
    canonical = canonical_tensors(config)
    tensors, values = file_tensors(format, canonical, config)
    store = TensorStore.open(write_file(tmp_path / "model.safetensors", tensors))
    state = load_transformer_state(store, config, fp32)
    assert equal(state, to_native(values, config))
    plain = to_native(canonical, config)
    assert equal(state, plain) == (format not in SPELLINGS)
    for name, tensor in state.items():  # e4m3 has 3 bits after the point: an error of 1/16 at most
        assert (tensor - plain[name]).abs().max() <= 2**-4 * plain[name].abs().max()


@pytest.mark.parametrize("prefix", original.PREFIXES)
def test_loads_with_a_prefix(tmp_path: Path, prefix: str) -> None:
    canonical = canonical_tensors(SMALL)
    keys = original.key_map(SMALL, prefix)
    file = write_file(tmp_path / "o.safetensors", {keys[name]: canonical[name] for name in keys})
    assert equal(load(file), to_native(canonical, SMALL))
    tensors, values = comfyui_tensors(canonical, SMALL, prefix=prefix)
    assert equal(load(write_file(tmp_path / "c.safetensors", tensors)), to_native(values, SMALL))


def test_loads_shards(tmp_path: Path) -> None:
    canonical = canonical_tensors(SMALL)
    names = list(canonical)
    shards = {f"s{i}.safetensors": {n: canonical[n] for n in names[i::3]} for i in range(3)}
    assert equal(load(write_shards(tmp_path, shards)), to_native(canonical, SMALL))


@pytest.mark.parametrize("format", FORMATS)
def test_precision_is_as_asked_and_rounded_once(tmp_path: Path, format: str) -> None:
    tensors, values = file_tensors(format, canonical_tensors(SMALL))

    def dtype(name: str) -> torch.dtype:
        return WanTransformer.parameter_dtype(name, torch.bfloat16)

    state = load(write_file(tmp_path / "model.safetensors", tensors), dtype)
    expected = {n: t.to(dtype(n)) for n, t in to_native(values, SMALL).items()}
    assert equal(state, expected)
    assert {t.dtype for t in state.values()} == {torch.bfloat16, torch.float32}


def test_half_precision_files_become_float32(tmp_path: Path) -> None:
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        tensors = {name: tensor.to(dtype) for name, tensor in canonical_tensors(SMALL).items()}
        state = load(write_file(tmp_path / "model.safetensors", tensors))
        expected = to_native({name: tensor.float() for name, tensor in tensors.items()}, SMALL)
        assert equal(state, expected)


def test_fills_our_transformer(tmp_path: Path) -> None:
    file = write_file(tmp_path / "model.safetensors", canonical_tensors(SMALL))
    with torch.device("meta"):
        model = WanTransformer(SMALL)
    assert {n: tuple(t.shape) for n, t in model.state_dict().items()} == native_shapes(SMALL)
    model.load_state_dict(load(file), strict=True, assign=True)
    assert not any(tensor.is_meta for tensor in model.state_dict().values())


def test_the_result_outlives_the_file(tmp_path: Path) -> None:
    canonical = canonical_tensors(SMALL)
    file = write_file(tmp_path / "model.safetensors", canonical)
    state = load(file)
    with open(file, "r+b") as stream:
        stream.seek(-10_000, 2)
        stream.write(bytes(10_000))
    assert equal(state, to_native(canonical, SMALL))


def source_key(format: str, canonical: str) -> str:
    return canonical if format == "diffusers" else original.original_name(canonical)


# A plain tensor, a part of the fused weight, a permuted one and a top-level one.
PROBES = (
    "proj_out.weight",
    "blocks.1.attn1.to_k.weight",
    "blocks.0.attn1.norm_q.weight",
    "scale_shift_table",
    "patch_embedding.bias",
)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", PROBES)
@pytest.mark.parametrize("fault", ["missing", "misshaped", "transposed", "integer"])
def test_refuses_a_tensor_that_does_not_fit(
    tmp_path: Path, format: str, name: str, fault: str
) -> None:
    tensors, _ = file_tensors(format, canonical_tensors(SMALL))
    key = source_key(format, name)
    tensor = tensors.pop(key)
    words = [key, fault if fault == "missing" else ""]
    if fault == "missing":
        for leaf in SPELLINGS.get(format, ()):
            tensors.pop(key.removesuffix("weight") + leaf, None)
    elif fault == "integer":
        coded = tensor.dtype == torch.float8_e4m3fn
        tensors[key] = tensor.float().to(torch.int32)
        words.append("no tensor of torch.float8_e4m3fn" if coded else "int32")
    else:
        wrong = tensor[..., :-1] if fault == "misshaped" else tensor.unsqueeze(0)
        tensors[key] = wrong
        words += ["misshaped", str(list(wrong.shape)), str(list(tensor.shape))]
    refused(write_file(tmp_path / "model.safetensors", tensors), *words)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("extra", ["img_emb.proj.0.weight", "blocks.2.norm2.bias", "loose"])
def test_refuses_an_extra_tensor(tmp_path: Path, format: str, extra: str) -> None:
    tensors, _ = file_tensors(format, canonical_tensors(SMALL))
    file = write_file(tmp_path / "model.safetensors", tensors | {extra: torch.ones(16)})
    refused(file, "unexpected", extra)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", PROBES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_refuses_what_is_not_finite(tmp_path: Path, format: str, name: str, value: float) -> None:
    tensors, _ = file_tensors(format, canonical_tensors(SMALL))
    key = source_key(format, name)
    if tensors[key].dtype == torch.float8_e4m3fn:
        tensors[key].view(torch.uint8).view(-1)[-1] = (
            0x7F  # the format's only NaN; it has no infinity
        )
    else:
        tensors[key].view(-1)[-1] = value
    refused(write_file(tmp_path / "model.safetensors", tensors), key, "NaN")


def test_refuses_values_that_the_dtype_cannot_hold(tmp_path: Path) -> None:
    tensors = canonical_tensors(SMALL)
    tensors["proj_out.bias"][0] = 3.4e38  # finite in float32, infinite in bfloat16
    file = write_file(tmp_path / "model.safetensors", tensors)
    assert load(file)["proj_out.bias"][0] == torch.tensor(3.4e38)
    with pytest.raises(CheckpointError, match="proj_out.bias.*beyond the range of torch.bfloat16"):
        load(file, lambda name: torch.bfloat16)


def test_refuses_a_dtype_that_is_no_plain_float(tmp_path: Path) -> None:
    file = write_file(tmp_path / "model.safetensors", canonical_tensors(SMALL))
    for dtype in (torch.int8, torch.float8_e4m3fn):
        with pytest.raises(ValueError, match=f"{dtype}.*allowed are"):
            load(file, lambda name, dtype=dtype: dtype)  # type: ignore[misc]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("format", ["diffusers", "original"])
def test_never_casts_fp8_without_scales(tmp_path: Path, format: str, dtype: torch.dtype) -> None:
    tensors, _ = file_tensors(format, canonical_tensors(SMALL))
    key = source_key(format, "blocks.1.attn1.to_k.weight")
    tensors[key] = tensors[key].to(dtype)
    refused(write_file(tmp_path / "model.safetensors", tensors), key, "float8")


@pytest.mark.parametrize("format", list(SPELLINGS))
class TestFp8:
    KEY = "blocks.1.self_attn.k"

    def tensors(self, format: str) -> tuple[State, str]:
        return comfyui_tensors(canonical_tensors(SMALL), SMALL, spelling=SPELLINGS[format])[0], (
            f"{self.KEY}.{SPELLINGS[format][0]}"
        )

    def test_missing_scale(self, tmp_path: Path, format: str) -> None:
        tensors, scale = self.tensors(format)
        del tensors[scale]
        file = write_file(tmp_path / "model.safetensors", tensors)
        refused(file, f"{self.KEY}.weight: is FP8 without its scale")

    @pytest.mark.parametrize("leaf", [0, 1])
    def test_scale_without_fp8(self, tmp_path: Path, format: str, leaf: int) -> None:
        tensors, _ = self.tensors(format)
        tensors[f"blocks.0.norm3.{SPELLINGS[format][leaf]}"] = torch.tensor(1.0)
        file = write_file(tmp_path / "model.safetensors", tensors)
        refused(file, f"blocks.0.norm3.{SPELLINGS[format][leaf]}", "no tensor of")

    def test_scale_of_a_weight_that_is_plain(self, tmp_path: Path, format: str) -> None:
        tensors, _ = self.tensors(format)
        tensors[f"{self.KEY}.weight"] = tensors[f"{self.KEY}.weight"].to(torch.float16)
        file = write_file(tmp_path / "model.safetensors", tensors)
        refused(file, f"is a scale, but {self.KEY}.weight is no tensor of torch.float8_e4m3fn")

    @pytest.mark.parametrize(
        "value", [0.0, -1.0, float("nan"), float("inf"), -0.0], ids=["0", "-1", "nan", "inf", "-0"]
    )
    def test_value_of_a_scale(self, tmp_path: Path, format: str, value: float) -> None:
        tensors, scale = self.tensors(format)
        tensors[scale] = torch.tensor(value)
        refused(write_file(tmp_path / "model.safetensors", tensors), scale, "finite and positive")

    @pytest.mark.parametrize(
        "value", [torch.ones(16), torch.ones(1, 1), torch.ones(0), torch.tensor(1)]
    )
    def test_scale_is_a_scalar(self, tmp_path: Path, format: str, value: torch.Tensor) -> None:
        tensors, scale = self.tensors(format)
        tensors[scale] = value
        file = write_file(tmp_path / "model.safetensors", tensors)
        refused(file, scale, "one floating-point number")

    def test_two_scales(self, tmp_path: Path, format: str) -> None:
        tensors, scale = self.tensors(format)
        for leaf in ("scale_weight", "weight_scale"):
            tensors[f"{self.KEY}.{leaf}"] = torch.tensor(1.0)
        file = write_file(tmp_path / "model.safetensors", tensors)
        refused(file, f"{self.KEY}.weight has two scales", scale)

    def test_fp8_bias(self, tmp_path: Path, format: str) -> None:
        tensors, _ = self.tensors(format)
        key = f"{self.KEY}.bias"
        tensors[key] = tensors[key].to(torch.float8_e4m3fn)
        refused(write_file(tmp_path / "model.safetensors", tensors), key, "only a weight")

    def test_other_fp8(self, tmp_path: Path, format: str) -> None:
        tensors, _ = self.tensors(format)
        key = f"{self.KEY}.weight"
        tensors[key] = tensors[key].float().to(torch.float8_e5m2)
        file = write_file(tmp_path / "model.safetensors", tensors)
        refused(file, f"{key} is no tensor of torch.float8_e4m3fn")

    def test_unquantized_layers_input_scales_and_marker_are_optional(
        self, tmp_path: Path, format: str
    ) -> None:
        canonical = canonical_tensors(SMALL)
        tensors, values = comfyui_tensors(canonical, SMALL, spelling=SPELLINGS[format])
        del tensors["scaled_fp8"]
        for name in filter(is_quantized, canonical):
            stem = original.original_name(name).removesuffix("weight")
            del tensors[stem + SPELLINGS[format][1]]
            if name.startswith("blocks.0."):
                del tensors[stem + SPELLINGS[format][0]]
                tensors[f"{stem}weight"] = values[name] = canonical[name]
        tensors[f"{self.KEY}.{SPELLINGS[format][0]}"].unsqueeze_(0)  # some writers store [1]
        state = load(write_file(tmp_path / "model.safetensors", tensors))
        assert equal(state, to_native(values, SMALL))

    def test_input_scales_do_not_matter(self, tmp_path: Path, format: str) -> None:
        tensors, values = comfyui_tensors(
            canonical_tensors(SMALL), SMALL, spelling=SPELLINGS[format]
        )
        for name in tensors:
            if name.endswith(SPELLINGS[format][1]):
                tensors[name] = torch.tensor(0.125)
        state = load(write_file(tmp_path / "model.safetensors", tensors))
        assert equal(state, to_native(values, SMALL))


class Net(nn.Module):
    """A parameter, an alias of it, buffers of both kinds."""

    scratch: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 3)
        self.layer = nn.Linear(3, 2)
        self.alias = nn.Embedding(4, 3)
        self.register_buffer("steps", torch.arange(3))
        self.register_buffer("mean", torch.ones(2))
        self.register_buffer("scratch", torch.full((1,), 7.0, device="cpu"), persistent=False)


TIED = {"alias.weight": "table.weight"}


def net_tensors(table: str = "table.weight") -> State:
    generator = torch.Generator().manual_seed(0)
    return {
        table: torch.randn(4, 3, generator=generator),
        "layer.weight": torch.randn(2, 3, generator=generator),
        "layer.bias": torch.randn(2, generator=generator),
        "steps": torch.tensor([5, 6, 7]),
        "mean": torch.randn(2, generator=generator),
    }


def meta_net() -> Net:
    with torch.device("meta"):
        net = Net()
    net.scratch = torch.full((1,), 7.0)
    return net


def fill(
    net: nn.Module, folder: Path, tensors: Mapping[str, torch.Tensor], **kwargs: object
) -> None:
    file = write_file(folder / "net.safetensors", tensors)
    options: dict[str, object] = {"tied": TIED, "dtype": torch.float32} | kwargs
    load_module(net, TensorStore.open(file), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [Net, meta_net])
@pytest.mark.parametrize("spelling", ["table.weight", "alias.weight", "both"])
def test_module_gets_every_tensor(tmp_path: Path, make: Callable[[], Net], spelling: str) -> None:
    net = make()
    tensors = net_tensors("table.weight" if spelling == "both" else spelling)
    table = tensors["table.weight" if spelling == "both" else spelling]
    if spelling == "both":
        tensors["alias.weight"] = table
    fill(net, tmp_path, tensors)
    assert net.alias.weight is net.table.weight
    torch.testing.assert_close(net.table.weight.data, table, rtol=0, atol=0)
    for name in ("layer.weight", "layer.bias", "steps", "mean"):
        assert torch.equal(net.state_dict()[name], tensors[name])
    assert not any(t.is_meta for t in (*net.parameters(), *net.buffers()))
    assert isinstance(net.layer.weight, nn.Parameter) and net.scratch.item() == 7


def test_module_dtypes(tmp_path: Path) -> None:
    net = meta_net()
    fill(net, tmp_path, net_tensors(), dtype=torch.bfloat16, keep_fp32=lambda n: n == "layer.bias")
    assert {name: tensor.dtype for name, tensor in net.state_dict().items()} == {
        "table.weight": torch.bfloat16,
        "alias.weight": torch.bfloat16,
        "layer.weight": torch.bfloat16,
        "layer.bias": torch.float32,
        "steps": torch.int64,
        "mean": torch.bfloat16,
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layer.bias": None}, ["missing", "layer.bias"]),
        ({"table.weight": None}, ["missing", "table.weight"]),
        ({"mean": None}, ["missing", "mean"]),
        ({"layer.gamma": torch.ones(1)}, ["unexpected", "layer.gamma"]),
        ({"scratch": torch.ones(1)}, ["unexpected", "scratch"]),
        ({"layer.weight": torch.ones(3, 2)}, ["layer.weight", "[3, 2]", "[2, 3]"]),
        ({"layer.weight": torch.full((2, 3), torch.nan)}, ["layer.weight", "NaN"]),
        ({"mean": torch.full((2,), torch.inf)}, ["mean", "infinity"]),
        ({"steps": torch.ones(3)}, ["steps", "float32", "int64"]),
        ({"layer.bias": torch.ones(2, dtype=torch.int64)}, ["layer.bias", "int64"]),
        ({"layer.bias": torch.ones(2).to(torch.float8_e4m3fn)}, ["layer.bias", "float8"]),
        ({"alias.weight": torch.ones(4, 3)}, ["alias.weight differs from table.weight"]),
        ({"alias.weight": torch.ones(4, 4)}, ["alias.weight differs from table.weight"]),
        ({"alias.weight": torch.ones(4, 3).half()}, ["alias.weight differs from table.weight"]),
    ],
)
@pytest.mark.parametrize("make", [Net, meta_net])
def test_module_is_left_alone_by_a_bad_file(
    tmp_path: Path, make: Callable[[], Net], change: Mapping[str, object], words: list[str]
) -> None:
    tensors = {n: t for n, t in (net_tensors() | dict(change)).items() if t is not None}
    net = make()
    before = net.state_dict(keep_vars=True)
    with pytest.raises(CheckpointError) as caught:
        fill(net, tmp_path, tensors)  # type: ignore[arg-type]
    for word in ("net.safetensors", *words):
        assert word in str(caught.value)
    after = net.state_dict(keep_vars=True)
    assert all(after[name] is before[name] for name in before)


def test_module_and_ties_must_make_sense(tmp_path: Path) -> None:
    with torch.device("meta"):
        net = Net()
        net.register_buffer("hidden", torch.empty(2), persistent=False)
    with pytest.raises(ValueError, match="hidden is not saved"):
        fill(net, tmp_path, net_tensors())
    for tied, word in (
        ({"nothing": "table.weight"}, "nothing"),
        ({"alias.weight": "nothing"}, "nothing"),
        ({"alias.weight": "layer.weight"}, "differ in shape"),
        ({"alias.weight": "table.weight", "table.weight": "alias.weight"}, "alias itself"),
    ):
        with pytest.raises(ValueError, match=word):
            fill(Net(), tmp_path, net_tensors(), tied=tied)
    with pytest.raises(ValueError, match="torch.int8"):
        fill(Net(), tmp_path, net_tensors(), dtype=torch.int8)


def test_text_encoder_embeddings_are_filled_under_both_names(tmp_path: Path) -> None:
    config = UMT5Config(
        vocab_size=40,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
    )
    torch.manual_seed(0)
    saved = THEIR_ENCODER(config).eval()
    saved.save_pretrained(tmp_path)
    with torch.device("meta"):
        loaded = THEIR_ENCODER(config).eval()
    tied = {"encoder.embed_tokens.weight": "shared.weight"}
    load_module(loaded, TensorStore.open(tmp_path), torch.float32, tied=tied)
    tokens = torch.arange(12).reshape(2, 6)
    with torch.inference_mode():
        expected, actual = (model(tokens).last_hidden_state for model in (saved, loaded))
    assert torch.equal(actual, expected)
    assert loaded.encoder.embed_tokens.weight is loaded.shared.weight


@pytest.mark.parametrize("max_bytes", [10**9, 5_000, 1])
@pytest.mark.parametrize("format", [CheckpointFormat.DIFFUSERS, CheckpointFormat.ORIGINAL])
def test_saved_models_load_again(tmp_path: Path, format: CheckpointFormat, max_bytes: int) -> None:
    state = to_native(canonical_tensors(SMALL), SMALL)
    folder = tmp_path / "new" / "transformer"
    files = save_sharded(export_state(state, SMALL, format), folder, max_shard_bytes=max_bytes)
    names = sorted(path.name for path in folder.iterdir())
    if max_bytes == 10**9:
        assert names == ["diffusion_pytorch_model.safetensors"] == [files[0].name]
    else:
        count = f"{len(files):05}"
        assert names == [
            *(
                f"diffusion_pytorch_model-{i + 1:05}-of-{count}.safetensors"
                for i in range(len(files))
            ),
            "diffusion_pytorch_model.safetensors.index.json",
        ]
        assert len(files) == (69 if max_bytes == 1 else len(files)) > 1
        for file in files:
            tensors = TensorStore.open(file).tensors.values()
            assert len(tensors) == 1 or sum(info.nbytes for info in tensors) <= max_bytes
    assert equal(load(folder), state)


def test_diffusers_reads_what_we_save(tmp_path: Path) -> None:
    canonical = canonical_tensors(SMALL)
    exported = export_state(to_native(canonical, SMALL), SMALL, CheckpointFormat.DIFFUSERS)
    save_sharded(exported, tmp_path, max_shard_bytes=20_000)
    (tmp_path / "config.json").write_text(json.dumps(SMALL.to_diffusers()))
    model = THEIR_DIT.from_pretrained(tmp_path, local_files_only=True)
    assert equal(model.state_dict(), canonical)


def test_export_refuses_fp8_and_other_states() -> None:
    state = to_native(canonical_tensors(SMALL), SMALL)
    with pytest.raises(ValueError, match="comfyui-fp8"):
        export_state(state, SMALL, CheckpointFormat.COMFYUI_FP8)
    del state["modulation"]
    with pytest.raises(ValueError, match="modulation is missing"):
        export_state(state, SMALL, CheckpointFormat.DIFFUSERS)


def test_a_failed_save_leaves_nothing(tmp_path: Path) -> None:
    class Full(Mapping[str, torch.Tensor]):
        """Gives the third tensor once for its size, then fails as a full disk would."""

        tensors = {f"t{i}": torch.ones(8) for i in range(4)}
        reads = 0

        def __getitem__(self, name: str) -> torch.Tensor:
            if name == "t2":
                self.reads += 1
                if self.reads > 1:
                    raise OSError("no space left")
            return self.tensors[name]

        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter(self.tensors)

        def __len__(self) -> int:
            return len(self.tensors)

    with pytest.raises(OSError, match="no space"):
        save_sharded(Full(), tmp_path, max_shard_bytes=32)
    assert list(tmp_path.iterdir()) == []


def test_a_save_that_fails_at_the_last_rename_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.replace

    def refuse_the_index(source: Path, target: Path) -> None:
        if target.name.endswith(".index.json"):
            raise OSError("quota exceeded")
        rename(source, target)

    monkeypatch.setattr(os, "replace", refuse_the_index)
    tensors = {"a": torch.ones(2), "b": torch.ones(2)}
    with pytest.raises(OSError, match="quota"):
        save_sharded(tensors, tmp_path, max_shard_bytes=8)
    assert list(tmp_path.iterdir()) == []


def test_save_never_mixes_with_old_weights(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(2), "b": torch.ones(2)}
    (tmp_path / "config.json").write_text("{}")
    (file,) = save_sharded(tensors, tmp_path)
    before = file.read_bytes()
    with pytest.raises(FileExistsError, match=re.escape(str(file))):
        save_sharded(tensors, tmp_path, max_shard_bytes=8)
    assert file.read_bytes() == before and len(list(tmp_path.iterdir())) == 2
    with pytest.raises(ValueError, match="max_shard_bytes is 0"):
        save_sharded(tensors, tmp_path, stem="other", max_shard_bytes=0)
    with pytest.raises(ValueError, match="empty"):
        save_sharded({}, tmp_path, stem="other")
    assert len(list(tmp_path.iterdir())) == 2
