"""The environment with vLLM-Omni: where it is, and how tests run programs of theirs in it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from wantrn.serving.modules import source_roots

VARIABLE = "WANTRN_OMNI_PYTHON"

needs_omni = pytest.mark.skipif(
    not os.environ.get(VARIABLE),
    reason=f"needs vLLM-Omni: `python3.11 tools/omni_env.py DIR` makes an environment with it; "
    f"then set {VARIABLE}=DIR/bin/python",
)


def run_with_omni(program: str, question: Any, folder: Path, seconds: float) -> Any:
    """Run a program of this folder there, on the sources that this process has.

    Args:
        program: a file, which is given the path of ``question`` as JSON, and the path where it has
            to leave its answer as JSON.
        question: for the program.
        folder: for these files, and the program's home.
        seconds: after which it is ended, with all processes that it started.

    Returns:
        The answer.
    """
    asked, answered, log = folder / "question.json", folder / "answer.json", folder / "log.txt"
    asked.write_text(json.dumps(question))
    command = [
        os.environ[VARIABLE],
        str(Path(__file__).parent / program),
        str(asked),
        str(answered),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=_variables(folder),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end_session(process)
    assert status == 0, f"{program} ended with {status}:\n{log.read_text()[-8000:]}"
    return json.loads(answered.read_text())


def _variables(folder: Path) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONPATH": source_roots(),
        "HOME": str(folder),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
    }


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """End whatever still runs of it: its own processes end with it, if it ends by itself."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
