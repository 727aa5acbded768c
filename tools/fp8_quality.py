"""What FP8 costs: a transformer's velocity and a whole video, beside bf16 and fp32.

    ./pants run tools/fp8_quality.py -- [--draws N] [--spread X ...] [--kind t2v i2v ti2v] [--json]

The first table has the relative error (RMS) of the velocity of one pass, all groups in FP8, with a
scale for each output channel and, of the same weights, with a scale for each of the checkpoint's
matrices. The weights are random, and their channels differ by ``exp(spread * normal)`` (see
``channel_spread.py``). The numbers are means of all draws of weights and noise.

The second has the PSNR between the same video in fp32, bf16 and FP8, made by the pipeline from a
tiny checkpoint and from what the quantizer makes of it: the smallest of all draws.

``WANTRN_BACKEND=sim`` computes all of it by kernels in the simulator, where they can.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import torch
from channel_spread import State, spread_channels
from matrix_scales import with_scale_per_matrix
from PIL import Image
from torch import Tensor

from wantrn.model.checkpoints import CheckpointFormat, export_state, save_sharded
from wantrn.model.config import WanConfig
from wantrn.model.info import ModelKind
from wantrn.model.media import to_uint8
from wantrn.model.pipeline import WanPipeline
from wantrn.model.quality import Frames, psnr
from wantrn.model.quantization import QuantizationOptions, quantize_state
from wantrn.model.quantization.run import QuantizationJob
from wantrn.model.quantized_transformer import quantized_transformer
from wantrn.model.settings import VideoRequest, resolve
from wantrn.model.tiny import random_state, tiny_config, write_tiny_checkpoint
from wantrn.model.transformer import WanTransformer

MODELS = {
    "tiny": tiny_config(ModelKind.T2V),
    # four blocks 1024 wide, with the ratio of A14B's feed-forward
    "w1024": WanConfig(num_attention_heads=8, num_layers=4, ffn_dim=2816, text_dim=512),
}
SPREADS = (0.0, 1.0, 2.0)

VIDEO_SPREAD = 1.0
FRAMES, STEPS = 9, 6
SIZES = {ModelKind.T2V: (64, 64), ModelKind.I2V: (64, 64), ModelKind.TI2V: (128, 128)}
PROMPT = "a red ball rolls to the right"


def transformer_errors(config: WanConfig, spread: float, seed: int) -> dict[str, float]:
    """Relative errors of the velocity: ``bf16``, ``per_channel`` and ``per_tensor`` against fp32,
    and the latter two against bf16 (``per_channel_bf16``, ``per_tensor_bf16``)."""
    exact = spread_channels(random_state(config, seed), config, spread, seed + 1)
    state = {
        name: tensor.to(WanTransformer.parameter_dtype(name, torch.bfloat16))
        for name, tensor in exact.items()
    }
    quantized = quantize_state(state, config, QuantizationOptions())
    fp32, bf16 = (_velocity(_plain(config, one), seed) for one in (exact, state))
    found = {"bf16": _error(bf16, fp32)}
    for name, fp8 in (
        ("per_channel", quantized),
        ("per_tensor", with_scale_per_matrix(quantized, state, config)),
    ):
        velocity = _velocity(quantized_transformer(config, fp8), seed)
        found[name] = _error(velocity, fp32)
        found[f"{name}_bf16"] = _error(velocity, bf16)
    return found


def _plain(config: WanConfig, state: State) -> WanTransformer:
    with torch.device("meta"):
        model = WanTransformer(config)
    model.load_state_dict(state, strict=True, assign=True)
    return model.eval()


@torch.inference_mode()
def _velocity(model: WanTransformer, seed: int) -> Tensor:
    config = model.config
    generator = torch.Generator().manual_seed(seed)
    latents = torch.randn(1, config.in_channels, 3, 6, 10, generator=generator)
    text = torch.randn(1, 19, config.text_dim, generator=generator)
    timestep = torch.tensor([731.0])
    rotary = model.rotary(latents)
    velocity: Tensor = model(latents, timestep, model.text_context(text), rotary)
    return velocity


def _error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact.double()).norm() / exact.double().norm())


def video_quality(kind: ModelKind, seed: int) -> dict[str, float]:
    """PSNR in dB of each two of ``fp32``, ``bf16`` and ``fp8``, called ``fp8_fp32`` and so on."""
    with tempfile.TemporaryDirectory() as temporary:
        plain, fp8 = Path(temporary, "plain"), Path(temporary, "fp8")
        write_checkpoint(plain, kind, seed)
        QuantizationJob.plan(plain, fp8, QuantizationOptions()).run(lambda done: None)
        videos = {
            "fp8": video(fp8, torch.bfloat16, seed),
            "bf16": video(plain, torch.bfloat16, seed),
            "fp32": video(plain, torch.float32, seed),
        }
    return {f"{a}_{b}": psnr(videos[a], videos[b]) for a, b in combinations(videos, 2)}


def write_checkpoint(folder: Path, kind: ModelKind, seed: int) -> None:
    """A tiny one whose channels differ, so that a scale in another's place shows in the video."""
    write_tiny_checkpoint(folder, kind, seed)
    config = tiny_config(kind)
    for index, expert in enumerate(sorted(folder.glob("transformer*"))):
        state = spread_channels(random_state(config, seed + index), config, VIDEO_SPREAD, seed)
        (weights,) = expert.glob("*.safetensors")
        weights.unlink()
        save_sharded(export_state(state, config, CheckpointFormat.DIFFUSERS), expert)


def video(folder: Path, dtype: torch.dtype, seed: int) -> Frames:
    """Frames as they are written, uint8 ``[F, height, width, 3]``."""
    pipeline = WanPipeline.load(folder, dtype)
    kind = pipeline.info.kind
    request = VideoRequest(PROMPT, size=SIZES[kind], frames=FRAMES, steps=STEPS, seed=seed)
    if kind is ModelKind.I2V:
        request = replace(request, image=Image.linear_gradient("L").convert("RGB"))
    job = pipeline.prepare(resolve(request, pipeline.info))
    while not job.done:
        pipeline.step(job)
    return to_uint8(pipeline.decode(job))


def transformer_figures(spreads: Sequence[float], draws: int) -> dict[str, float]:
    """Means over all draws, printed as they come: ``MODEL.spread_X.NAME``."""
    found: dict[str, float] = {}
    print("relative error of the velocity  against fp32                   against bf16")
    print(f"{'':30}{'bf16':>8}{'channel':>10}{'tensor':>10}{'channel':>12}{'tensor':>10}")
    for name, config in MODELS.items():
        for spread in spreads:
            drawn = [transformer_errors(config, spread, seed) for seed in range(draws)]
            mean = {key: statistics.fmean(one[key] for one in drawn) for key in drawn[0]}
            print(
                f"{f'{name}, channels differ by e^{spread:g}':<30}{mean['bf16']:8.4f}"
                f"{mean['per_channel']:10.4f}{mean['per_tensor']:10.4f}"
                f"{mean['per_channel_bf16']:12.4f}{mean['per_tensor_bf16']:10.4f}",
                flush=True,
            )
            found |= {f"{name}.spread_{spread:g}.{key}": value for key, value in mean.items()}
    return found


def video_figures(kinds: Sequence[ModelKind], draws: int) -> dict[str, float]:
    """The smallest of all draws, printed as they come: ``KIND.NAME.psnr``."""
    found: dict[str, float] = {}
    print("PSNR of the video, dB   bf16, fp32   fp8, fp32   fp8, bf16")
    for kind in kinds:
        drawn = [video_quality(kind, seed) for seed in range(draws)]
        least = {key: min(one[key] for one in drawn) for key in drawn[0]}
        print(
            f"{kind.value:<24}{least['bf16_fp32']:10.1f}{least['fp8_fp32']:12.1f}"
            f"{least['fp8_bf16']:12.1f}",
            flush=True,
        )
        found |= {f"{kind.value}.{key}.psnr": value for key, value in least.items()}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--draws", type=int, default=3, help="(default 3)")
    parser.add_argument("--spread", type=float, nargs="*", default=SPREADS, help="(0 1 2)")
    kinds = [kind.value for kind in ModelKind]
    parser.add_argument("--kind", nargs="*", choices=kinds, default=kinds, help="(all)")
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    options = parser.parse_args()
    if options.draws < 1:
        parser.error(f"--draws is {options.draws}; it must be at least 1")
    if not all(math.isfinite(spread) and spread >= 0 for spread in options.spread):
        parser.error(f"--spread is {options.spread}; all must be at least 0")
    found = transformer_figures(options.spread, options.draws) if options.spread else {}
    if options.kind:
        found |= video_figures([ModelKind(kind) for kind in options.kind], options.draws)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
