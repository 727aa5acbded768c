"""Tiny checkpoints with random weights: the whole pipeline in seconds, and pictures of noise."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLWan
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

from wantrn.model.checkpoints import CheckpointFormat, export_state, save_sharded
from wantrn.model.checkpoints.native import native_shapes
from wantrn.model.config import WanConfig
from wantrn.model.info import DEFAULTS_FILE, ModelKind
from wantrn.model.json_file import write_json
from wantrn.model.text import TIED_PARAMETERS

_TEXT_DIM = 64
_LATENT_CHANNELS = {ModelKind.T2V: 16, ModelKind.I2V: 16, ModelKind.TI2V: 48}
_SPECIAL_TOKENS = ("<pad>", "</s>", "<unk>")  # ids 0, 1, 2 as in UMT5's own tokenizer


def write_tiny_checkpoint(folder: Path, kind: ModelKind, seed: int = 0, *, heads: int = 2) -> Path:
    """Write a checkpoint in the layout of diffusers: about 3 million parameters, all random.

    The transformers have ``heads`` of 128 and 2 layers; T2V and I2V have two experts, as released.
    ``seed`` decides all weights. Returns ``folder``, which is made if it is not there.
    """
    config = tiny_config(kind, heads)
    experts = 1 if kind is ModelKind.TI2V else 2
    for index in range(experts):
        target = folder / ("transformer" if index == 0 else "transformer_2")
        state = random_state(config, seed + index)
        tensors = export_state(state, config, CheckpointFormat.DIFFUSERS)
        save_sharded(tensors, target)
        write_json(target / "config.json", config.to_diffusers())
    _write_vae(folder / "vae", kind, seed)
    _write_text_encoder(folder, seed)
    write_json(folder / "scheduler" / "scheduler_config.json", SCHEDULER)
    write_json(folder / "model_index.json", _model_index(kind))
    write_json(folder / DEFAULTS_FILE, _DEFAULTS)
    return folder


def tiny_config(kind: ModelKind, heads: int = 2) -> WanConfig:
    """The dimensions of a tiny transformer."""
    channels = _LATENT_CHANNELS[kind]
    return WanConfig(
        num_attention_heads=heads,
        in_channels=2 * channels + 4 if kind is ModelKind.I2V else channels,
        out_channels=channels,
        text_dim=_TEXT_DIM,
        ffn_dim=512,
        num_layers=2,
    )


def random_state(config: WanConfig, seed: int) -> dict[str, Tensor]:
    """Random fp32 parameters of a transformer, by native name, scaled so that activations are of
    order one: matrices by fan-in, modulation tables by width, norm weights around one."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in native_shapes(config).items():
        values = torch.randn(shape, generator=generator)
        if "_norm." in name and name.endswith("weight"):
            state[name] = 1 + 0.1 * values
        elif name.endswith("bias"):
            state[name] = 0.02 * values
        else:
            state[name] = values / math.sqrt(shape[-1])
    return state


def _write_vae(folder: Path, kind: ModelKind, seed: int) -> None:
    options: dict[str, Any] = {
        "base_dim": 8,
        "z_dim": 16,
        "dim_mult": [1, 2, 2, 2],
        "num_res_blocks": 1,
    }
    if kind is ModelKind.TI2V:
        channels = _LATENT_CHANNELS[kind]
        options |= {
            "decoder_base_dim": 8,
            "z_dim": channels,
            "is_residual": True,
            "in_channels": 12,
            "out_channels": 12,
            "patch_size": 2,
            "scale_factor_spatial": 16,
            "latents_mean": [0.0] * channels,
            "latents_std": [1.0] * channels,
        }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        AutoencoderKLWan(**options).save_pretrained(folder)


def _write_text_encoder(folder: Path, seed: int) -> None:
    """A tokenizer with one token a byte, so that any text can be written, and a tiny UMT5."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*_SPECIAL_TOKENS, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", vocabulary["</s>"])]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=512,
    ).save_pretrained(folder / "tokenizer")
    config = UMT5Config(
        vocab_size=len(vocabulary),
        d_model=_TEXT_DIM,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        pad_token_id=vocabulary["<pad>"],
        eos_token_id=vocabulary["</s>"],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = UMT5EncoderModel(config)
    state = {k: v for k, v in encoder.state_dict().items() if k not in TIED_PARAMETERS}
    save_sharded(state, folder / "text_encoder", stem="model")
    encoder.config.save_pretrained(folder / "text_encoder")


SCHEDULER = {
    "_class_name": "UniPCMultistepScheduler",
    "prediction_type": "flow_prediction",
    "use_flow_sigmas": True,
    "flow_shift": 3.0,
    "num_train_timesteps": 1000,
    "solver_order": 2,
}
"""Of the released checkpoints: ``scheduler_config.json``."""

_DEFAULTS = {"size": [128, 128], "frames": 17, "fps": 16, "steps": 20, "dtype": "float32"}


def _model_index(kind: ModelKind) -> dict[str, Any]:
    two_experts = kind is not ModelKind.TI2V
    return {
        "_class_name": "WanImageToVideoPipeline" if kind is ModelKind.I2V else "WanPipeline",
        "boundary_ratio": {ModelKind.T2V: 0.875, ModelKind.I2V: 0.9}.get(kind),
        "expand_timesteps": kind is ModelKind.TI2V,
        "scheduler": ["diffusers", "UniPCMultistepScheduler"],
        "text_encoder": ["transformers", "UMT5EncoderModel"],
        "tokenizer": ["transformers", "PreTrainedTokenizerFast"],
        "transformer": ["diffusers", "WanTransformer3DModel"],
        "transformer_2": ["diffusers", "WanTransformer3DModel"] if two_experts else [None, None],
        "vae": ["diffusers", "AutoencoderKLWan"],
    }
