"""The transformer on four ranks, every operator by its kernel in the simulator of each rank."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import write_file
from rank_processes import run_ranks
from torch import Tensor

from wantrn.kernels import backend
from wantrn.kernels.backend import Backend, use_backend
from wantrn.kernels.simulator import Simulator
from wantrn.model.checkpoints import CheckpointFormat, export_state
from wantrn.model.config import WanConfig
from wantrn.model.parallelism import Parallelism
from wantrn.model.pipeline import load_transformer
from wantrn.model.quantization import QuantizationOptions
from wantrn.model.quantization.run import QuantizationJob
from wantrn.model.quantized_transformer import load_quantized_transformer
from wantrn.model.tiny import random_state
from wantrn.model.transformer import WanTransformer
from wantrn.parallel import Degrees, Groups

# a rank has widths that are multiples of 128, as the matmul kernels ask
CONFIG = WanConfig(
    num_attention_heads=4,
    attention_head_dim=64,
    text_dim=128,
    freq_dim=16,
    ffn_dim=256,
    num_layers=1,
)
DEGREES = Degrees(tp=2, ring=2)
KERNELS = {"adaln_modulate", "attention_cte", "mlp", "o_proj", "qkv_cte", "ring_attention"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One transformer's weights, in fp32 and in FP8."""
    root = tmp_path_factory.mktemp("transformer")
    tensors = export_state(random_state(CONFIG, 0), CONFIG, CheckpointFormat.DIFFUSERS)
    write_file(root / "plain" / "model.safetensors", tensors)
    (root / "plain" / "config.json").write_text(json.dumps(CONFIG.to_diffusers()))
    QuantizationJob.plan(root / "plain", root / "fp8", QuantizationOptions()).run(lambda done: None)
    return {"bf16": root / "plain", "fp8": root / "fp8"}


def load(kind: str, folder: Path, parallel: Parallelism) -> WanTransformer:
    if kind == "fp8":
        return load_quantized_transformer(folder, parallel)
    return load_transformer(folder, CONFIG, torch.bfloat16, parallel)


def velocity(model: WanTransformer) -> Tensor:
    """Of 45 tokens, so the ring pads."""
    generator = torch.Generator().manual_seed(3)
    latents = torch.randn(1, CONFIG.in_channels, 3, 6, 10, generator=generator)
    text = torch.randn(1, 19, CONFIG.text_dim, generator=generator)
    with torch.inference_mode():
        context = model.text_context(text)
        found: Tensor = model(latents, torch.tensor([731.0]), context, model.rotary(latents))
    return found


def on_a_rank(folders: dict[str, Path]) -> dict[str, Any]:
    """By torch and by kernels, the kernels that ran, and why others did not."""
    parallel = Parallelism(Groups.build(DEGREES))
    ran: set[str] = set()
    reasons: list[str] = []
    run = Simulator.run

    def recorded(self: Simulator, kernel: Any, *args: Any, group: str = "") -> Any:
        ran.add(kernel.__name__)
        return run(self, kernel, *args, group=group)

    Simulator.run = recorded  # type: ignore[method-assign]
    handler = logging.Handler()
    handler.emit = lambda record: reasons.append(record.getMessage())  # type: ignore[method-assign]
    backend._log.addHandler(handler)
    found: dict[str, Any] = {}
    for kind, folder in folders.items():
        ran.clear()
        model = load(kind, folder, parallel)
        by_torch = velocity(model)
        assert not ran
        with use_backend(Backend.SIM):
            by_kernels = velocity(model)
        found[kind] = (by_torch, by_kernels, set(ran), list(reasons))
    return found


def test_kernels_on_four_ranks_have_the_errors_of_torch(folders: dict[str, Path]) -> None:
    """Against fp32: by torch on one rank and on four, and by kernels."""
    exact = velocity(load_transformer(folders["bf16"], CONFIG, torch.float32))
    on_one = {kind: velocity(load(kind, folders[kind], Parallelism())) for kind in folders}
    for rank, found in enumerate(run_ranks(DEGREES.world, on_a_rank, folders)):
        for kind, (by_torch, by_kernels, ran, reasons) in found.items():
            between = error(by_kernels, by_torch)
            print(f"rank {rank}, {kind}: of {error(by_kernels, exact):.4f}, {between:.4f} to torch")
            assert reasons == []
            assert ran >= KERNELS
            assert error(by_torch, exact) <= 1.2 * error(on_one[kind], exact)
            assert error(by_kernels, exact) <= 1.2 * error(on_one[kind], exact)
            # in FP8 a rounding of bf16 now and then decides between two codes
            assert between <= 0.9 * error(on_one[kind], exact)


def error(found: Tensor, exact: Tensor) -> float:
    """Root mean square, relative."""
    difference = (found.double() - exact.double()).square().mean().sqrt()
    return float(difference / exact.double().square().mean().sqrt())
