"""What the checkpoint of the wheel ``wantrn-tiny`` can do, and that it takes the training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from train_tiny.denoiser import make_transformer
from train_tiny.evaluate import (
    CAPTIONS,
    FIRST_FRAMES,
    autoencoder_psnr,
    image_to_video,
    text_to_video,
)
from train_tiny.export import export_transformer
from train_tiny.losses import RECORD, TOLERANCE
from train_tiny.recipe import Recipe
from train_tiny.training import THREADS
from wantrn.model.info import read_model_info
from wantrn.model.pipeline import WanPipeline
from wantrn.model.vae import VideoAutoencoder
from wantrn.tiny import CHECKPOINT


def load(folder: Path) -> WanPipeline:
    return WanPipeline.load(folder, read_model_info(folder).defaults.dtype)


def test_it_draws_what_captions_say_that_it_was_not_trained_on() -> None:
    videos = list(text_to_video(load(CHECKPOINT)))
    assert len({video.caption for video in videos}) == CAPTIONS == 40
    wrong = [f"{video.caption}: {video.seen}" for video in videos if not video.right]
    assert len(wrong) <= 6, wrong


def test_random_weights_do_not(tmp_path: Path) -> None:
    """Transformers that were not trained, beside the trained text encoder and autoencoder."""
    shutil.copytree(CHECKPOINT, tmp_path / "random")
    for name in ("transformer", "transformer_2"):
        shutil.rmtree(tmp_path / "random" / name)
        export_transformer(make_transformer(), tmp_path / "random" / name)
    assert sum(video.right for video in text_to_video(load(tmp_path / "random"), steps=4)) <= 10


def test_it_moves_a_first_frame() -> None:
    videos = list(image_to_video(load(CHECKPOINT)))
    assert len(videos) == FIRST_FRAMES == 10
    assert min(video.first_frame_psnr for video in videos) >= 25
    wrong = [f"{video.caption}: {video.seen}" for video in videos if not video.right]
    assert len(wrong) <= 2, wrong


def test_its_autoencoder_keeps_what_it_is_given() -> None:
    """On the mean; of small shapes that bounce it loses more."""
    found = autoencoder_psnr(VideoAutoencoder.load(CHECKPOINT / "vae"))
    assert sum(found) / len(found) >= 27 and min(found) >= 20


def test_it_is_small() -> None:
    files = [file for file in CHECKPOINT.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 25e6


def test_the_first_losses_are_the_recorded_ones(tmp_path: Path) -> None:
    """A few steps of the 200 that ``losses --check`` compares."""
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        losses = Recipe(tmp_path).run("frames", 5)
    finally:
        torch.set_num_threads(threads)
    assert losses == pytest.approx(json.loads(RECORD.read_text())["frames"][:5], abs=TOLERANCE)
