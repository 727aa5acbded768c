"""The transformer with FP8 layers: errors against fp32, by torch and by kernels, and loading."""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import canonical_tensors, write_file
from test_transformer import forward
from torch import Tensor, nn

from wantrn.kernels import backend, ops
from wantrn.kernels.backend import Backend, Simulation, use_backend
from wantrn.kernels.row_mx import ChannelWeight
from wantrn.model.checkpoints.native import to_native
from wantrn.model.config import WanConfig
from wantrn.model.info import ModelKind
from wantrn.model.linears import RowMXLinear
from wantrn.model.quantization import (
    Group,
    QuantizationOptions,
    QuantizedState,
    quantize_state,
    quantized_layers,
)
from wantrn.model.quantization.run import QuantizationJob
from wantrn.model.quantized_transformer import load_quantized_transformer, quantized_transformer
from wantrn.model.tiny import random_state, tiny_config
from wantrn.model.transformer import Block, VideoInputs, WanTransformer

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
CONFIGS = {
    "tiny": tiny_config(ModelKind.T2V),
    # all widths are multiples of 128, as the matmul kernels ask
    "hidden 256": WanConfig(
        num_attention_heads=2, num_layers=2, ffn_dim=256, text_dim=128, freq_dim=64
    ),
}
ALL = frozenset(Group)
CHOICES = {**{group.value: frozenset({group}) for group in Group}, "all groups": ALL}
SIMULATION = Simulation("trn3", 2)


def bf16_state(config: WanConfig) -> dict[str, Tensor]:
    return {
        name: tensor.to(WanTransformer.parameter_dtype(name, BF16))
        for name, tensor in random_state(config, 0).items()
    }


def plain(config: WanConfig, state: Mapping[str, Tensor]) -> WanTransformer:
    model = WanTransformer(config).eval().requires_grad_(False)
    model.load_state_dict(state, assign=True)
    return model


def in_fp8(config: WanConfig, groups: frozenset[Group] = ALL) -> WanTransformer:
    state = quantize_state(bf16_state(config), config, QuantizationOptions(groups))
    return quantized_transformer(config, state)


def inputs(config: WanConfig, batch: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(batch, config.in_channels, 3, 6, 10, generator=generator),
        torch.tensor([731.0, 12.0])[:batch],
        torch.randn(batch, 19, config.text_dim, generator=generator),
    )


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact.double()).norm() / exact.double().norm())


def fallbacks(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What went to torch, but for the text's own embedding, whose width tiny has made small."""
    messages = [record.getMessage() for record in caplog.records]
    return [message for message in messages if not message.startswith("mlp: computed by torch")]


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("name", CONFIGS)
def test_errors_against_fp32(
    name: str,
    choice: str,
    caplog: pytest.LogCaptureFixture,
    record_property: Callable[[str, object], None],
) -> None:
    config = CONFIGS[name]
    given = inputs(config)
    exact = forward(plain(config, random_state(config, 0)), *given)
    rounded = error(forward(plain(config, bf16_state(config)), *given), exact)
    model = in_fp8(config, CHOICES[choice])
    by_torch = forward(model, *given)
    backend.log_fallback.cache_clear()
    with caplog.at_level(logging.WARNING), use_backend(Backend.SIM, SIMULATION):
        by_kernels = forward(model, *given)
    assert not fallbacks(caplog)
    if name == "hidden 256":
        assert not caplog.records
    found = {
        "bf16": rounded,
        "torch": error(by_torch, exact),
        "kernels": error(by_kernels, exact),
        "between": error(by_kernels, by_torch),
    }
    print(f"{name}, {choice}: " + ", ".join(f"{k} {v:.4f}" for k, v in found.items()))
    for key, value in found.items():
        record_property(key, value)
    # an operand in FP8 is 2.7 percent off; the residual stream carries most of the result
    assert rounded < found["torch"] <= 0.04
    assert found["kernels"] <= 1.1 * found["torch"]
    # a stream that rounds another way moves codes that lay between two: some of the same error
    assert found["between"] <= 0.75 * found["torch"]


OPERATORS = ("row_mx_qkv_proj", "row_mx_o_proj", "row_mx_mlp")


@pytest.mark.parametrize("name", CONFIGS)
def test_each_operator_as_its_kernel(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of equal inputs, all through the model: at most two roundings of bf16 of the largest."""
    config = CONFIGS[name]
    model = in_fp8(config)
    roundings: dict[str, list[float]] = {operator: [] for operator in OPERATORS}
    # beneath the kernels: by name, since this package does not depend on it
    simulator = importlib.import_module("nkisim")
    simulate, kernels = simulator.simulate, []

    def counted(kernel: Any, **options: Any) -> Any:
        kernels.append(kernel)
        return simulate(kernel, **options)

    def replayed(operator: str) -> Callable[..., Tensor]:
        call: Callable[..., Tensor] = getattr(ops, operator)

        def both(*args: Any, **options: Any) -> Tensor:
            out = call(*args, **options)
            with use_backend(Backend.SIM, SIMULATION):
                other = call(*args, **options)
            worst = (other.float() - out.float()).abs().max() / out.float().abs().max()
            roundings[operator].append(float(worst) * 2**8)
            return out

        return both

    monkeypatch.setattr(simulator, "simulate", counted)
    for operator in OPERATORS:
        monkeypatch.setattr(ops, operator, replayed(operator))
    backend.log_fallback.cache_clear()
    with caplog.at_level(logging.WARNING):
        forward(model, *inputs(config, batch=2))
    assert not caplog.records
    # of two blocks: fused Q|K|V, and Q, K and V of cross-attention; two outputs; one feed-forward
    assert [len(roundings[operator]) for operator in OPERATORS] == [8, 4, 2]
    assert len(kernels) == 14
    for operator, found in roundings.items():
        print(f"{name}, {operator}: {max(found):.2f} roundings")
        assert max(found) <= 2


@pytest.mark.parametrize("choice", CHOICES)
def test_the_model_shows_its_groups(choice: str) -> None:
    config, groups = CONFIGS["hidden 256"], CHOICES[choice]
    model = in_fp8(config, groups)
    assert model.quantized_groups == groups
    layers = {name for name, part in model.named_modules() if isinstance(part, RowMXLinear)}
    assert layers == set(quantized_layers(config, groups))
    for module in model.blocks[0].children():
        quantized = any(isinstance(part, RowMXLinear) for part in module.modules())
        assert getattr(module, "quantized", False) == quantized
    kept = sum(isinstance(part, nn.Linear) for part in model.modules())
    everything = sum(isinstance(p, nn.Linear) for p in WanTransformer(config).modules())
    assert kept + len(layers) == everything
    assert "in_features=256, out_features=" in repr(model)


def test_several_texts_have_the_bits_of_separate_passes() -> None:
    config = CONFIGS["hidden 256"]
    model = in_fp8(config)
    latents, timestep, text = inputs(config)
    texts = [model.text_context(text), model.text_context(text.flip(1) * 2)]
    rotary = model.rotary(latents)
    together = model.velocities(latents, timestep, texts, rotary)
    for velocity, context in zip(together, texts, strict=True):
        assert torch.equal(velocity, model(latents, timestep, context, rotary))


@pytest.mark.parametrize("choice", CHOICES)
def test_files_give_the_model_of_memory(tmp_path: Path, choice: str) -> None:
    config, options = CONFIGS["hidden 256"], QuantizationOptions(CHOICES[choice])
    source, tensors = tmp_path / "source", canonical_tensors(config)
    write_file(source / "model.safetensors", tensors)
    (source / "config.json").write_text(json.dumps(config.to_diffusers()))
    QuantizationJob.plan(source, tmp_path / "fp8", options).run(lambda done: None)
    loaded = load_quantized_transformer(tmp_path / "fp8")
    assert loaded.config == config
    assert loaded.quantized_groups == options.groups
    state = quantize_state(to_native(tensors, config), config, options)
    rounded = {
        name: tensor.to(WanTransformer.parameter_dtype(name, BF16))
        for name, tensor in state.parameters.items()
    }
    expected = quantized_transformer(config, replace(state, parameters=rounded))
    found = loaded.state_dict()
    for name, tensor in expected.state_dict().items():
        assert torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8))
    given = inputs(config)
    assert torch.equal(forward(loaded, *given), forward(expected, *given))


def test_widths_are_whole_blocks() -> None:
    base = CONFIGS["hidden 256"]
    narrow = replace(base, num_attention_heads=1, attention_head_dim=48)
    with pytest.raises(ValueError, match="hidden_size is 48; in FP8 it must be a multiple of 32"):
        in_fp8(narrow, frozenset({Group.CROSS_ATTENTION}))
    with pytest.raises(ValueError, match="ffn_dim is 264; in FP8 it must be a multiple of 32"):
        in_fp8(replace(base, ffn_dim=264), frozenset({Group.FEED_FORWARD}))
    # what is not contracted in blocks may have any width that packed rows can have
    assert torch.isfinite(
        forward(in_fp8(narrow, frozenset({Group.FEED_FORWARD})), *inputs(narrow))
    ).all()


def without(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


QKV, BIAS = "blocks.0.self_attention.qkv", "blocks.1.feed_forward.up.bias"
FAULTS: dict[str, tuple[Callable[[QuantizedState], QuantizedState], str]] = {
    "layer missing": (
        lambda s: replace(s, layers=without(s.layers, QKV)),
        f"state.layers: {QKV} is missing",
    ),
    "layer unknown": (
        lambda s: replace(s, layers={**s.layers, "blocks.7.feed_forward.up": s.layers[QKV]}),
        "state.layers: blocks.7.feed_forward.up is no layer of this model",
    ),
    "layer misshaped": (
        lambda s: replace(s, layers={**s.layers, QKV: ChannelWeight.of(torch.ones(8, 8))}),
        rf"state: {QKV}.codes must be \[64, 768, 4\] torch.float8_e4m3fn, got \[2, 8, 4\]",
    ),
    "parameter missing": (
        lambda s: replace(s, parameters=without(s.parameters, BIAS)),
        f"state: {BIAS} is missing",
    ),
    "parameter unexpected": (
        lambda s: replace(s, parameters={**s.parameters, f"{QKV}.weight": torch.ones(1)}),
        f"state: {QKV}.weight is unexpected",
    ),
    "parameter misshaped": (
        lambda s: replace(s, parameters={**s.parameters, BIAS: torch.ones(3, dtype=BF16)}),
        rf"state: {BIAS} must be \[256\] torch.bfloat16, got \[3\] torch.bfloat16",
    ),
    "fp32 parameter": (
        lambda s: replace(s, parameters={**s.parameters, BIAS: torch.ones(256)}),
        rf"state: {BIAS} must be \[256\] torch.bfloat16, got \[256\] torch.float32",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_does_not_fit_is_named(fault: str) -> None:
    config = CONFIGS["hidden 256"]
    state = quantize_state(bf16_state(config), config, QuantizationOptions())
    change, message = FAULTS[fault]
    with pytest.raises(ValueError, match=message):
        quantized_transformer(config, change(state))


def test_parameters_are_those_of_the_state() -> None:
    config = CONFIGS["hidden 256"]
    state = quantize_state(bf16_state(config), config, QuantizationOptions())
    found = quantized_transformer(config, state).state_dict()
    tensors = dict(state.parameters)
    for layer, weight in state.layers.items():
        tensors |= {f"{layer}.codes": weight.codes, f"{layer}.scales": weight.scales}
    assert found.keys() == tensors.keys()
    assert all(found[name].data_ptr() == tensor.data_ptr() for name, tensor in tensors.items())


@pytest.mark.parametrize("choice", CHOICES)
def test_block_compiles_as_one_graph(choice: str) -> None:
    torch.compiler.reset()
    config = CONFIGS["hidden 256"]
    model = in_fp8(config, CHOICES[choice])
    block = model.blocks[0]
    assert isinstance(block, Block)
    latents, _, text = inputs(config)
    keys = model.text_context(text).blocks[0]
    stream = torch.randn(1, 45, config.hidden_size).bfloat16()
    rows = torch.randn(1, 1, 6, config.hidden_size)
    video = VideoInputs(rows, model.rotary(latents), 45)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    with torch.inference_mode():
        expected = block(stream, video, keys)
        actual = compiled(stream, video, keys)
    assert torch.equal(actual, expected)
