"""The checkpoint, in diffusers' layout."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import WanTransformer3DModel

from train_tiny.denoiser import BOUNDARY, SHIFT
from train_tiny.recipe import TinyWan
from train_tiny.world import FRAMES, SIDE
from wantrn.model.checkpoints import save_sharded
from wantrn.model.info import DEFAULTS_FILE
from wantrn.model.json_file import write_json
from wantrn.model.text import TIED_PARAMETERS
from wantrn.model.tiny import SCHEDULER

# As released checkpoints have it: these parts of the transformers are fp32, and so is the
# autoencoder; the rest is bf16.
_FP32 = ("time_embedder", "scale_shift_table", "norm")

_DEFAULTS = {
    "size": [SIDE, SIDE],
    "frames": FRAMES,
    "fps": 8,
    "steps": 20,
    "guidance": 3.0,
    "guidance_2": 3.0,
    "dtype": "float32",
}

# A first frame is given as TI2V-5B has it, by its clean latents at timestep 0.
_INDEX = {
    "_class_name": "WanPipeline",
    "boundary_ratio": BOUNDARY,
    "expand_timesteps": True,
    "scheduler": ["diffusers", "UniPCMultistepScheduler"],
    "text_encoder": ["transformers", "UMT5EncoderModel"],
    "tokenizer": ["transformers", "PreTrainedTokenizerFast"],
    "transformer": ["diffusers", "WanTransformer3DModel"],
    "transformer_2": ["diffusers", "WanTransformer3DModel"],
    "vae": ["diffusers", "AutoencoderKLWan"],
}


def export(model: TinyWan, folder: Path) -> None:
    """Write the checkpoint to a new or empty folder."""
    model.vae.save_pretrained(folder / "vae")
    model.text.tokenizer.save_pretrained(folder / "tokenizer")
    encoder = model.text.encoder
    state = {
        name: tensor.to(torch.bfloat16)
        for name, tensor in encoder.state_dict().items()
        if name not in TIED_PARAMETERS
    }
    save_sharded(state, folder / "text_encoder", stem="model")
    encoder.config.save_pretrained(folder / "text_encoder")
    for name, transformer in (("transformer", model.high), ("transformer_2", model.low)):
        export_transformer(transformer, folder / name)
    write_json(folder / "scheduler" / "scheduler_config.json", {**SCHEDULER, "flow_shift": SHIFT})
    write_json(folder / "model_index.json", _INDEX)
    write_json(folder / DEFAULTS_FILE, _DEFAULTS)


def export_transformer(transformer: WanTransformer3DModel, folder: Path) -> None:
    transformer.save_config(folder)
    state = {
        name: tensor if any(part in name for part in _FP32) else tensor.to(torch.bfloat16)
        for name, tensor in transformer.state_dict().items()
    }
    save_sharded(state, folder)
