"""The training: the same each time, also after an interrupt; and what it says it computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from train_tiny.captions import all_words, caption
from train_tiny.denoiser import HIGH, LOW, PaddedCrossAttention, make_transformer
from train_tiny.text import ROWS, PromptEncoder, make_tokenizer
from train_tiny.training import Schedule, train


class Line:
    """A stage that fits a line, quickly."""

    name = "line"
    schedule = Schedule(steps=12, peak=0.05, warm_up=3)

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.module: nn.Module = nn.Linear(3, 1)

    def loss(self, generator: torch.Generator) -> Tensor:
        x = torch.randn((16, 3), generator=generator)
        found: Tensor = self.module(x)
        return (found[:, 0] - x @ torch.tensor([1.0, -2.0, 0.5])).square().mean()


def weights(stage: Line) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in stage.module.parameters()]


@pytest.mark.parametrize("stops", [(5,), (1, 2, 11), (12,)])
def test_an_interrupted_stage_comes_to_the_same(tmp_path: Path, stops: tuple[int, ...]) -> None:
    whole, parts = Line(), Line()
    losses = train(whole, tmp_path / "whole")
    for stop in stops:
        parts = Line()
        assert train(parts, tmp_path / "parts", stop) == losses[:stop]
    last = Line()
    assert train(last, tmp_path / "parts") == losses
    for a, b in zip(weights(whole), weights(last), strict=True):
        assert torch.equal(a, b)


def test_the_result_is_the_average_of_the_weights(tmp_path: Path) -> None:
    """Those of all steps, by a weight that falls by a constant factor a step."""
    passed = []
    for steps in range(1, 13):
        train(Line(), tmp_path / str(steps), steps)
        saved = torch.load(tmp_path / str(steps) / "line.pt", weights_only=True)
        passed.append(saved["module"]["weight"])
    average = passed[0]
    for weight in passed[1:]:
        average = 0.995 * average + 0.005 * weight
    stage = Line()
    train(stage, tmp_path / "12")
    torch.testing.assert_close(stage.module.weight, average, rtol=1e-5, atol=1e-7)


def test_the_rate_rises_and_falls() -> None:
    schedule = Schedule(steps=1000, peak=1.0, warm_up=100)
    rates = [schedule.rate(step) for step in range(1000)]
    assert rates[:100] == sorted(rates[:100]) and rates[100:] == sorted(rates[100:], reverse=True)
    assert max(rates) == rates[99] == 1.0 and rates[-1] == pytest.approx(0.02, abs=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_few_rows_of_text_are_read_as_512(seed: int) -> None:
    """Against diffusers' own attention, on the text padded to 512 rows."""
    ours, theirs = make_transformer(), make_transformer()
    for block in theirs.blocks:
        block.attn2.set_processor(type(block.attn1.processor)())
    generator = torch.Generator().manual_seed(seed)
    latents = torch.randn((1, 8, 2, 4, 4), generator=generator)
    text = torch.randn((1, ROWS, 128), generator=generator)
    text[:, 9 + seed :] = 0
    padded = torch.cat([text, torch.zeros(1, 512 - ROWS, 128)], dim=1)
    t = torch.tensor([500.0])
    with torch.no_grad():
        found = ours(latents, t, text, return_dict=False)[0]
        wanted = theirs(latents, t, padded, return_dict=False)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert isinstance(ours.blocks[0].attn2.processor, PaddedCrossAttention)


def test_every_caption_fits_and_is_read_back() -> None:
    tokenizer = make_tokenizer()
    generator = torch.Generator().manual_seed(0)
    said = [caption(words, generator) for words in all_words()]
    for each, ids in zip(said, tokenizer(said)["input_ids"], strict=True):
        assert len(ids) < ROWS
        assert tokenizer.decode(ids, skip_special_tokens=True).strip() == each
    with pytest.raises(ValueError, match="has 24 tokens or more"):
        PromptEncoder(tokenizer)(["a very long caption " * 20])


def test_the_experts_share_the_levels_at_the_boundary() -> None:
    generator = torch.Generator().manual_seed(0)
    high, low = HIGH.draw(10_000, generator), LOW.draw(10_000, generator)
    assert 0.875 <= high.min() < 0.876 and high.max() > 0.999
    assert low.min() < 0.001 and 0.874 < low.max() <= 0.875
