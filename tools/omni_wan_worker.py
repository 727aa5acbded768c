"""vLLM-Omni's own Wan DiT on CPU ranks: a contender of ``bench_parallel.py``, and its other end.

Each rank is a process of this file under the interpreter of an environment that has vLLM-Omni 0.30.
A line of JSON on its stdin is a `Task`, and a line on its stdout answers it: ``{"ready": true}``,
after a first step, or ``{"error": "..."}``. From then on each line asks for a guided step, and the
answer is ``{"seconds": s}``; rank 0 leaves the velocity in ``Task.velocity``. The end of stdin ends
the process. `OmniRanks` is the side that asks.

The platform is that of ``omni_cpu``; the model, its layers, its guidance and its collectives are
vLLM-Omni's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import IO, Any, TextIO

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from omni_cpu import PLUGIN
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class Work:
    """What all ranks need to know."""

    folder: str  # of the weights and their config.json, in diffusers' format
    inputs: str  # a file with noise [1, C, T, height, width], texts [2, 1, L, D], timestep [1]
    guidance: float
    degrees: dict[str, int]  # fields of vLLM-Omni's DiffusionParallelConfig
    world: int
    threads: int  # of each rank


@dataclass(frozen=True)
class Task:
    """What one rank needs to know."""

    work: Work
    velocity: str  # the file for the result
    rank: int
    port: int  # of the store at which the ranks meet, on the loopback address

    def line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, line: str) -> Task:
        fields = json.loads(line)
        return cls(**fields | {"work": Work(**fields["work"])})


class OmniError(Exception):
    """vLLM-Omni does not run this, for the reason given."""


class OmniRanks:
    """The ranks' processes, under the interpreter ``python``."""

    def __init__(self, python: Path, plugin: Path, work: Work) -> None:
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.velocity = plugin.with_name(f"velocity-{self.store.port}.safetensors")
        # -E: what this process finds its packages by is not for that environment
        command = [str(python), "-E", "-s", "-W", "ignore::FutureWarning", __file__, str(plugin)]
        variables = {"VLLM_PLUGINS": PLUGIN, "VLLM_LOGGING_LEVEL": "CRITICAL"}
        self.processes: list[tuple[subprocess.Popen[str], IO[str], IO[str]]] = []
        for rank in range(work.world):
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | variables,
            )
            assert process.stdin is not None and process.stdout is not None
            self.processes.append((process, process.stdin, process.stdout))
            task = Task(work, str(self.velocity), rank, self.store.port)
            tell(process.stdin, task.line())

    def wait(self) -> None:
        """Until all ranks are ready.

        Raises:
            OmniError: vLLM-Omni does not run this layout here.
        """
        self._answers()

    def step(self) -> tuple[float, NDArray[np.float32]]:
        """Seconds of the slowest rank for one step, and the velocity of rank 0."""
        for _, questions, _ in self.processes:
            tell(questions, "step")
        seconds = max(answer["seconds"] for answer in self._answers())
        return seconds, load_file(self.velocity)["velocity"].numpy()

    def _answers(self) -> list[dict[str, Any]]:
        """The next answer of each rank."""
        answers = []
        for process, _, lines in self.processes:
            line = lines.readline()
            if not line:
                raise OmniError(f"a rank ended with status {process.wait()}")
            answers.append(json.loads(line))
            if "error" in answers[-1]:
                raise OmniError(answers[-1]["error"])
        return answers

    def stop(self) -> None:
        """End the processes."""
        for _, questions, _ in self.processes:
            with suppress(BrokenPipeError):
                questions.close()
        for process, _, lines in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            lines.close()


def tell(questions: IO[str], line: str) -> None:
    """Send a line; that the process is gone shows in its missing answer."""
    with suppress(BrokenPipeError):
        print(line, file=questions, flush=True)


def omni(name: str) -> Any:
    """A module of vLLM-Omni's diffusion engine."""
    return import_module(f"vllm_omni.diffusion.{name}")


def weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """The parameters, by diffusers' names."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                yield name, file.get_tensor(name)


def init_ranks(work: Work, rank: int) -> Any:
    """vLLM-Omni's groups over the ranks, in a config that all that follows needs."""
    data, parallel_state = omni("data"), omni("distributed.parallel_state")
    parallel = data.DiffusionParallelConfig(**work.degrees)
    config = data.OmniDiffusionConfig(
        model_class_name="WanPipeline",
        dtype=torch.float32,
        parallel_config=parallel,
        num_gpus=work.world,
    )
    with forward_context(config):
        parallel_state.init_distributed_environment(work.world, rank)
        parallel_state.initialize_model_parallel(
            data_parallel_size=parallel.data_parallel_size,
            cfg_parallel_size=parallel.cfg_parallel_size,
            sequence_parallel_size=parallel.sequence_parallel_size,
            ulysses_degree=parallel.ulysses_degree,
            ring_degree=parallel.ring_degree,
            tensor_parallel_size=parallel.tensor_parallel_size,
        )
    return config


@contextmanager
def forward_context(config: Any) -> Iterator[Any]:
    """What a layer of vLLM-Omni looks up, as its workers set it around a request."""
    context = omni("forward_context")
    vllm_config = omni("vllm_config").create_diffusion_vllm_config(torch.device("cpu"), config)
    with context.set_forward_context(vllm_config, config):
        yield context.get_forward_context()


def load_model(folder: Path, config: Any) -> Any:
    """The DiT, this rank's shard of it."""
    create = omni("models.wan2_2.pipeline_wan2_2").create_transformer_from_config
    with omni("config").set_current_diffusion_config(config):
        model = create(json.loads((folder / "config.json").read_text()))
    names = {name for name, _ in model.named_parameters()}
    if missing := names - model.load_weights(weights(folder)):
        raise RuntimeError(f"no weights for {sorted(missing)}")
    for module in model.modules():
        if method := getattr(module, "quant_method", None):
            method.process_weights_after_loading(module)
    return model.eval().requires_grad_(False)


def guided_step(work: Work, config: Any, context: Any) -> Callable[[], Tensor]:
    """A step that gives the guided velocity on every rank."""
    guided = omni("distributed.cfg_parallel").CFGParallelMixin()
    guided.transformer = load_model(Path(work.folder), config)
    parallel = config.parallel_config
    if parallel.sequence_parallel_size > 1:
        plans = omni("distributed.sp_plan")
        omni("hooks.sequence_parallel").apply_sequence_parallel(
            guided.transformer,
            plans.SequenceParallelConfig(
                ulysses_degree=parallel.ulysses_degree, ring_degree=parallel.ring_degree
            ),
            plans.get_sp_plan_from_model(guided.transformer),
        )
        context.sp_plan_hooks_applied = True
    inputs = load_file(work.inputs)
    branches = [
        {
            "hidden_states": inputs["noise"],
            "timestep": inputs["timestep"],
            "encoder_hidden_states": text,
            "return_dict": False,
        }
        for text in inputs["texts"]
    ]

    def step() -> Tensor:
        velocity: Tensor = guided.predict_noise_maybe_with_cfg(
            True, work.guidance, *branches, cfg_normalize=False
        )
        return velocity

    return step


def serve(answers: TextIO) -> None:
    """Answer the lines of stdin."""
    task = Task.read(sys.stdin.readline())
    work = task.work
    store = TCPStore("127.0.0.1", task.port, is_master=False, timeout=TIMEOUT)
    dist.init_process_group(
        "gloo", store=store, rank=task.rank, world_size=work.world, timeout=TIMEOUT
    )
    config = init_ranks(work, task.rank)
    with torch.inference_mode(), forward_context(config) as context:
        step = guided_step(work, config, context)
        torch.set_num_threads(work.threads)
        step()  # the first one allocates
        answer(answers, {"ready": True})
        for _ in sys.stdin:
            start = time.perf_counter()
            velocity = step()
            seconds = time.perf_counter() - start
            if task.rank == 0:
                save_file({"velocity": velocity.contiguous()}, task.velocity)
            answer(answers, {"seconds": seconds})


def answer(answers: TextIO, value: dict[str, Any]) -> None:
    print(json.dumps(value), file=answers, flush=True)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM logs to stdout
    sys.path.append(sys.argv[1])
    try:
        serve(answers)
    except Exception as error:
        first = str(error).strip().partition("\n")[0].partition(". ")[0]
        answer(answers, {"error": f"{type(error).__name__}: {first}"})
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
