"""Processes on this machine that make one video together."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wantrn.parallel.launch import run_local
from wantrn.serving.lora_options import LORA_OPTIONS
from wantrn.serving.modules import MODULES

if TYPE_CHECKING:
    from wantrn.serving.generate import GenerateOptions


def run_on_local_ranks(options: GenerateOptions) -> int:
    """Start as many ranks as ``options`` ask for, each of which runs them; the exit status."""
    command = [sys.executable, "-m", "wantrn.serving.local_ranks", _to_json(options)]
    return run_local(options.ranks.degrees().world, command, environment={"PYTHONPATH": MODULES})


def _to_json(options: GenerateOptions) -> str:
    return json.dumps(asdict(options), default=str)


def _from_json(text: str) -> GenerateOptions:
    from wantrn.serving.generate import GenerateOptions
    from wantrn.serving.rank_options import RankOptions

    values: dict[str, Any] = json.loads(text)
    for name in ("output", "model", "image"):
        values[name] = None if values[name] is None else Path(values[name])
    values["size"] = None if values["size"] is None else tuple(values["size"])
    for name in LORA_OPTIONS:
        values[name] = tuple((Path(path), scale) for path, scale in values[name])
    return GenerateOptions(**{**values, "ranks": RankOptions(**values["ranks"])})


def main() -> int:
    """One rank: what the process that started it has put in the first argument."""
    from wantrn.serving.cli import status_of
    from wantrn.serving.generate import generate

    options = _from_json(sys.argv[1])
    return status_of("wantrn generate", lambda: generate(options), says_stopped=False)


if __name__ == "__main__":
    sys.exit(main())
