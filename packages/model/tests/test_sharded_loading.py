"""A rank's part of a transformer: what cutting the whole one gives, from the bytes of that part."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoint_files import SMALL, canonical_tensors, comfyui_tensors, write_file

from wantrn.kernels.row_mx import ChannelWeight
from wantrn.model.checkpoints import TensorStore, load_transformer_state, original
from wantrn.model.config import WanConfig
from wantrn.model.errors import CheckpointError
from wantrn.model.quantization import QuantizationOptions, QuantizedState, load_quantized
from wantrn.model.quantization.headers import QuantizedHeaders
from wantrn.model.quantization.run import QuantizationJob
from wantrn.model.sharding import Shard, Sharding, cut, join

State = Mapping[str, torch.Tensor]
HEADS = replace(SMALL, num_attention_heads=8)
# In FP8 a rank has a multiple of 32 input features.
WIDE = replace(SMALL, num_attention_heads=8, attention_head_dim=16, ffn_dim=256)

# Wan2.2-A14B with 1/32 of its width.
PROPORTIONS = WanConfig(attention_head_dim=4, ffn_dim=432, text_dim=128, freq_dim=8)
IO = Path("/proc/self/io")
needs_io = pytest.mark.skipif(not IO.exists(), reason=f"{IO} counts the bytes that are read")


def fp32(name: str) -> torch.dtype:
    return torch.float32


def bf16(name: str) -> torch.dtype:
    return torch.bfloat16


def mixed(name: str) -> torch.dtype:
    return torch.float32 if "norm" in name else torch.bfloat16


def shards(tp: int, replicate: bool = False) -> list[Shard]:
    return [Shard(tp, rank, replicate) for rank in range(tp)]


def write(folder: Path, format: str, config: WanConfig) -> Path:
    tensors = canonical_tensors(config)
    if format == "original":
        keys = original.key_map(config)
        tensors = {keys[name]: tensor for name, tensor in tensors.items()}
    elif format == "comfyui":
        tensors, _ = comfyui_tensors(tensors, config)
    return write_file(folder / "model.safetensors", tensors)


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """In all bits; not every operator knows float8."""
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and torch.equal(left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8))
    )


@pytest.mark.parametrize("replicate", [False, True])
@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("format", ["diffusers", "original", "comfyui"])
def test_a_rank_loads_what_cutting_gives(
    tmp_path: Path, format: str, tp: int, replicate: bool
) -> None:
    store = TensorStore.open(write(tmp_path, format, HEADS))
    whole = load_transformer_state(store, HEADS, mixed)
    states = [load_transformer_state(store, HEADS, mixed, shard) for shard in shards(tp, replicate)]
    for shard, state in zip(shards(tp, replicate), states, strict=True):
        assert state.keys() == whole.keys()
        for name, tensor in state.items():
            assert same(tensor, cut(whole[name], shard.sharding(name), shard)), name
            assert tensor.is_contiguous()
    for name, tensor in whole.items():
        sharding = shards(tp, replicate)[0].sharding(name)
        assert same(join([state[name] for state in states], sharding), tensor)


def test_a_shard_that_does_not_fit_is_refused_before_any_file_is_read(tmp_path: Path) -> None:
    store = TensorStore.open(write(tmp_path, "diffusers", HEADS))
    for file in store.files:
        file.unlink()
    with pytest.raises(ValueError, match="num_attention_heads is 8, which tp = 3"):
        load_transformer_state(store, HEADS, fp32, Shard(3, 0))
    with pytest.raises(ValueError, match="ffn_dim is 64, which tp = 128"):
        load_transformer_state(store, replace(HEADS, num_attention_heads=128), fp32, Shard(128, 0))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("blocks.1.ffn.net.2.weight", lambda t: t[:, :32], "[64, 32], expected [64, 64]"),
        ("blocks.0.attn1.to_k.weight", lambda t: t[:32], "[32, 64], expected [64, 64]"),
        ("blocks.0.attn1.to_v.bias", lambda t: t.to(torch.int32), "int32"),
        ("proj_out.bias", lambda t: torch.full_like(t, torch.nan), "NaN"),
    ],
)
def test_errors_name_file_and_key(
    tmp_path: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor], words: str
) -> None:
    """Also where the file has just what one of two ranks needs."""
    tensors = canonical_tensors(HEADS)
    tensors[name] = change(tensors[name])
    store = TensorStore.open(write_file(tmp_path / "model.safetensors", tensors))
    for shard in shards(2):
        with pytest.raises(CheckpointError) as caught:
            load_transformer_state(store, HEADS, fp32, shard)
        assert all(word in str(caught.value) for word in ("model.safetensors", name, words))


@pytest.mark.parametrize("name", ["attn1.to_out.0.weight", "ffn.net.2.weight"])
def test_the_rank_that_has_a_nan_finds_it(tmp_path: Path, name: str) -> None:
    tensors = canonical_tensors(HEADS)
    tensors[f"blocks.1.{name}"][3, -1] = torch.nan  # a column of the last rank
    store = TensorStore.open(write_file(tmp_path / "model.safetensors", tensors))
    load_transformer_state(store, HEADS, fp32, Shard(2, 0))
    with pytest.raises(CheckpointError, match=rf"model\.safetensors: blocks\.1\.{name}: .*NaN"):
        load_transformer_state(store, HEADS, fp32, Shard(2, 1))


def quantized(folder: Path, config: WanConfig, tensors: State) -> Path:
    source = folder / "source"
    write_file(source / "model.safetensors", tensors)
    (source / "config.json").write_text(json.dumps(config.to_diffusers()))
    QuantizationJob.plan(source, folder / "fp8", QuantizationOptions()).run(lambda done: None)
    return folder / "fp8"


def joined(layer: str, weights: list[ChannelWeight], sharding: Sharding) -> ChannelWeight:
    """By the dequantized weights' axes: ``[I, H]`` from codes ``[H/4, I, 4]``."""
    codes = [
        weight.codes.view(torch.uint8).transpose(0, 1).flatten(1).contiguous() for weight in weights
    ]
    whole = join(codes, sharding)
    if sharding is Sharding.ROW:
        scales = join([weight.scales for weight in weights], Sharding.REPLICATED)
    else:
        scales = join([weight.scales[0] for weight in weights], sharding).unsqueeze(0)
    moved = whole.view(whole.shape[0], -1, 4).transpose(0, 1).contiguous()
    return ChannelWeight(moved.view(torch.float8_e4m3fn), scales)


@pytest.mark.parametrize("replicate", [False, True])
@pytest.mark.parametrize("tp", [2, 4])
def test_fp8_ranks_joined_are_the_whole(tmp_path: Path, tp: int, replicate: bool) -> None:
    folder = quantized(tmp_path, WIDE, canonical_tensors(WIDE))
    _, whole = load_quantized(folder, mixed)
    states: list[QuantizedState] = []
    for shard in shards(tp, replicate):
        config, state = load_quantized(folder, mixed, shard)
        assert config == WIDE
        states.append(state)
    rank = shards(tp, replicate)[0]
    for layer, weight in whole.layers.items():
        sharding = rank.sharding(f"{layer}.weight")
        found = joined(layer, [state.layers[layer] for state in states], sharding)
        assert same(found.codes, weight.codes) and same(found.scales, weight.scales), layer
    for name, tensor in whole.parameters.items():
        found_parameter = join([state.parameters[name] for state in states], rank.sharding(name))
        assert same(found_parameter, tensor), name
    for state in states:
        assert state.layers.keys() == whole.layers.keys()
        assert state.parameters.keys() == whole.parameters.keys()


def test_fp8_refuses_ranks_without_whole_blocks(tmp_path: Path) -> None:
    folder = quantized(tmp_path, WIDE, canonical_tensors(WIDE))
    text = r"tp = 8 leaves blocks\.0\.self_attention\.out 16 of its 128 .* multiple of 32"
    with pytest.raises(ValueError, match=text):
        load_quantized(folder, fp32, Shard(8, 0))
    with pytest.raises(ValueError, match="num_attention_heads is 8, which tp = 3"):
        load_quantized(folder, fp32, Shard(3, 0))


def bytes_read(action: Callable[[Shard], object], shard: Shard) -> int:
    def count() -> int:
        return int(IO.read_text().split("rchar:")[1].split()[0])

    before = count()
    action(shard)
    return count() - before


SLACK = 1024  # the counter's own text, read twice


@needs_io
@pytest.mark.parametrize("format", ["diffusers", "comfyui"])
def test_a_rank_of_four_reads_less_than_a_third(tmp_path: Path, format: str) -> None:
    tensors = {name: t.bfloat16() for name, t in canonical_tensors(PROPORTIONS).items()}
    if format == "comfyui":
        tensors, _ = comfyui_tensors(tensors, PROPORTIONS)
    file = write_file(tmp_path / "model.safetensors", tensors)
    size = file.stat().st_size

    def load(shard: Shard) -> State:
        return load_transformer_state(TensorStore.open(file), PROPORTIONS, bf16, shard)

    load(Shard.whole())  # whatever is imported at first use
    whole = bytes_read(load, Shard.whole())
    assert abs(whole - size) <= (SLACK if format == "diffusers" else size // 100)
    for shard in shards(4):
        assert bytes_read(load, shard) <= 0.30 * size


@needs_io
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_rank_reads_what_it_has_and_nothing_else(tmp_path: Path, tp: int) -> None:
    tensors = {name: t.bfloat16() for name, t in canonical_tensors(WIDE).items()}
    fp8 = quantized(tmp_path, WIDE, tensors)
    plain = TensorStore.open(fp8.parent / "source" / "model.safetensors")

    def load_plain(shard: Shard) -> int:
        state = load_transformer_state(plain, WIDE, bf16, shard)
        return sum(tensor.nbytes for tensor in state.values())

    def load_fp8(shard: Shard) -> int:
        state = load_quantized(fp8, bf16, shard)[1]
        return sum(tensor.nbytes for tensor in state.parameters.values()) + sum(
            weight.codes.nbytes + weight.scales.nbytes for weight in state.layers.values()
        )

    load_fp8(Shard.whole())  # whatever is imported at first use
    headers = bytes_read(lambda shard: QuantizedHeaders.open(fp8), Shard.whole())
    for shard in shards(tp):
        assert abs(bytes_read(load_plain, shard) - load_plain(shard)) <= SLACK
        assert abs(bytes_read(load_fp8, shard) - headers - load_fp8(shard)) <= SLACK
