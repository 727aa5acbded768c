"""Time one denoising step on two ranks against one, with the same threads in all, as ratios.

    ./pants run tools/bench_parallel.py -- [--json] [--layout tp2 ring2 ...] [--memory]
        [--vllm-omni PYTHON]

All contenders load the same random weights. The ranks of each are processes of their own; they take
turns, one guided step each, until ``--rounds`` are done. What is compared are the medians of the
slowest rank. All make the same latents, up to rounding; the largest difference is printed too.

``--vllm-omni`` adds vLLM-Omni's own Wan DiT, in the same layouts. It is no dependency of ours:
``PYTHON`` is the interpreter of an environment that has it. A layout that it cannot run is left
out, with the reason on stderr. A step of ours has the keys and values of the texts from before it
(``one.texts_s``, once for a video); a step of vLLM-Omni's computes them.

``--memory`` prints what a forward of 16k tokens takes beside the weights, on 1, 2 and 4 ranks of a
ring: the peak of each rank's resident memory. The ranks' C library is told to give back what is
freed. By itself it keeps blocks of up to 32 MB, which ranks with shorter parts have more of: at 8k
tokens, two ranks are 38 % over an even share with what it keeps, and 6 % without; four 60 and 14 %.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from omni_cpu import write_plugin
from omni_wan_worker import OmniError, OmniRanks, Work
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from wantrn.model.config import WanConfig
from wantrn.model.parallelism import Parallelism
from wantrn.model.sharding import cut
from wantrn.model.transformer import WanTransformer
from wantrn.parallel import Degrees, Groups

CONFIG = WanConfig(num_attention_heads=8, num_layers=4, ffn_dim=2816)
LATENTS = (5, 16, 24)  # 480 tokens
FEW_LATENTS = (1, 16, 16)  # 64 tokens
LONG_LATENTS = (16, 64, 64)  # 16,384 tokens
TEXT_TOKENS = 512
GUIDANCE = 4.0
TIMESTEP = 500.0
AGREEMENT = 1e-4  # of two implementations in fp32, over the largest value
LAYOUTS = {
    "tp2": Degrees(tp=2),
    "ring2": Degrees(ring=2),
    "ulysses2": Degrees(ulysses=2),
    "cfg2": Degrees(cfg=2),
}
RINGS = (1, 2, 4)
_MAPPED = "MALLOC_MMAP_THRESHOLD_"
"""From how many bytes on glibc gives memory back as soon as it is freed."""


@dataclass(frozen=True)
class Contender:
    """Ranks, the threads of each, and the latents' (frames, height, width)."""

    degrees: Degrees
    threads: int
    latents: tuple[int, int, int]


def inputs(latents: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Noise ``[1, C, *latents]``, and the texts of both branches ``[2, 1, TEXT_TOKENS, D]``."""
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn((1, CONFIG.in_channels, *latents), generator=generator)
    return noise, torch.randn((2, 1, TEXT_TOKENS, CONFIG.text_dim), generator=generator)


class GuidedStep:
    """One guided step of a model with random weights, on this rank."""

    def __init__(self, contender: Contender, groups: Groups, weights: Path) -> None:
        parallel = Parallelism(groups)
        self.cfg = groups.cfg
        with torch.device("meta"):
            self.model = WanTransformer(CONFIG, parallel=parallel)
        shard = parallel.shard
        state = {
            name: cut(whole, shard.sharding(name), shard).clone()  # no view of the file
            for name, whole in load_file(weights).items()
        }
        self.model.load_state_dict(state, assign=True)
        self.model.eval().requires_grad_(False)
        self.noise, self.encoded = inputs(contender.latents)
        self.rotary = self.model.rotary(self.noise)
        self.read_texts()

    def read_texts(self) -> None:
        """Compute what the blocks need of the texts."""
        self.texts = [self.model.text_context(text) for text in self.encoded]

    def __call__(self) -> Tensor:
        """The guided velocity."""
        t = torch.tensor([TIMESTEP])
        if self.cfg.size == 1:
            cond, uncond = self.model.velocities(self.noise, t, self.texts, self.rotary)
        else:
            mine = self.model(self.noise, t, self.texts[self.cfg.position], self.rotary)
            cond, uncond = self.cfg.gather(mine)
        return torch.lerp(uncond, cond, GUIDANCE)

    def one_branch(self, latents: tuple[int, int, int]) -> None:
        """The velocity of noise of this size for one text, for the memory that it takes."""
        noise = torch.zeros((1, CONFIG.in_channels, *latents))
        self.model(noise, torch.tensor([TIMESTEP]), self.texts[0], self.model.rotary(noise))


def run_rank(contender: Contender, weights: Path, rank: int, port: int, pipe: Connection) -> None:
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
        step = GuidedStep(contender, groups, weights)
        pipe.send(None)
        while (task := pipe.recv()) is not None:
            start = time.perf_counter()
            if task == "step":
                result = step()
                pipe.send((time.perf_counter() - start, result.numpy() if rank == 0 else None))
            elif task == "texts":
                step.read_texts()
                pipe.send(time.perf_counter() - start)
            else:
                pipe.send(peak_bytes(step))


def peak_bytes(step: GuidedStep) -> int:
    """What a forward takes at its peak beyond what was resident before it."""
    step.one_branch(FEW_LATENTS)  # what is loaded or allocated once is no part of it
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = resident("VmRSS")
    step.one_branch(LONG_LATENTS)
    return resident("VmHWM") - before


def resident(field: str) -> int:
    """A figure of this process's memory, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"the kernel does not report {field}")


class Ranks:
    """A contender's processes."""

    def __init__(self, contender: Contender, weights: Path) -> None:
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.processes: list[tuple[BaseProcess, Connection]] = []
        context = get_context("spawn")
        for rank in range(contender.degrees.world):
            parent, child = context.Pipe()
            process = context.Process(
                target=run_rank,
                args=(contender, weights, rank, self.store.port, child),
                daemon=True,
            )
            process.start()
            child.close()  # so that the death of the process ends the wait for its message
            self.processes.append((process, parent))

    def step(self) -> tuple[float, NDArray[np.float32]]:
        """Seconds of the slowest rank for one step, and the velocity of rank 0."""
        answers = self._ask("step")
        return max(seconds for seconds, _ in answers), answers[0][1]

    def texts_seconds(self) -> float:
        """Seconds of the slowest rank for what the blocks need of both texts."""
        most: float = max(self._ask("texts"))
        return most

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


@dataclass(frozen=True)
class Omni:
    """vLLM-Omni in an environment of its own."""

    python: Path
    folder: Path  # what its ranks read and write

    def prepare(self, weights: Path) -> None:
        """Write the weights, the inputs, and the plugin that makes it run on a CPU."""
        from wantrn.model.checkpoints import CheckpointFormat, export_state, save_sharded

        state = export_state(load_file(weights), CONFIG, CheckpointFormat.DIFFUSERS)
        save_sharded(state, self.folder / "diffusers")
        config = json.dumps(CONFIG.to_diffusers())
        (self.folder / "diffusers" / "config.json").write_text(config)
        noise, texts = inputs(LATENTS)
        tensors = {"noise": noise, "texts": texts, "timestep": torch.tensor([TIMESTEP])}
        save_file(tensors, self.folder / "inputs.safetensors")
        write_plugin(self.folder / "plugin")

    def ranks(self, contender: Contender) -> OmniRanks:
        """Its processes for the layout of ``contender``."""
        degrees = contender.degrees
        work = Work(
            folder=str(self.folder / "diffusers"),
            inputs=str(self.folder / "inputs.safetensors"),
            guidance=GUIDANCE,
            degrees={
                "tensor_parallel_size": degrees.tp,
                "ring_degree": degrees.ring,
                "ulysses_degree": degrees.ulysses,
                "cfg_parallel_size": degrees.cfg,
            },
            world=degrees.world,
            threads=contender.threads,
        )
        return OmniRanks(self.python, self.folder / "plugin", work)


AnyRanks = TypeVar("AnyRanks", Ranks, OmniRanks)


def started(ranks: AnyRanks, stack: ExitStack) -> AnyRanks:
    """``ranks``, ready; ``stack`` ends them."""
    stack.callback(ranks.stop)
    ranks.wait()
    return ranks


def write_random_weights(path: Path) -> None:
    """The weights of all contenders, by native name."""
    from wantrn.model.tiny import random_state  # seconds to import, and ranks do not need it

    save_file(random_state(CONFIG, 0), path)


def measure_steps(
    contenders: dict[str, Contender], rounds: int, weights: Path, omni: Omni | None
) -> dict[str, float]:
    """Medians in seconds of each contender, the ratios, and the largest differences."""
    with ExitStack() as stack:
        one = started(Ranks(contenders["one"], weights), stack)
        ranks: dict[str, Ranks | OmniRanks] = {"one": one}
        for name, contender in contenders.items():
            if name != "one":
                ranks[name] = started(Ranks(contender, weights), stack)
            if omni is not None:
                try:
                    ranks[f"omni_{name}"] = started(omni.ranks(contender), stack)
                except OmniError as error:
                    if name == "one":
                        raise SystemExit(f"vLLM-Omni does not run: {error}") from error
                    print(f"  vLLM-Omni does not run {name}: {error}", file=sys.stderr)
        seconds, results = take_turns(ranks, rounds)
        texts_s = one.texts_seconds()
    return {"one.texts_s": texts_s} | figures_of(seconds, results)


Seconds = dict[str, float]
Results = dict[str, NDArray[np.float32]]


def take_turns(ranks: dict[str, Ranks | OmniRanks], rounds: int) -> tuple[Seconds, Results]:
    """The median time of a step of each, and what it gave."""
    seconds: dict[str, list[float]] = {name: [] for name in ranks}
    results: Results = {}
    for number in range(rounds + 1):
        for name, one in ranks.items():
            elapsed, results[name] = one.step()
            if number:  # the first one allocates
                seconds[name].append(elapsed)
    return {name: statistics.median(values) for name, values in seconds.items()}, results


def figures_of(seconds: Seconds, results: Results) -> dict[str, float]:
    """What is printed.

    Raises:
        SystemExit: vLLM-Omni's model gave another velocity than ours, so the times say nothing.
    """
    reference, figures = results["one"], {}
    for name, median in seconds.items():
        figures[f"{name}.step_s"] = median
        if name != "one":
            difference = float(abs(results[name] - reference).max() / abs(reference).max())
            figures[f"{name}.max_difference"] = difference
        if name.startswith("omni_"):
            if not difference <= AGREEMENT:
                raise SystemExit(
                    f"the comparison is void: {name} differs by {difference:.1e} of the largest "
                    f"value, more than {AGREEMENT:.0e}"
                )
            ours = name.removeprefix("omni_")
            figures[f"ours_over_omni.{ours}"] = seconds[ours] / median
        elif name != "one":
            figures[f"{name}.over_one"] = median / seconds["one"]
    return figures


def measure_memory(threads: int, weights: Path) -> dict[str, float]:
    """Bytes of the rank that takes most, by ranks of a ring, and their ratio to one rank's."""
    figures: dict[str, float] = {}
    os.environ[_MAPPED] = str(1 << 17)  # glibc's default, which by itself grows with what is freed
    for ring in RINGS:
        contender = Contender(Degrees(ring=ring), max(threads // ring, 1), FEW_LATENTS)
        with ExitStack() as stack:
            most = started(Ranks(contender, weights), stack).peak_bytes()
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
    parser.add_argument(
        "--vllm-omni", type=Path, metavar="PYTHON", help="an interpreter that has vLLM-Omni"
    )
    options = parser.parse_args()
    if options.threads % 2 or options.threads < 2:
        parser.error(f"--threads must be even, as two ranks share them, got {options.threads}")
    if options.vllm_omni is not None and not os.access(options.vllm_omni, os.X_OK):
        parser.error(f"--vllm-omni must be an interpreter, got {options.vllm_omni}")
    contenders = {"one": Contender(Degrees(), options.threads, LATENTS)}
    for name in options.layout:
        degrees = LAYOUTS[name]
        contenders[name] = Contender(degrees, options.threads // degrees.world, LATENTS)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        weights = folder / "weights.safetensors"
        write_random_weights(weights)
        omni = None
        if options.vllm_omni is not None:
            omni = Omni(options.vllm_omni, folder)
            omni.prepare(weights)
        figures = measure_steps(contenders, options.rounds, weights, omni)
        if options.memory:
            figures |= measure_memory(options.threads, weights)
    for key, value in figures.items():
        print(f"{key:40} {value:10.4g}")
    if options.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
