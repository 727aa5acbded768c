"""What is left of the engine of vLLM-Omni when its process is killed with a video in work.

A program for the environment with vLLM-Omni; see ``omni_environment``. The question is a checkpoint
folder and a folder for files; the answer is the signal that ended the engine's process, how many
ranks it had, and what still runs some seconds later.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from wantrn.model.settings import VideoRequest, resolve
from wantrn.serving.engines.omni.engine import OmniEngine
from wantrn.serving.engines.options import EngineOptions
from wantrn.serving.engines.protocol import Ready, Stepped, Work
from wantrn.serving.rank_options import RankOptions

SECONDS = 30.0


async def be_killed(question: dict[str, Any], pids: Path) -> None:
    """Be an engine until the first step is made."""
    options = EngineOptions(model=Path(question["model"]), threads=1, ranks=RankOptions(tp=2))
    engine = OmniEngine(options)
    request = VideoRequest(prompt="a cat", size=(48, 48), frames=5, steps=900, seed=5)
    await engine.start()
    async for event in engine.events():
        if isinstance(event, Ready):
            output = Path(question["folder"]) / "video.mp4"
            await engine.submit(Work("killed", resolve(request, engine.info), output))
        if isinstance(event, Stepped):
            pids.write_text(json.dumps(engine.pids))
            os.kill(os.getpid(), signal.SIGKILL)


def runs(pid: int) -> bool:
    """Whether there is such a process, other than one that has ended and was not waited for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def watch(question: dict[str, Any]) -> dict[str, Any]:
    pids = Path(question["folder"]) / "pids.json"
    command = [sys.executable, __file__, sys.argv[1], str(pids), "as the engine"]
    status = subprocess.run(command).returncode
    ranks = json.loads(pids.read_text())
    deadline = time.monotonic() + SECONDS
    while (left := [pid for pid in ranks if runs(pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return {"status": status, "ranks": len(ranks), "left": left}


def main() -> None:
    question = json.loads(Path(sys.argv[1]).read_text())
    if len(sys.argv) > 3:
        asyncio.run(be_killed(question, Path(sys.argv[2])))
    else:
        Path(sys.argv[2]).write_text(json.dumps(watch(question)))


if __name__ == "__main__":
    main()
