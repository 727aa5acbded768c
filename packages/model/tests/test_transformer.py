"""The transformer against diffusers' of the same weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from diffusers import WanTransformer3DModel
from torch import Tensor

from wantrn.model.checkpoints.native import native_shapes, to_native
from wantrn.model.config import WanConfig
from wantrn.model.transformer import WanTransformer

BASE = WanConfig(num_attention_heads=2, num_layers=2, ffn_dim=192, text_dim=32, freq_dim=64)
CONFIGS = {
    "T2V": BASE,
    "I2V": replace(BASE, in_channels=36),
    "TI2V": replace(BASE, in_channels=48, out_channels=48),
}


def pair(config: WanConfig, seed: int = 0) -> tuple[WanTransformer3DModel, WanTransformer]:
    """diffusers' model with random weights (norms and biases too), and ours with the same."""
    torch.manual_seed(seed)
    options = {k: v for k, v in config.to_diffusers().items() if not k.startswith("_")}
    theirs = WanTransformer3DModel(**options).eval().requires_grad_(False)
    for name, parameter in theirs.named_parameters():
        if parameter.ndim == 1:
            centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            torch.nn.init.normal_(parameter, centre, 0.3)
    ours = WanTransformer(config).eval().requires_grad_(False)
    ours.load_state_dict(to_native(theirs.state_dict(), config))
    return theirs, ours


def forward(model: WanTransformer, latents: Tensor, timestep: Tensor, text: Tensor) -> Tensor:
    out: Tensor = model(latents, timestep, model.text_context(text), model.rotary(latents))
    return out


def relative_error(actual: Tensor, expected: Tensor) -> float:
    assert actual.shape == expected.shape
    return float((actual.double() - expected.double()).abs().max() / expected.abs().max())


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    "latents",
    [(1, 2, 2), (3, 2, 6), (3, 6, 10), (4, 4, 6), (2, 8, 2)],
    ids=["1 token", "9 tokens", "45 tokens", "24 tokens", "8 tokens"],
)
@pytest.mark.parametrize("kind", CONFIGS)
def test_agrees_with_diffusers(
    kind: str,
    latents: tuple[int, int, int],
    batch: int,
    record_property: Callable[[str, object], None],
) -> None:
    config = CONFIGS[kind]
    theirs, ours = pair(config)
    x = torch.randn(batch, config.in_channels, *latents)
    text = torch.randn(batch, 19, config.text_dim)
    timestep = torch.tensor([731.0, 12.0])[:batch]
    expected = theirs(x, timestep, text, return_dict=False)[0]
    error = relative_error(forward(ours, x, timestep, text), expected)
    record_property("relative_error", error)
    assert error <= 1e-5


@pytest.mark.parametrize("batch", [1, 2])
def test_timesteps_of_tokens_and_frames_agree_with_diffusers(batch: int) -> None:
    config = CONFIGS["TI2V"]
    theirs, ours = pair(config)
    x = torch.randn(batch, 48, 3, 6, 10)
    text = torch.randn(batch, 19, config.text_dim)
    frames = torch.tensor([[0.0, 731.0, 731.0], [0.0, 44.0, 45.0]])[:batch]
    tokens = frames.repeat_interleave(15, dim=1)
    expected = theirs(x, tokens, text, return_dict=False)[0]
    assert relative_error(forward(ours, x, tokens, text), expected) <= 1e-5
    assert relative_error(forward(ours, x, frames, text), expected) <= 1e-5


def test_other_patches_agree_with_diffusers() -> None:
    config = replace(BASE, patch_size=(2, 1, 3), num_attention_heads=1, attention_head_dim=20)
    theirs, ours = pair(config)
    x, text = torch.randn(1, 16, 4, 3, 6), torch.randn(1, 5, config.text_dim)
    timestep = torch.tensor([500.0])
    expected = theirs(x, timestep, text, return_dict=False)[0]
    assert relative_error(forward(ours, x, timestep, text), expected) <= 1e-5


def test_bf16_is_no_worse_than_diffusers() -> None:
    """Errors of both in bf16 against fp32, over several weights and inputs."""
    ours_error, theirs_error = [], []
    for seed in range(5):
        theirs, ours = pair(BASE, seed)
        x, text = torch.randn(1, 16, 3, 6, 10), torch.randn(1, 19, BASE.text_dim)
        timestep = torch.tensor([900.0 - 200 * seed])
        exact = forward(ours, x, timestep, text)
        state = ours.state_dict()
        half = WanTransformer(BASE).eval().requires_grad_(False)
        half.load_state_dict(
            {k: v.to(half.parameter_dtype(k, torch.bfloat16)) for k, v in state.items()},
            assign=True,
        )
        theirs_half = theirs.to(torch.bfloat16)
        for name, module in theirs_half.named_modules():
            if name.rsplit(".", 1)[-1] in ("time_embedder", "norm1", "norm2", "norm3"):
                module.float()
        out = forward(half, x, timestep, text)
        assert out.dtype == torch.float32
        reference = theirs_half(x.bfloat16(), timestep, text.bfloat16(), return_dict=False)[0]
        ours_error.append(relative_error(out, exact))
        theirs_error.append(relative_error(reference.float(), exact))
    assert sum(ours_error) <= sum(theirs_error)


def test_parameters_are_those_of_the_native_layout() -> None:
    for config in CONFIGS.values():
        with torch.device("meta"):
            model = WanTransformer(config)
        shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
        assert shapes == native_shapes(config)


def test_what_stays_fp32() -> None:
    with torch.device("meta"):
        names = list(WanTransformer(BASE).state_dict())
    kept = {n for n in names if WanTransformer.parameter_dtype(n, torch.bfloat16) == torch.float32}
    block = {
        "modulation",
        "self_attention.q_norm.weight",
        "self_attention.k_norm.weight",
        "cross_norm.weight",
        "cross_norm.bias",
        "cross_attention.q_norm.weight",
        "cross_attention.k_norm.weight",
    }
    assert kept == {
        "modulation",
        *(f"blocks.{i}.{name}" for i in range(2) for name in block),
        *(
            f"time_embedding.{layer}.{p}"
            for layer in ("linear_1", "linear_2", "proj")
            for p in ("weight", "bias")
        ),
    }


@pytest.mark.parametrize("kind", CONFIGS)
def test_several_texts_give_the_bits_of_separate_passes(kind: str) -> None:
    config = CONFIGS[kind]
    _, ours = pair(config)
    x = torch.randn(1, config.in_channels, 3, 4, 6)
    t = torch.tensor([[0.0, 700.0, 701.0]])
    texts = [ours.text_context(torch.randn(1, 7, config.text_dim)) for _ in range(3)]
    rotary = ours.rotary(x)
    together = ours.velocities(x, t, texts, rotary)
    assert len(together) == 3
    for text, velocity in zip(texts, together, strict=True):
        assert torch.equal(velocity, ours(x, t, text, rotary))
    assert not torch.equal(together[0], together[1])


def test_padding_rows_of_the_text_are_seen() -> None:
    """Wan's cross-attention has no mask: zero rows take their share of the weights."""
    _, ours = pair(BASE)
    x, text = torch.randn(1, 16, 1, 4, 4), torch.randn(1, 8, BASE.text_dim)
    padded = torch.cat([text, torch.zeros_like(text)], dim=1)
    t = torch.tensor([10.0])
    assert not torch.allclose(forward(ours, x, t, text), forward(ours, x, t, padded), atol=1e-3)


@pytest.mark.parametrize(
    ("latents", "timestep", "message"),
    [
        ((1, 16, 4, 4), (1,), "latents must be"),
        ((1, 15, 1, 4, 4), (1,), "latents must be"),
        ((1, 16, 1, 5, 4), (1,), "multiples of the patch"),
        ((1, 16, 1, 4, 4), (2,), "timestep must be"),
        ((1, 16, 1, 4, 4), (1, 1, 1), "timestep must be"),
        ((1, 16, 1, 4, 4), (1, 3), "G a divisor of 4"),
    ],
)
def test_misfits_are_named(
    latents: tuple[int, ...], timestep: tuple[int, ...], message: str
) -> None:
    _, ours = pair(BASE)
    text = ours.text_context(torch.zeros(1, 3, BASE.text_dim))
    rotary = ours.rotary(torch.zeros(1, 16, 1, 4, 4))
    with pytest.raises(ValueError, match=message):
        ours(torch.zeros(latents), torch.zeros(timestep), text, rotary)


def test_misfit_text_is_named() -> None:
    _, ours = pair(BASE)
    with pytest.raises(ValueError, match="text must be"):
        ours.text_context(torch.zeros(1, 3, BASE.text_dim + 1))
    _, deeper = pair(replace(BASE, num_layers=3))
    x = torch.zeros(1, 16, 1, 4, 4)
    text = deeper.text_context(torch.zeros(1, 3, BASE.text_dim))
    with pytest.raises(ValueError, match="text is of 3 blocks"):
        ours(x, torch.zeros(1), text, ours.rotary(x))
