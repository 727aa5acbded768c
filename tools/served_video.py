"""The video that all servers of a benchmark make, and the checkpoint that they make it with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from wantrn.model.checkpoints import CheckpointFormat, export_state, save_sharded
from wantrn.model.config import WanConfig
from wantrn.model.info import ModelKind
from wantrn.model.tiny import random_state, write_tiny_checkpoint

CONFIG = WanConfig(
    num_attention_heads=4,
    in_channels=16,
    out_channels=16,
    text_dim=64,
    ffn_dim=1408,
    num_layers=4,
)
EXPERTS = ("transformer", "transformer_2")


@dataclass(frozen=True)
class Asked:
    """The video that all make."""

    size: str = "128x128"
    frames: int = 9
    steps: int = 40
    prompt: str = "a red ball rolls to the right"
    negative_prompt: str = "blurred"
    guidance: float = 4.0  # of both experts: the servers differ in which of two is which
    shift: float = 3.0
    fps: int = 16
    seed: int = 1

    def form(self) -> dict[str, object]:
        """As the fields of a request that all servers know."""
        return {
            "prompt": self.prompt,
            "negative_prompt": self.negative_prompt,
            "size": self.size,
            "num_frames": self.frames,
            "fps": self.fps,
            "num_inference_steps": self.steps,
            "guidance_scale": self.guidance,
            "guidance_scale_2": self.guidance,
            "flow_shift": self.shift,
            "seed": self.seed,
        }

    def arguments(self) -> list[str]:
        """As the arguments of `wantrn generate`."""
        options = {
            "negative-prompt": self.negative_prompt,
            "size": self.size,
            "frames": self.frames,
            "fps": self.fps,
            "steps": self.steps,
            "guidance": self.guidance,
            "guidance-2": self.guidance,
            "shift": self.shift,
            "seed": self.seed,
        }
        given = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        return [self.prompt, *given]


def write_checkpoint(folder: Path) -> None:
    """A tiny checkpoint, but with transformers of ``CONFIG``."""
    write_tiny_checkpoint(folder, ModelKind.T2V)
    for seed, name in enumerate(EXPERTS):
        for path in (folder / name).iterdir():
            path.unlink()
        state = export_state(random_state(CONFIG, seed), CONFIG, CheckpointFormat.DIFFUSERS)
        save_sharded(state, folder / name)
        (folder / name / "config.json").write_text(json.dumps(CONFIG.to_diffusers()))
