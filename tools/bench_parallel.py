"""Time one denoising step on two ranks against one, with the same threads in all, as ratios.

    ./pants run tools/bench_parallel.py -- [--json] [--layout tp2 ring2 ...] [--memory]

All contenders load the same random weights. The ranks of each are processes of their own; they take
turns, one guided step each, until ``--rounds`` are done. What is compared are the medians of the
slowest rank. All make the same latents, up to rounding; the largest difference is printed too.

``--memory`` prints what a forward of 16k tokens takes beside the weights, on 1, 2 and 4 ranks of a
ring: the peak of each rank's resident memory.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from wantrn.model.config import WanConfig
from wantrn.model.parallelism import Parallelism
from wantrn.model.sharding import cut
from wantrn.model.tiny import random_state
from wantrn.model.transformer import WanTransformer
from wantrn.parallel import Degrees, Groups

CONFIG = WanConfig(num_attention_heads=8, num_layers=4, ffn_dim=2816)
LATENTS = (5, 16, 24)  # 480 tokens
LONG_LATENTS = (16, 64, 64)  # 16,384 tokens
TEXT_TOKENS = 512
GUIDANCE = 4.0
LAYOUTS = {
    "tp2": Degrees(tp=2),
    "ring2": Degrees(ring=2),
    "ulysses2": Degrees(ulysses=2),
    "cfg2": Degrees(cfg=2),
}
RINGS = (1, 2, 4)


@dataclass(frozen=True)
class Contender:
    """Ranks, the threads of each, and the latents' (frames, height, width)."""

    degrees: Degrees
    threads: int
    latents: tuple[int, int, int]


class GuidedStep:
    """One guided step of a model with random weights, on this rank."""

    def __init__(self, contender: Contender, groups: Groups) -> None:
        parallel = Parallelism(groups)
        self.cfg = groups.cfg
        with torch.device("meta"):
            self.model = WanTransformer(CONFIG, parallel=parallel)
        shard = parallel.shard
        state = {
            name: cut(whole, shard.sharding(name), shard).contiguous()
            for name, whole in random_state(CONFIG, 0).items()
        }
        self.model.load_state_dict(state, assign=True)
        self.model.eval().requires_grad_(False)
        generator = torch.Generator().manual_seed(1)
        shape = (1, CONFIG.in_channels, *contender.latents)
        self.noise = torch.randn(shape, generator=generator)
        self.rotary = self.model.rotary(self.noise)
        texts = torch.randn((2, 1, TEXT_TOKENS, CONFIG.text_dim), generator=generator)
        self.texts = [self.model.text_context(text) for text in texts]

    def __call__(self) -> Tensor:
        """The guided velocity."""
        t = torch.tensor([500.0])
        if self.cfg.size == 1:
            cond, uncond = self.model.velocities(self.noise, t, self.texts, self.rotary)
        else:
            mine = self.model(self.noise, t, self.texts[self.cfg.position], self.rotary)
            cond, uncond = self.cfg.gather(mine)
        return torch.lerp(uncond, cond, GUIDANCE)

    def one_branch(self) -> None:
        """The velocity for one text, for the memory that it takes."""
        self.model(self.noise, torch.tensor([500.0]), self.texts[0], self.rotary)


def run_rank(contender: Contender, rank: int, port: int, pipe: Connection) -> None:
    """A rank's process: what it is told, until it is told to stop."""
    torch.set_num_threads(contender.threads)
    groups = Groups.single()
    if contender.degrees.world > 1:
        limit = timedelta(minutes=10)
        store = TCPStore("127.0.0.1", port, is_master=False, timeout=limit)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=contender.degrees.world, timeout=limit
        )
        groups = Groups.build(contender.degrees)
    with torch.inference_mode():
        step = GuidedStep(contender, groups)
        pipe.send(None)
        while (task := pipe.recv()) is not None:
            start = time.perf_counter()
            if task == "step":
                result = step()
                pipe.send((time.perf_counter() - start, result.numpy() if rank == 0 else None))
            else:
                pipe.send(peak_bytes(step))


def peak_bytes(step: GuidedStep) -> int:
    """What a forward takes at its peak beyond what was resident before it."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
    step.one_branch()
    return resident("VmHWM") - before


def resident(field: str) -> int:
    """A figure of this process's memory, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"the kernel does not report {field}")


class Ranks:
    """A contender's processes."""

    def __init__(self, contender: Contender) -> None:
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.processes: list[tuple[BaseProcess, Connection]] = []
        context = get_context("spawn")
        for rank in range(contender.degrees.world):
            parent, child = context.Pipe()
            process = context.Process(
                target=run_rank, args=(contender, rank, self.store.port, child), daemon=True
            )
            process.start()
            child.close()  # so that the death of the process ends the wait for its message
            self.processes.append((process, parent))

    def step(self) -> tuple[float, NDArray[np.float32]]:
        """Seconds of the slowest rank for one step, and the velocity of rank 0."""
        answers = self._ask("step")
        return max(seconds for seconds, _ in answers), answers[0][1]

    def peak_bytes(self) -> int:
        """Of the rank that takes most."""
        most: int = max(self._ask("memory"))
        return most

    def wait(self) -> None:
        """Until all ranks are ready."""
        self._answers()

    def _ask(self, task: str) -> list[Any]:
        for _, pipe in self.processes:
            pipe.send(task)
        return self._answers()

    def _answers(self) -> list[Any]:
        """The next message of each rank."""
        return [pipe.recv() for _, pipe in self.processes]

    def stop(self) -> None:
        """End the processes."""
        for process, pipe in self.processes:
            if process.is_alive():
                pipe.send(None)
        for process, pipe in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()
            pipe.close()


@contextmanager
def started(contenders: dict[str, Contender]) -> Iterator[dict[str, Ranks]]:
    """The processes of all contenders, ready."""
    ranks: dict[str, Ranks] = {}
    try:
        for name, contender in contenders.items():
            ranks[name] = Ranks(contender)
            ranks[name].wait()
        yield ranks
    finally:
        for one in ranks.values():
            one.stop()


def measure_steps(layouts: list[str], threads: int, rounds: int) -> dict[str, float]:
    """Medians in seconds of each layout, over that of one rank, and the largest difference."""
    contenders = {"one": Contender(Degrees(), threads, LATENTS)}
    for name in layouts:
        contenders[name] = Contender(LAYOUTS[name], threads // LAYOUTS[name].world, LATENTS)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    results = {}
    with started(contenders) as ranks:
        for number in range(rounds + 1):
            for name, one in ranks.items():
                elapsed, results[name] = one.step()
                if number:  # the first one allocates
                    seconds[name].append(elapsed)
    one_s = statistics.median(seconds["one"])
    figures = {"one.step_s": one_s}
    for name in layouts:
        median = statistics.median(seconds[name])
        error = abs(results[name] - results["one"]).max() / abs(results["one"]).max()
        figures |= {
            f"{name}.step_s": median,
            f"{name}.over_one": median / one_s,
            f"{name}.max_difference": float(error),
        }
    return figures


def measure_memory(threads: int) -> dict[str, float]:
    """Bytes of the rank that takes most, by ranks of a ring, and their ratio to one rank's."""
    figures: dict[str, float] = {}
    for ring in RINGS:
        contender = Contender(Degrees(ring=ring), max(threads // ring, 1), LONG_LATENTS)
        with started({"ring": contender}) as ranks:
            most = ranks["ring"].peak_bytes()
        figures[f"ring{ring}.peak_mb"] = most / 1e6
        share = most / 1e6 / figures["ring1.peak_mb"] * ring
        figures[f"ring{ring}.peak_over_even_share"] = share
        print(f"  ring of {ring}: {most / 1e6:.0f} MB", file=sys.stderr)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one flat object as last line")
    parser.add_argument("--layout", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=max(torch.get_num_threads(), 2))
    parser.add_argument("--memory", action="store_true", help="measure memory too (Linux)")
    options = parser.parse_args()
    if options.threads % 2 or options.threads < 2:
        parser.error(f"--threads must be even, as two ranks share them, got {options.threads}")
    figures = measure_steps(options.layout, options.threads, options.rounds)
    if options.memory:
        figures |= measure_memory(options.threads)
    for key, value in figures.items():
        print(f"{key:40} {value:10.4g}")
    if options.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
