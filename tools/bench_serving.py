"""Time a job of `wantrn serve` against `wantrn generate`, and against vLLM-Omni's own server.

    ./pants run tools/bench_serving.py -- [--json] [--rounds N] [--steps N] [--size WxH]
        [--frames N] [--threads N] [--vllm-omni PYTHON [--layout one tp2 ...]]
        [--faults] [--markdown FILE]

The checkpoint is made for the run: two experts of 4 layers and 4 heads of 128, a text encoder and
an autoencoder that are tiny, all random. A step of 128x128 and 9 frames then takes about a tenth of
a second on two threads, so that what a server adds can be seen. All make the same video, in
float32, with the same threads in all, and take turns until ``--rounds`` are done; what is compared
are the medians.

`wantrn generate` prints the seconds of its stages, to a tenth; those of denoising and decoding are
the unit. They are compared with the same stages of a job, as the server tells them, and with the
time of the whole job as a client sees it: from before the request is sent until the video is
completed, and from when it is first seen in progress. These have the text encoder and the writing
of the file in them, which the unit has not.

``--vllm-omni`` adds vLLM-Omni's own server with its own pipeline on 1 rank and on 2, and ours on
its engine where ``PYTHON`` has our plugin: ``tools/omni_env.py`` makes such an environment. All
servers of a layout run at once, but those whose turn it is not are stopped: an idle server of
vLLM-Omni takes a part of a processor.

``--faults`` runs each act of a list against vLLM-Omni's server and ours, and prints what was seen.
``--markdown`` writes that as a page.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import bench_serving_faults as faults
import numpy as np
import torch
from bench_serving_page import as_text, page
from numpy.typing import NDArray
from served_video import Asked, write_checkpoint
from video_frames import mean_difference, read_frames
from video_servers import (
    LAYOUTS,
    Job,
    Launch,
    Layout,
    Place,
    Server,
    ServerError,
    download,
    run_job,
    running,
)

from wantrn.serving.modules import MODULES

AGREEMENT = 0.05
"""The most that two servers' videos may differ on average, on [0, 1]: their solvers round the
timesteps in different ways, and the files are lossy."""


def stages_of(text: str) -> dict[str, float]:
    """Seconds by stage of what `wantrn generate` has written to standard error.

    Raises:
        ValueError: it has not said how long it took.
    """
    found = re.findall(r"^done in [0-9.]+ s: (.*)$", text, re.MULTILINE)
    if not found:
        raise ValueError(f"wantrn generate has named no stages: {text[-1000:]}")
    parts = (re.fullmatch(r"(.+) ([0-9.]+) s", part) for part in found[-1].split(", "))
    return {part[1]: float(part[2]) for part in parts if part is not None}


def making(stages: Mapping[str, float]) -> float:
    """Seconds of denoising and decoding."""
    return stages["denoise"] + stages["decode"]


def generate(place: Place, asked: Asked, threads: int) -> dict[str, float]:
    """Seconds by stage of the command, as it says them."""
    output = place.folder / "generated.mp4"
    command = [sys.executable, "-m", "wantrn.serving.cli", "generate", *asked.arguments()]
    command += ["--model", str(place.model), "--threads", str(threads), "--output", str(output)]
    variables = os.environ | {"PYTHONPATH": MODULES, "OMP_NUM_THREADS": str(threads)}
    ended = subprocess.run(command, env=variables, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"wantrn generate has failed: {ended.stderr[-2000:]}")
    return stages_of(ended.stderr)


def completed(server: Server, asked: Asked, before: Sequence[Job] = ()) -> Job:
    """A job that made its video, as those ``before`` did; else the program ends."""
    job = run_job(server, asked.form(), min((job.total for job in before), default=0.0))
    if job.video["status"] != "completed":
        raise SystemExit(f"{server.url} has failed: {job.video['error']}\n{server.said()}")
    return job


def warmed_up(server: Server, asked: Asked) -> Job:
    """The second job of a server: the first one allocates."""
    completed(server, asked)
    return completed(server, asked)


def against_generate(place: Place, asked: Asked, threads: int, rounds: int) -> dict[str, float]:
    """A job of our server over the command's own denoising and decoding."""
    commands: list[dict[str, float]] = []
    jobs: list[Job] = []
    with running(place.ours("serve", LAYOUTS["one"], threads), place.folder / "serve") as server:
        before = warmed_up(server, asked)
        for _ in range(rounds):
            with server.stopped():
                commands.append(generate(place, asked, threads))
            jobs.append(completed(server, asked, [before, *jobs]))
    return over_generate(commands, jobs)


def over_generate(commands: list[dict[str, float]], jobs: list[Job]) -> dict[str, float]:
    """Medians, in seconds, and their ratios to denoising and decoding of the command."""
    unit = statistics.median(making(stages) for stages in commands)
    stages = statistics.median(making(job.video["stage_seconds"]) for job in jobs)
    running_s = statistics.median(job.running for job in jobs)
    total = statistics.median(job.total for job in jobs)
    return {
        "generate.denoise_decode_s": unit,
        "serve.denoise_decode_s": stages,
        "serve.running_s": running_s,
        "serve.job_s": total,
        "serve.denoise_decode_over_generate": stages / unit,
        "serve.running_over_generate": running_s / unit,
        "serve.job_over_generate": total / unit,
    }


def against_stock(
    place: Place, asked: Asked, name: str, python: Path, threads: int, rounds: int
) -> dict[str, float]:
    """Jobs of our servers over those of vLLM-Omni's, in one layout; ``threads`` are those of all.

    Raises:
        SystemExit: they make another video than ours, so the times say nothing.
    """
    layout = LAYOUTS[name]
    each = threads // layout.ranks
    launches = {
        "serve": place.ours(f"serve_{name}", layout, each),
        "stock": place.stock(f"stock_{name}", python, layout, each),
    }
    if has_our_plugin(python):
        launches["serve_on_omni"] = place.ours_on_omni(f"on_omni_{name}", python, layout, each)
    jobs: dict[str, list[Job]] = {key: [] for key in launches}
    videos: dict[str, Path] = {}
    with ExitStack() as stack:
        servers: dict[str, Server] = {}
        before: dict[str, Job] = {}
        for key, launch in launches.items():
            server = stack.enter_context(running(launch, place.folder / f"{key}_{name}"))
            before[key] = warmed_up(server, asked)
            videos[key] = download(server, before[key].video["id"], place.folder)
            stack.enter_context(server.stopped())
            servers[key] = server
        for _ in range(rounds):
            for key, server in servers.items():
                with server.awake():
                    jobs[key].append(completed(server, asked, [before[key], *jobs[key]]))
    seconds = {key: [job.total for job in those] for key, those in jobs.items()}
    return over_stock(name, seconds, {key: read_frames(path) for key, path in videos.items()})


def over_stock(
    name: str, seconds: Mapping[str, list[float]], frames: Mapping[str, NDArray[np.uint8]]
) -> dict[str, float]:
    """Medians, in seconds, and their ratios to vLLM-Omni's; and how much the videos differ.

    Raises:
        SystemExit: they differ too much.
    """
    medians = {key: statistics.median(values) for key, values in seconds.items()}
    figures = {f"{name}.{key}.job_s": median for key, median in medians.items()}
    for key, median in medians.items():
        if key == "stock":
            continue
        difference = mean_difference(frames[key], frames["stock"])
        figures[f"{name}.{key}.mean_difference"] = difference
        if not difference <= AGREEMENT:
            raise SystemExit(
                f"the comparison is void: in {name}, the videos of {key} and stock differ by "
                f"{difference:.3f} on average, more than {AGREEMENT}"
            )
        figures[f"{name}.{key}_over_stock"] = median / medians["stock"]
    return figures


def has_our_plugin(python: Path) -> bool:
    """Whether an environment's vLLM-Omni would find our plugin."""
    code = (
        "from importlib.metadata import entry_points as e; "
        "print('wantrn' in e(group='vllm_omni.platform_plugins').names)"
    )
    line = [str(python), "-I", "-c", code]
    answer = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    return answer.strip() == "True"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add = parser.add_argument
    add("--json", action="store_true", help="print one flat object as last line")
    add("--rounds", type=int, default=5, help="0 measures no times")
    add("--steps", type=int, default=Asked.steps)
    add("--size", default=Asked.size, metavar="WxH")
    add("--frames", type=int, default=Asked.frames)
    add("--threads", type=int, default=max(torch.get_num_threads(), 2), help="of all ranks")
    add("--vllm-omni", type=Path, metavar="PYTHON", help="an interpreter that has vLLM-Omni")
    add("--layout", nargs="+", choices=LAYOUTS, default=list(LAYOUTS), help="with --vllm-omni")
    add("--faults", action="store_true", help="what both servers do; needs --vllm-omni")
    add("--markdown", type=Path, metavar="FILE", help="a page of what --faults has seen")
    options = parser.parse_args(arguments)
    if options.rounds < 0:
        parser.error(f"--rounds must be at least 0, got {options.rounds}")
    if options.vllm_omni is not None and not os.access(options.vllm_omni, os.X_OK):
        parser.error(f"--vllm-omni must be an interpreter, got {options.vllm_omni}")
    if options.vllm_omni is not None and options.threads % 2:
        parser.error(f"--threads must be even, as two ranks share them, got {options.threads}")
    if options.faults and options.vllm_omni is None:
        parser.error("--faults needs --vllm-omni")
    if options.markdown is not None and not options.faults:
        parser.error("--markdown needs --faults")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    asked = Asked(size=options.size, frames=options.frames, steps=options.steps)
    with tempfile.TemporaryDirectory() as temporary:
        place = Place(Path(temporary) / "model", Path(temporary))
        write_checkpoint(place.model)
        figures = measure(place, asked, options) if options.rounds else {}
        columns = see_faults(place, asked, options) if options.faults else {}
    if columns:
        print(as_text(columns))
    if options.markdown is not None:
        options.markdown.write_text(page(columns, figures, os.cpu_count() or 1))
    for key, value in figures.items():
        print(f"{key:42} {value:10.4g}")
    if options.json:
        print(json.dumps(figures))


def measure(place: Place, asked: Asked, options: argparse.Namespace) -> dict[str, float]:
    """All times and ratios."""
    figures = against_generate(place, asked, options.threads, options.rounds)
    if options.vllm_omni is None:
        return figures
    for name in options.layout:
        say(f"{name}: vLLM-Omni's server and ours")
        try:
            figures |= against_stock(
                place, asked, name, options.vllm_omni, options.threads, options.rounds
            )
        except ServerError as error:
            raise SystemExit(f"{name}: {error}") from error
    return figures


def see_faults(
    place: Place, asked: Asked, options: argparse.Namespace
) -> dict[str, dict[str, str]]:
    """What was seen of vLLM-Omni's server and of ours."""

    def stock(name: str, layout: Layout) -> Launch:
        each = options.threads // layout.ranks
        return place.stock(name, options.vllm_omni, layout, each)

    def ours(name: str, layout: Layout) -> Launch:
        return place.ours(name, layout, options.threads // layout.ranks)

    return {
        "vLLM-Omni 0.30": faults.see(faults.Subject(place, asked, stock, "faults_stock")),
        "`wantrn serve`": faults.see(faults.Subject(place, asked, ours, "faults_ours")),
    }


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
