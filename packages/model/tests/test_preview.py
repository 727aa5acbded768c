"""Pictures of latents that no autoencoder has decoded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from wantrn.model.info import ModelKind
from wantrn.model.pipeline import WanPipeline
from wantrn.model.preview import LatentPreview
from wantrn.model.settings import VideoRequest, resolve
from wantrn.model.tiny import write_tiny_checkpoint


@dataclass
class Linear:
    """An autoencoder whose latents are a known mixture of each block's mean colour."""

    stride: int
    mixture: Tensor  # [z, 3]
    offset: Tensor  # [z]

    def encode(self, video: Tensor) -> Tensor:
        mean = functional.avg_pool2d(video[:, :, 0], self.stride)
        mixed = torch.einsum("zc,bchw->bzhw", self.mixture, mean)
        return (mixed + self.offset[:, None, None])[:, :, None]


def test_colours_that_are_linear_in_the_latents_are_found() -> None:
    generator = torch.Generator().manual_seed(3)
    encoder = Linear(8, torch.randn((16, 3), generator=generator), torch.randn(16))
    preview = LatentPreview.fit(encoder, 8)
    picture = torch.rand((1, 3, 1, 48, 80), generator=generator) * 2 - 1
    latents = encoder.encode(picture).repeat(1, 1, 3, 1, 1)
    blocks = functional.avg_pool2d(picture[:, :, 0], 8)[0].permute(1, 2, 0)
    wanted = (blocks + 1) * 127.5
    drawn = preview.picture(latents)
    assert drawn.dtype == torch.uint8 and drawn.shape == (6, 10, 3)
    assert (drawn - wanted).abs().max() < 4


def test_the_middle_frame_is_drawn_and_what_is_too_bright_is_cut() -> None:
    preview = LatentPreview(torch.tensor([[1.0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 2, -2]]))
    latents = torch.zeros((1, 3, 5, 1, 1))
    latents[0, 0, 2] = 0.5
    assert preview.picture(latents).tolist() == [[[191, 255, 0]]]


def test_a_run_says_what_it_is_coming_to(tmp_path: Path) -> None:
    pipeline = WanPipeline.load(write_tiny_checkpoint(tmp_path, ModelKind.TI2V), torch.float32)
    preview = pipeline.fit_preview()
    assert torch.equal(preview.colour, pipeline.fit_preview().colour)
    settings = resolve(VideoRequest("a", size=(64, 64), frames=5, steps=3, seed=1), pipeline.info)
    run = pipeline.prepare(settings)
    assert run.estimate is None
    distances: list[float] = []
    while not run.done:
        pipeline.step(run)
        assert run.estimate is not None
        distances.append(float((run.estimate - run.latents).abs().max()))
        assert preview.picture(run.estimate).shape == (*run.latents.shape[-2:], 3)
    taken_up = pipeline.prepare(settings)
    with pytest.raises(ValueError, match=r"latents must be \[1, 48, 2, 4, 4\]"):
        pipeline.take_up(taken_up, run.latents[:, 1:])
    pipeline.take_up(taken_up, run.latents)
    assert taken_up.done and torch.equal(pipeline.decode(taken_up), pipeline.decode(run))
    # the last step goes all the way to what its velocity points at
    assert distances[-1] < 1e-3 < distances[0]
