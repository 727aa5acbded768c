"""Time our transformer against diffusers' on this machine: a guided denoise, as ratios.

    ./pants run tools/bench_dit.py -- [--json] [--model tiny w1024] [--dtype float32 bfloat16]

Both contenders load the same random weights from the same files, each in a process of its own.
They take turns: one denoise (20 steps, two passes a step, 512 text tokens) each, until ``--rounds``
are done or ``--case-seconds`` have gone by. What is compared are the medians. Both give the same
latents, up to rounding; the largest difference is printed too. What belongs to a prompt or a shape
(keys and values of the text, rotary tables) is inside the measured time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch
from torch import Tensor

from wantrn.model.checkpoints import CheckpointFormat, export_state, save_sharded
from wantrn.model.config import WanConfig
from wantrn.model.info import DTYPES, ModelKind
from wantrn.model.pipeline import load_transformer
from wantrn.model.tiny import random_state, tiny_config

TEXT_TOKENS = 512
GUIDANCE = 4.0
CONTENDERS = ("ours", "diffusers")


@dataclass(frozen=True)
class Case:
    """A model, the latents' (frames, height, width), and the work of one sample."""

    name: str
    config: WanConfig
    latents: tuple[int, int, int]

    @property
    def tokens(self) -> int:
        t, h, w = self.latents
        return t * h * w // self.config.patch_volume


@dataclass(frozen=True)
class Task:
    """What a contender's process needs to know."""

    folder: Path
    case: Case
    dtype: str
    steps: int
    threads: int


CASES = {
    case.name: case
    for case in (
        Case("tiny", tiny_config(ModelKind.T2V), (5, 16, 16)),  # 128 x 128, 17 frames
        Case("w1024", WanConfig(num_attention_heads=8, num_layers=4, ffn_dim=2816), (5, 16, 24)),
    )
}

# latents and timestep to the velocities of prompt and negative prompt
Velocities = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


def inputs(task: Task) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Noise, and the encoded prompt and negative prompt."""
    generator = torch.Generator().manual_seed(1)
    config = task.case.config
    noise = torch.randn((1, config.in_channels, *task.case.latents), generator=generator)
    texts = torch.randn((2, 1, TEXT_TOKENS, config.text_dim), generator=generator)
    return noise, (texts[0], texts[1])


def denoise(velocities: Velocities, latents: Tensor, steps: int) -> Tensor:
    """Guided Euler steps from noise to latents."""
    sigmas = torch.linspace(1, 0, steps + 1)
    for now, after in pairwise(sigmas):
        t = (now * 1000).view(1)
        cond, uncond = velocities(latents, t)
        latents = latents + (after - now) * torch.lerp(uncond, cond, GUIDANCE)
    return latents


def ours(task: Task) -> Callable[[int], Tensor]:
    model = load_transformer(task.folder, task.case.config, DTYPES[task.dtype])
    noise, texts = inputs(task)

    def sample(steps: int) -> Tensor:
        rotary = model.rotary(noise)
        contexts = [model.text_context(text) for text in texts]
        return denoise(lambda x, t: model.velocities(x, t, contexts, rotary), noise, steps)

    return sample


def diffusers(task: Task) -> Callable[[int], Tensor]:
    from diffusers import WanTransformer3DModel

    dtype = DTYPES[task.dtype]
    model = WanTransformer3DModel.from_pretrained(task.folder, torch_dtype=dtype).eval()
    noise, texts = inputs(task)
    cast = [text.to(dtype) for text in texts]

    def velocities(x: Tensor, t: Tensor) -> tuple[Tensor, ...]:
        return tuple(model(x.to(dtype), t, text, return_dict=False)[0].float() for text in cast)

    return lambda steps: denoise(velocities, noise, steps)


def contend(name: str, task: Task, pipe: Connection) -> None:
    """A contender's process: a sample for each message, until told to stop."""
    torch.set_num_threads(task.threads)
    with torch.inference_mode():
        sample = {"ours": ours, "diffusers": diffusers}[name](task)
        sample(1)  # the first pass allocates
        pipe.send(None)
        while pipe.recv():
            start = time.perf_counter()
            latents = sample(task.steps)
            pipe.send((time.perf_counter() - start, latents.numpy()))


def start(name: str, task: Task) -> tuple[SpawnProcess, Connection]:
    context = get_context("spawn")
    parent, child = context.Pipe()
    process = context.Process(target=contend, args=(name, task, child), daemon=True)
    process.start()
    child.close()  # so that the death of the process ends the wait for its message
    return process, parent


def measure(task: Task, rounds: int, case_seconds: float) -> dict[str, float]:
    """Medians in seconds, their ratio, the number of rounds and the largest difference."""
    contenders = {name: start(name, task) for name in CONTENDERS}
    seconds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    results = {}
    try:
        for _, pipe in contenders.values():
            pipe.recv()
        begin = time.perf_counter()
        for index in range(rounds):
            if index and time.perf_counter() - begin > case_seconds:
                break
            for name, (_, pipe) in contenders.items():
                pipe.send(True)
                elapsed, results[name] = pipe.recv()
                seconds[name].append(elapsed)
                print(f"  {name} {elapsed:.2f} s", file=sys.stderr)
        for _, pipe in contenders.values():
            pipe.send(False)
    finally:
        for process, pipe in contenders.values():
            pipe.close()
            process.join(10)
            if process.is_alive():
                process.kill()
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    reference = results["diffusers"]
    return {
        "ours_s": medians["ours"],
        "diffusers_s": medians["diffusers"],
        "ours_over_diffusers": medians["ours"] / medians["diffusers"],
        "rounds": len(seconds["ours"]),
        "max_difference": float(abs(results["ours"] - reference).max() / abs(reference).max()),
    }


def write_weights(case: Case, folder: Path) -> None:
    state = export_state(random_state(case.config, 0), case.config, CheckpointFormat.DIFFUSERS)
    save_sharded(state, folder)
    (folder / "config.json").write_text(json.dumps(case.config.to_diffusers()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one flat object as last line")
    parser.add_argument("--model", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case-seconds", type=float, default=240)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    figures: dict[str, float] = {}
    for name in options.model:
        case, ratios = CASES[name], []
        with tempfile.TemporaryDirectory() as temporary:
            write_weights(case, Path(temporary))
            for dtype in options.dtype:
                task = Task(Path(temporary), case, dtype, options.steps, options.threads)
                print(f"{name} {dtype}: {case.tokens} tokens", file=sys.stderr)
                figure = measure(task, options.rounds, options.case_seconds)
                figures |= {f"{name}.{dtype}.{key}": value for key, value in figure.items()}
                ratios.append(figure["ours_over_diffusers"])
        figures[f"{name}.ours_over_diffusers"] = max(ratios)  # of the dtypes, the worst
    for key, value in figures.items():
        print(f"{key:40} {value:10.4g}")
    if options.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
