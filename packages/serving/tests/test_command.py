"""The command as a user meets it: in a process of its own, with the model that comes with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import av
import pytest

from wantrn.model.info import DTYPES as MODEL_DTYPES
from wantrn.model.quantization import LIMITS as MODEL_LIMITS
from wantrn.model.quantization import Group
from wantrn.model.schedulers import SCHEDULER_NAMES
from wantrn.serving import cli


def environment() -> dict[str, str]:
    """Ours, with this process's modules wherever they came from."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "wantrn.serving.cli", *arguments]


def test_a_prompt_becomes_an_mp4(tmp_path: Path) -> None:
    output = tmp_path / "ball.mp4"
    arguments = command(
        "generate", "a red ball rolls to the right", "--output", str(output), "--size", "64x96"
    )
    arguments += ["--frames", "9", "--fps", "12", "--steps", "3", "--threads", "1"]
    run = subprocess.run(arguments, env=environment(), capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout == f"{output}\n"
    with av.open(str(output)) as container:
        stream = container.streams.video[0]
        size = (stream.codec_context.width, stream.codec_context.height)
        assert (stream.frames, size) == (9, (64, 96))
        assert stream.average_rate == 12
        metadata = json.loads(container.metadata["comment"])
    assert list(tmp_path.iterdir()) == [output]

    shown = dict(line.split(maxsplit=1) for line in run.stderr.splitlines() if "  " in line)
    assert "No --model is given: this is a tiny one" in run.stderr
    assert "coloured shapes that move" in run.stderr
    assert shown["prompt"] == metadata["prompt"] == "a red ball rolls to the right"
    assert int(shown["seed"]) == metadata["seed"]
    assert (shown["size"], shown["steps"], shown["output"]) == ("64x96", "3", str(output))
    assert shown["dtype"] == metadata["dtype"] == "float32"
    assert "3/3" in run.stderr
    for stage in ("load", "text and noise", "denoise", "decode", "write"):
        assert f"{stage} " in run.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_a_signal_stops_the_run_cleanly(tmp_path: Path, number: int, status: int) -> None:
    arguments = command("generate", "x", "--output", str(tmp_path / "x.mp4"), "--steps", "1000")
    arguments += ["--size", "64x64", "--frames", "5", "--threads", "1"]
    with subprocess.Popen(
        arguments,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # whoever runs the tests in the background has SIGINT ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stderr is not None
        seen = b""
        while b"denoising" not in seen:
            chunk = os.read(process.stderr.fileno(), 4096)
            assert chunk, seen.decode()
            seen += chunk
        process.send_signal(number)
        stdout, stderr = process.communicate()
    assert process.returncode == status
    assert stdout == b""
    assert stderr.decode().splitlines()[-1] == "wantrn generate: stopped"
    assert b"Traceback" not in stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["generate", "--help"],
        ["generate", "x", "--size", "1"],
        ["quantize", "-h"],
        ["version"],
    ],
    ids=" ".join,
)
def test_nothing_heavy_is_imported_for_a_short_answer(arguments: list[str]) -> None:
    program = (
        "import sys\n"
        "from wantrn.serving.cli import main\n"
        "try:\n"
        f"    main({arguments!r})\n"
        "except SystemExit:\n"
        "    pass\n"
        "heavy = {'torch', 'diffusers', 'transformers', 'numpy', 'PIL'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr


def test_the_choices_are_those_of_the_model() -> None:
    assert cli.SCHEDULERS == SCHEDULER_NAMES
    assert tuple(MODEL_DTYPES) == cli.DTYPES
    assert tuple(group.value for group in Group) == cli.GROUPS
    assert cli.LIMITS == MODEL_LIMITS


def test_version_names_what_a_report_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert shown["torch"].startswith("2.")
    assert shown["python"].startswith("3.")
    ours = {"wantrn-serving", "wantrn-model", "wantrn-kernels", "wantrn-tiny"}
    assert ours | {"diffusers", "transformers"} < set(shown)
