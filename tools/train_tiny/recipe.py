"""The stages in their order, and what each takes from those before."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel

from train_tiny.autoencoder import (
    SINGLE,
    WINDOWS,
    VaeStage,
    draw_clips,
    latent_scale,
    make_vae,
)
from train_tiny.captions import training_words
from train_tiny.denoiser import ALL, HIGH, LOW, DenoiserStage, TextToVideo, make_transformer
from train_tiny.latents import LatentClips, encode_clips
from train_tiny.text import PromptEncoder, make_tokenizer
from train_tiny.training import Schedule, Stage, step_generator, train

TRAINED = ("frames", "vae", "base", "high", "low")
STAGES = ("frames", "vae", "latents", "base", "high", "low")
"""Each needs all before it, but for the last two, which need not each other."""

_CLIPS = 16_000
_SCALED_BY = 64  # clips that the latents' scale is taken from

_FRAMES = Schedule(steps=1000, peak=1.5e-3)
_WINDOWS = Schedule(steps=1800, peak=8e-4, warm_up=100)
_BASE = Schedule(steps=7500, peak=8e-4)
_EXPERT = Schedule(steps=3000, peak=3e-4)


@dataclass(frozen=True, eq=False)
class TinyWan:
    """All that the recipe makes."""

    vae: AutoencoderKLWan
    text: PromptEncoder
    high: WanTransformer3DModel
    low: WanTransformer3DModel


class Recipe:
    """Everything is kept in ``folder``; what is finished there is taken from it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, name: str, steps: int | None = None) -> list[float]:
        """One stage, to its end or to ``steps`` in all, from where it was left; its losses.

        Raises ``ValueError`` if a stage that it needs is not finished.
        """
        if name == "latents":
            self._clips(self._vae())
            return []
        return train(self._stage(name), self._folder, steps)

    def rehearse(self, name: str, steps: int, scratch: Path) -> list[float]:
        """The losses of a stage's first steps, made anew in ``scratch``, an empty folder."""
        return train(self._stage(name), scratch, steps)

    def _stage(self, name: str) -> Stage:
        if name == "frames":
            return self._frames()
        if name == "vae":
            return self._windows()
        clips = self._clips(self._vae())
        return self._base(clips) if name == "base" else self._expert(name, clips)

    def result(self) -> TinyWan:
        """Raises ``ValueError`` if a stage is not finished."""
        vae = self._vae()
        nothing = LatentClips(torch.empty(0), [])
        base = self._base(nothing)
        self._finish(base)
        experts = [self._expert(name, nothing) for name in ("high", "low")]
        for expert in experts:
            self._finish(expert)
        high, low = (cast(WanTransformer3DModel, expert.module) for expert in experts)
        return TinyWan(vae, cast(TextToVideo, base.module).text, high, low)

    def _frames(self) -> VaeStage:
        return VaeStage("frames", _FRAMES, SINGLE, make_vae())

    def _windows(self) -> VaeStage:
        """Begins with what ``frames`` has come to."""
        frames = self._frames()
        self._finish(frames)
        frames.module.requires_grad_(True)
        return VaeStage("vae", _WINDOWS, WINDOWS, cast(AutoencoderKLWan, frames.module))

    def _vae(self) -> AutoencoderKLWan:
        """As trained, with the scale of its latents in its configuration."""
        stage = self._windows()
        self._finish(stage)
        vae = cast(AutoencoderKLWan, stage.module)
        clips = draw_clips(training_words(), _SCALED_BY, step_generator("scale", 0))
        mean, std = latent_scale(vae, clips)
        vae.register_to_config(latents_mean=mean, latents_std=std)
        return vae

    def _clips(self, vae: AutoencoderKLWan) -> LatentClips:
        return encode_clips(vae, _CLIPS, self._folder)

    def _base(self, clips: LatentClips) -> DenoiserStage:
        transformer = make_transformer()
        text = PromptEncoder(make_tokenizer())
        return DenoiserStage("base", _BASE, ALL, clips, text, transformer, train_text=True)

    def _expert(self, name: str, clips: LatentClips) -> DenoiserStage:
        """Begins as a copy of what ``base`` has come to."""
        base = self._base(clips)
        self._finish(base)
        module = cast(TextToVideo, base.module)
        transformer = copy.deepcopy(module.transformer).requires_grad_(True)
        levels = HIGH if name == "high" else LOW
        return DenoiserStage(
            name, _EXPERT, levels, clips, module.text, transformer, train_text=False
        )

    def _finish(self, stage: Stage) -> None:
        """Load a stage's result."""
        file = self._folder / f"{stage.name}.pt"
        saved = torch.load(file, weights_only=True) if file.exists() else {"losses": []}
        done, steps = len(saved["losses"]), stage.schedule.steps
        if done < steps:
            raise ValueError(f"the stage {stage.name} has made {done} of its {steps} steps")
        train(stage, self._folder)
