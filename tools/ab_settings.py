"""The settings that tools/ab.py compares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from ab_ranks import on_two_ranks
from ab_videos import Asked, Video, videos_of
from matrix_scales import with_scale_per_matrix

from wantrn.kernels.backend import Backend
from wantrn.model.checkpoints import TensorStore, load_transformer_state
from wantrn.model.config import WanConfig
from wantrn.model.info import read_model_info
from wantrn.model.pipeline import WanPipeline
from wantrn.model.quantization import QuantizationOptions, quantize_store
from wantrn.model.quantized_transformer import DTYPE, quantized_transformer
from wantrn.model.step_cache import DEFAULT_THRESHOLD, StepCache
from wantrn.model.text import TextEncoder
from wantrn.model.transformer import WanTransformer
from wantrn.model.vae import VideoAutoencoder
from wantrn.parallel.attention import Strategy


@dataclass(frozen=True)
class Setting:
    """One of them.

    Attributes:
        words: what is different from fp32 on one rank.
        make: the videos that are asked for, one after the other.
        slow: it is made only where it is named.
    """

    words: str
    make: Callable[[Asked], Iterator[Video]]
    slow: bool = False


def _fp32(asked: Asked) -> Iterator[Video]:
    return videos_of(WanPipeline.load(asked.model, torch.float32), asked)


def _bf16(asked: Asked) -> Iterator[Video]:
    return videos_of(WanPipeline.load(asked.model, torch.bfloat16), asked)


def _fp8_channel(asked: Asked) -> Iterator[Video]:
    return videos_of(_in_fp8(asked.model, per_matrix=False), asked)


def _fp8_tensor(asked: Asked) -> Iterator[Video]:
    return videos_of(_in_fp8(asked.model, per_matrix=True), asked)


def _ring(asked: Asked) -> Iterator[Video]:
    return on_two_ranks(asked, Strategy.RING)


def _all_gather(asked: Asked) -> Iterator[Video]:
    return on_two_ranks(asked, Strategy.ALL_GATHER)


def _cached(cache: StepCache) -> Callable[[Asked], Iterator[Video]]:
    def make(asked: Asked) -> Iterator[Video]:
        return videos_of(WanPipeline.load(asked.model, torch.float32), asked, cache=cache)

    return make


def _sim(asked: Asked) -> Iterator[Video]:
    return videos_of(WanPipeline.load(asked.model, torch.bfloat16), asked, Backend.SIM)


CACHES: Mapping[str, StepCache] = {
    **{
        f"cache_{threshold:g}": StepCache(threshold)
        for threshold in (DEFAULT_THRESHOLD / 2, DEFAULT_THRESHOLD, 2 * DEFAULT_THRESHOLD)
    },
    **{
        f"unguarded_{threshold:g}": StepCache(threshold, guard=False)
        for threshold in (DEFAULT_THRESHOLD, 2 * DEFAULT_THRESHOLD)
    },
}

REFERENCE = Setting("fp32 on one rank, by torch", _fp32)

SETTINGS: Mapping[str, Setting] = {
    "bf16": Setting("bf16", _bf16),
    "fp8_channel": Setting("FP8, a scale for each channel", _fp8_channel),
    "fp8_tensor": Setting("FP8, a scale for each matrix", _fp8_tensor),
    "ring": Setting("fp32, a ring of two ranks", _ring),
    "all_gather": Setting("fp32, two ranks that gather", _all_gather),
    **{
        name: Setting(
            f"step cache {cache.threshold:g}{'' if cache.guard else ' without its guard'}",
            _cached(cache),
        )
        for name, cache in CACHES.items()
    },
    "sim": Setting("bf16, NKI kernels in the simulator", _sim, slow=True),
}


def _in_fp8(folder: Path, per_matrix: bool) -> WanPipeline:
    """The checkpoint as ``wantrn quantize`` would make it, in memory; or with other scales."""
    info = read_model_info(folder)
    experts = tuple(_fp8_expert(expert, info.config, per_matrix) for expert in info.experts)
    encoder = TextEncoder.load(folder / "tokenizer", folder / "text_encoder", DTYPE)
    return WanPipeline(info, experts, encoder, VideoAutoencoder.load(folder / "vae"))


def _fp8_expert(folder: Path, config: WanConfig, per_matrix: bool) -> WanTransformer:
    store = TensorStore.open(folder)
    state = quantize_store(
        store,
        config,
        QuantizationOptions(),
        lambda name: WanTransformer.parameter_dtype(name, DTYPE),
    )
    if per_matrix:
        exact = load_transformer_state(store, config, lambda name: torch.float32)
        state = with_scale_per_matrix(state, exact, config)
    return quantized_transformer(config, state)
