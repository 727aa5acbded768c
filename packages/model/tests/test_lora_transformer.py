"""LoRAs beside the transformer's layers, against weights that have them in them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lora_files import layer_names, made, merged, vector_names, write_lora
from rank_processes import run_ranks
from test_parallel_transformer import CASES, LAYOUTS, Case, Layout, inputs
from torch import Tensor

from wantrn.kernels import backend
from wantrn.kernels.backend import Backend, Simulation, use_backend
from wantrn.model.checkpoints.native import to_canonical, to_native
from wantrn.model.config import WanConfig
from wantrn.model.lora import NONE, Adapters, LoraChoice, LoraLibrary, LoraReader
from wantrn.model.parallelism import Parallelism
from wantrn.model.quantization import QuantizationOptions, quantize_state
from wantrn.model.quantized_transformer import quantized_transformer
from wantrn.model.sharding import cut
from wantrn.model.tiny import random_state
from wantrn.model.transformer import Block, VideoInputs, WanTransformer
from wantrn.parallel import Degrees

CASE = CASES["TI2V, a timestep a frame"]


def canonical(config: WanConfig) -> dict[str, Tensor]:
    return to_canonical(random_state(config, 0), config)


def model_of(native: dict[str, Tensor], config: WanConfig, parallel: Parallelism) -> WanTransformer:
    with torch.device("meta"):
        model = WanTransformer(config, parallel=parallel)
    shard = parallel.shard
    state = {name: cut(tensor, shard.sharding(name), shard) for name, tensor in native.items()}
    model.load_state_dict(state, assign=True)
    return model.eval().requires_grad_(False)


def library(model: WanTransformer, dtype: torch.dtype = torch.float32) -> LoraLibrary:
    def dtype_of(name: str) -> torch.dtype:
        return torch.float32 if name.startswith("proj_out.") else model.parameter_dtype(name, dtype)

    return LoraLibrary(LoraReader(model.config, dtype_of, model.parallel.shard), 1, 2**30)


def adapters(model: WanTransformer, *files: tuple[Path, float]) -> Adapters:
    return library(model).adapters([LoraChoice.of(*file) for file in files], 0)


def velocities(
    model: WanTransformer, case: Case, added: Adapters = NONE, batched: bool = False
) -> list[Tensor]:
    latents, timestep, texts = inputs(case)
    with torch.inference_mode():
        contexts = [model.text_context(text, added) for text in texts]
        rotary = model.rotary(latents)
        found = model.velocities(latents, timestep, contexts, rotary, batched, added)
    return list(found)


def worst(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    return max(
        float((ours - other).abs().max() / other.abs().max())
        for ours, other in zip(found, exact, strict=True)
    )


@pytest.mark.parametrize("batched", [False, True])
def test_the_result_is_that_of_merged_weights(tmp_path: Path, batched: bool) -> None:
    config = CASE.config()
    weights = canonical(config)
    one = made(weights, config, seed=1, differences=True)
    other = made(weights, config, rank=5, alpha=None, seed=2)
    files = [
        write_lora(tmp_path / f"{i}.safetensors", lora, config)
        for i, lora in enumerate((one, other))
    ]
    plain = model_of(to_native(weights, config), config, Parallelism())
    before = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    for scales in ((1.0, 0.0), (0.7, -0.4)):
        expected = merged(weights, (one, scales[0]), (other, scales[1]))
        exact = velocities(model_of(to_native(expected, config), config, Parallelism()), CASE)
        added = adapters(plain, *zip(files, scales, strict=True))
        found = velocities(plain, CASE, added, batched)
        assert worst(found, exact) <= 1e-5
        assert worst(velocities(plain, CASE), exact) > 0.01
    assert all(torch.equal(before[name], now) for name, now in plain.state_dict().items())


@pytest.mark.parametrize("kind", ["layers", "vectors"])
def test_each_tensor_by_itself(tmp_path: Path, kind: str) -> None:
    """No layer is forgotten, and none is taken for another."""
    config = replace(CASE.config(), num_layers=1)
    weights = canonical(config)
    plain = model_of(to_native(weights, config), config, Parallelism())
    base = velocities(plain, CASE)
    for name in layer_names(config) if kind == "layers" else vector_names(config):
        everything = made(weights, config, seed=3, differences=True, only=name.__eq__)
        file = write_lora(tmp_path / "one.safetensors", everything, config)
        exact = velocities(
            model_of(to_native(merged(weights, (everything, 1.0)), config), config, Parallelism()),
            CASE,
        )
        found = velocities(plain, CASE, adapters(plain, (file, 1.0)))
        assert worst(found, exact) <= 1e-5, name
        # a bias of K moves all scores of a token alike, which softmax does not see
        if not name.endswith("to_k.bias"):
            assert worst(base, exact) > 1e-4, name


def test_scale_zero_has_the_bits_of_no_lora(tmp_path: Path) -> None:
    config = CASE.config()
    weights = canonical(config)
    lora = made(weights, config, differences=True)
    file = write_lora(tmp_path / "lora.safetensors", lora, config)
    model = model_of(to_native(weights, config), config, Parallelism())
    added = adapters(model, (file, 0.0))
    assert added == NONE
    for ours, other in zip(velocities(model, CASE, added), velocities(model, CASE), strict=True):
        assert torch.equal(ours, other)


def on_a_rank(file: Path, layouts: dict[str, Layout]) -> dict[str, list[Tensor]]:
    config = CASE.config()
    native = random_state(config, 0)
    found = {}
    for name, layout in layouts.items():
        model = model_of(native, config, layout.parallelism())
        found[name] = velocities(model, CASE, adapters(model, (file, 0.8)))
    return found


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_have_the_result_of_one(tmp_path: Path, world: int) -> None:
    layouts = (
        LAYOUTS[2]
        if world == 2
        else {"tp2 x ring2, tokens sharded": Layout(Degrees(tp=2, ring=2, sequence_sharding=True))}
    )
    config = CASE.config()
    weights = canonical(config)
    lora = made(weights, config, differences=True)
    file = write_lora(tmp_path / "lora.safetensors", lora, config)
    exact = velocities(
        model_of(to_native(merged(weights, (lora, 0.8)), config), config, Parallelism()), CASE
    )
    for rank, found in enumerate(run_ranks(world, on_a_rank, file, layouts)):
        for name in layouts:
            assert worst(found[name], exact) <= 1e-5, (rank, name)


FP8_CONFIG = WanConfig(num_attention_heads=2, num_layers=2, ffn_dim=256, text_dim=128, freq_dim=64)
FP8_CASE = Case(16, 16, (3, 6, 10))


def relative(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    return max(
        float((ours.double() - other.double()).norm() / other.double().norm())
        for ours, other in zip(found, exact, strict=True)
    )


def fp8_inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(1, 16, 3, 6, 10, generator=generator),
        torch.tensor([731.0]),
        torch.randn(1, 19, 128, generator=generator),
    )


def forward(model: WanTransformer, added: Adapters = NONE) -> Tensor:
    latents, timestep, text = fp8_inputs()
    with torch.inference_mode():
        context = model.text_context(text, added)
        out: Tensor = model(latents, timestep, context, model.rotary(latents), added)
    return out


def test_beside_fp8_layers(tmp_path: Path) -> None:
    """The error against fp32 is about that of the FP8 model without a LoRA."""
    config = FP8_CONFIG
    weights = canonical(config)
    lora = made(weights, config, strength=0.5, differences=True)
    file = write_lora(tmp_path / "lora.safetensors", lora, config)
    native = to_native(weights, config)
    rounded = {
        name: tensor.to(WanTransformer.parameter_dtype(name, torch.bfloat16))
        for name, tensor in native.items()
    }
    base = quantized_transformer(config, quantize_state(rounded, config, QuantizationOptions()))
    reader_of = library(base, torch.bfloat16)
    added = reader_of.adapters([LoraChoice.of(file)], 0)
    plain_exact = forward(model_of(native, config, Parallelism()))
    exact = forward(
        model_of(to_native(merged(weights, (lora, 1.0)), config), config, Parallelism())
    )
    without = relative([forward(base)], [plain_exact])
    found = relative([forward(base, added)], [exact])
    print(
        f"fp8: error {without:.4f} without a LoRA, {found:.4f} with; effect "
        f"{relative([plain_exact], [exact]):.4f}"
    )
    assert found <= 1.5 * without
    assert relative([plain_exact], [exact]) > 10 * found


def test_a_block_with_loras_compiles_as_one_graph(tmp_path: Path) -> None:
    torch.compiler.reset()
    config = FP8_CONFIG
    weights = canonical(config)
    lora = made(weights, config, differences=True)
    file = write_lora(tmp_path / "lora.safetensors", lora, config)
    model = model_of(to_native(weights, config), config, Parallelism())
    added = adapters(model, (file, 0.5))
    block, own = model.blocks[0], added.of("blocks").of("0")
    assert isinstance(block, Block)
    latents, _, text = fp8_inputs()
    stream = torch.randn(1, 45, config.hidden_size)
    video = VideoInputs(torch.randn(1, 1, 6, config.hidden_size), model.rotary(latents), 45)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    with torch.inference_mode():
        keys = model.text_context(text, added).blocks[0]
        expected = block(stream, video, keys, own)
        torch.testing.assert_close(compiled(stream, video, keys, own), expected)


@pytest.mark.parametrize("fp8", [False, True], ids=["bf16", "fp8"])
def test_kernels_compute_the_layers_beside(
    tmp_path: Path, fp8: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """No layer goes to torch because of a LoRA, and the error is that of torch in bf16."""
    config = FP8_CONFIG
    weights = canonical(config)
    lora = made(weights, config, differences=True)
    file = write_lora(tmp_path / "lora.safetensors", lora, config)
    exact = forward(
        model_of(to_native(merged(weights, (lora, 1.0)), config), config, Parallelism())
    )
    rounded = {
        name: tensor.to(WanTransformer.parameter_dtype(name, torch.bfloat16))
        for name, tensor in to_native(weights, config).items()
    }
    if fp8:
        state = quantize_state(rounded, config, QuantizationOptions())
        model = quantized_transformer(config, state)
    else:
        model = model_of(rounded, config, Parallelism())
    added = library(model, torch.bfloat16).adapters([LoraChoice.of(file)], 0)
    by_torch = forward(model, added)
    backend.log_fallback.cache_clear()
    with caplog.at_level(logging.WARNING), use_backend(Backend.SIM, Simulation("trn3", 2)):
        by_kernels = forward(model, added)
    assert not caplog.records
    assert relative([by_kernels], [exact]) <= 1.5 * relative([by_torch], [exact])
