"""The text encoder and the autoencoder against transformers and diffusers as they come."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from diffusers import AutoencoderKLWan
from transformers import AutoTokenizer, UMT5EncoderModel

from wantrn.model.errors import CheckpointError
from wantrn.model.info import ModelKind
from wantrn.model.text import MAX_TOKENS, TextEncoder, clean_prompt
from wantrn.model.vae import VideoAutoencoder


@pytest.fixture(scope="module")
def folder(checkpoints: dict[ModelKind, Path]) -> Path:
    return checkpoints[ModelKind.T2V]


@pytest.fixture(scope="module")
def text_encoder(folder: Path) -> TextEncoder:
    return TextEncoder.load(folder / "tokenizer", folder / "text_encoder", torch.float32)


@pytest.mark.parametrize("prompt", ["", "a red ball", "ein roter Ball — 赤いボール 🎈" * 4])
def test_encoding_is_that_of_the_padded_prompt(
    folder: Path, text_encoder: TextEncoder, prompt: str
) -> None:
    """Padded to 512 tokens and masked, as upstream does it; padding is zero in the result."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    encoder = UMT5EncoderModel.from_pretrained(folder / "text_encoder").eval()
    inputs = tokenizer(
        prompt, padding="max_length", max_length=512, truncation=True, return_tensors="pt"
    )
    with torch.inference_mode():
        hidden = encoder(inputs.input_ids, inputs.attention_mask).last_hidden_state
    expected = hidden * inputs.attention_mask.unsqueeze(-1)
    ours = text_encoder.encode(prompt)
    assert ours.shape == (1, 512, 64)
    assert torch.allclose(ours, expected, atol=1e-5)
    assert ours[0, int(inputs.attention_mask.sum()) :].abs().max() == 0


def test_a_long_prompt_is_cut_with_a_warning(
    folder: Path, text_encoder: TextEncoder, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        ours = text_encoder.encode("x" * 600)
    assert "601 tokens" in caplog.text
    same = text_encoder.encode("x" * (MAX_TOKENS - 1))
    assert torch.equal(ours, same)


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("  a \n\t cat ", "a cat"),
        ("salt &amp;amp; pepper", "salt & pepper"),
        ("cafÃ©", "café"),
    ],
)
def test_prompts_are_cleaned(raw: str, clean: str) -> None:
    assert clean_prompt(raw) == clean


def test_a_missing_tokenizer_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no tokenizer"):
        TextEncoder.load(tmp_path, folder / "text_encoder", torch.float32)


@pytest.mark.parametrize("kind", [ModelKind.T2V, ModelKind.TI2V])
def test_autoencoder_is_diffusers_with_normalised_latents(
    checkpoints: dict[ModelKind, Path], kind: ModelKind
) -> None:
    reference = AutoencoderKLWan.from_pretrained(checkpoints[kind] / "vae").eval()
    ours = VideoAutoencoder.load(checkpoints[kind] / "vae")
    channels = (1, -1, 1, 1, 1)
    mean = torch.tensor(reference.config.latents_mean).view(channels)
    std = torch.tensor(reference.config.latents_std).view(channels)
    video = torch.rand(1, 3, 5, 64, 64) * 2 - 1
    with torch.inference_mode():
        raw = reference.encode(video).latent_dist.mode()
        decoded = reference.decode(raw).sample
    latents = ours.encode(video)
    assert torch.allclose(latents * std + mean, raw, atol=1e-5)
    frames = ours.decode(latents)
    assert frames.shape == (5, 64, 64, 3)
    assert frames.is_contiguous()
    assert 0 <= float(frames.min()) <= float(frames.max()) <= 1
    expected = (decoded[0].permute(1, 2, 3, 0) / 2 + 0.5).clamp(0, 1)
    assert torch.allclose(frames, expected, atol=1e-5)
