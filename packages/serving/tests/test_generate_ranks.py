"""``wantrn generate`` on several ranks: the real command, and how it ends when a rank does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from server_process import processes

from wantrn.model.info import ModelKind
from wantrn.model.media import read_video
from wantrn.model.tiny import write_tiny_checkpoint
from wantrn.parallel.launch import run_local
from wantrn.serving import local_ranks
from wantrn.serving.cli import main

SHORT = ["--size", "32x32", "--frames", "5", "--steps", "2", "--seed", "7"]
LONG = ["--size", "64x64", "--frames", "17", "--steps", "500", "--seed", "7"]
PROCESS = [sys.executable, "-m", "wantrn.serving.cli"]
# for other processes, whichever folder they are in
MODULES = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
LIMIT = 240.0  # seconds, for anything that a test waits for


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """With a prompt, and with a model whose weights are random."""
    model = write_tiny_checkpoint(tmp_path_factory.mktemp("model"), ModelKind.T2V)
    return ["generate", "x", "--model", str(model)]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, for the command within this process and the ranks that it starts."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def on_one(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> NDArray[np.uint8]:
    """The video that one rank makes."""
    folder = tmp_path_factory.mktemp("one") / "video"
    assert main([*command, *SHORT, "--output", str(folder)]) == 0
    return read_video(folder)[0]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": MODULES}


def test_ranks_make_the_video_of_one(
    command: list[str],
    place: Path,
    on_one: NDArray[np.uint8],
    capfd: pytest.CaptureFixture[str],
) -> None:
    ranks = ["--ring", "2", "--context", "all_gather", "--batch-guidance", "--tile-vae"]
    assert main([*command, *SHORT, *ranks, "--output", "video"]) == 0
    told = capfd.readouterr()
    assert told.out == "video\n"
    assert told.err.count("done in") == 1
    frames, _, metadata = read_video(place / "video")
    assert np.abs(frames.astype(int) - on_one).max() <= 1
    assert f"ranks {metadata['ranks']}" in re.sub(" +", " ", told.err)


def test_branches_of_guidance_on_two_ranks_have_the_bits_of_one(
    command: list[str], place: Path, on_one: NDArray[np.uint8]
) -> None:
    assert main([*command, *SHORT, "--cfg-parallel", "--output", "video"]) == 0
    assert np.array_equal(read_video(place / "video")[0], on_one)


def test_torchrun(command: list[str], place: Path) -> None:
    """Without a seed, so the ranks have to agree on one."""
    output = place / "video"
    torchrun = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
    ]
    ranks = ["--tp", "2", "--sequence-sharding", "--replicate-cross-attention", "--vae-parallel"]
    generate = [*PROCESS[1:], *command, *SHORT[:-2], *ranks, "--output", str(output)]
    done = subprocess.run(
        [*torchrun, *generate], env=environment(), capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr
    frames, _, metadata = read_video(output)
    assert f"ranks {metadata['ranks']}" in re.sub(" +", " ", done.stderr)
    again = [*command, *SHORT[:-1], str(metadata["seed"])]
    assert main([*again, "--output", "again"]) == 0
    assert np.abs(read_video(place / "again")[0].astype(int) - frames).max() <= 1


@contextmanager
def running(arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    """The command, once its first step has begun."""
    process = subprocess.Popen(
        arguments,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("denoising"):
                break
        yield process
    finally:
        process.kill()
        process.communicate(timeout=LIMIT)


def ranks_of(process: subprocess.Popen[str]) -> list[int]:
    """The children of a process."""
    return [pid for pid, (parent, _) in processes().items() if parent == process.pid]


def runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_signal_stops_all_ranks(command: list[str], tmp_path: Path) -> None:
    arguments = [*PROCESS, *command, *LONG, "--ring", "2", "--output", str(tmp_path / "x.mp4")]
    with running(arguments) as process:
        ranks = ranks_of(process)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=LIMIT)
        assert process.returncode == 128 + signal.SIGTERM
        assert "Traceback" not in errors
        assert len(ranks) == 2 and not any(map(runs, ranks))
    assert list(tmp_path.iterdir()) == []


FAILING = """
import os, signal, sys
from pathlib import Path
from wantrn.model.pipeline import WanPipeline
from wantrn.serving import local_ranks

branches = WanPipeline._branches

def failing(self, run, *rest):
    if run.step_index == 1:
        Path(__file__).with_name("rank-" + os.environ["RANK"]).write_text(str(os.getpid()))
        if os.environ["RANK"] == "1":
            {failure}
    return branches(self, run, *rest)

WanPipeline._branches = failing
sys.exit(local_ranks.main())
"""


@pytest.mark.parametrize(
    ("ranks", "failure", "status", "told"),
    [
        ("--cfg-parallel", "raise ArithmeticError('mine')", 1, "ArithmeticError: mine"),
        (
            "--tp 2 --ring 2",
            "os.kill(os.getpid(), signal.SIGKILL)",
            137,
            "rank 1 of 4 was ended by SIGKILL",
        ),
    ],
)
def test_a_rank_that_fails_or_is_killed_ends_the_run(
    ranks: str,
    failure: str,
    status: int,
    told: str,
    command: list[str],
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    script = place / "failing.py"
    script.write_text(FAILING.format(failure=failure))

    def with_script(world: int, of_rank: list[str], **options: Any) -> int:
        return run_local(world, [sys.executable, str(script), of_rank[-1]], **options)

    monkeypatch.setattr(local_ranks, "run_local", with_script)
    assert main([*command, *LONG, *ranks.split(), "--output", "x.mp4"]) == status
    errors = capfd.readouterr().err
    assert errors.count(told) == errors.count("rank 1 of") == 1
    assert errors.count("Traceback") == ("raise" in failure)
    reached = sorted(place.glob("rank-*"))
    assert place / "rank-1" in reached
    assert not any(runs(int(path.read_text())) for path in reached)
    assert set(place.iterdir()) == {script, *reached}


BAD = [
    (["--tp", "0"], "--tp: must be at least 1, got 0"),
    (["--tp", "4"], "--tp: must divide the 2 heads, got 4"),
    (["--ulysses", "4"], "--ulysses: must divide the 2 heads"),
    (["--sequence-sharding"], "--sequence-sharding: needs tp of at least 2"),
    (["--cfg-parallel", "--batch-guidance"], "--batch-guidance: cannot be with cfg_parallel"),
    (["--replicate-cross-attention"], "--replicate-cross-attention: needs tp"),
    (["--context", "all_gather"], "--context: needs ring"),
    (["--strict-tokens"], "--strict-tokens: needs ring or ulysses"),
    (["--vae-parallel"], "--vae-parallel: needs tp or ring or ulysses or cfg_parallel"),
    (
        ["--ring", "3", "--strict-tokens", *SHORT],
        "--strict-tokens: Sequence length 8 is not divisible by cp_size 3",
    ),
]


@pytest.mark.parametrize(("arguments", "fault"), BAD, ids=lambda value: str(value))
def test_what_ranks_cannot_do_is_refused(
    arguments: list[str],
    fault: str,
    command: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "x.mp4"
    assert main([*command, *arguments, "--output", str(output)]) == 2
    assert re.search(fault, capsys.readouterr().err)
    assert not output.exists()
