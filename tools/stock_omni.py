"""vLLM-Omni's own server on a CPU, with nothing of ours in it: a contender of ``bench_serving.py``.

``VLLM_PLUGINS`` names the plugin of ``omni_cpu`` and vLLM-Omni's own, so that ours is left out
where it is installed.
"""

from __future__ import annotations

import os
from pathlib import Path

from omni_cpu import PLUGIN, THREADS

_OWN = "vllm_omni_register_models"


def command(python: Path, model: Path, port: int, *options: str) -> list[str]:
    """The command line of its server, in fp32 and without a compiler."""
    line = [str(python), "-m", "vllm_omni.entrypoints.cli.main", "serve", str(model), "--omni"]
    line += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--dtype", "float32"]
    return [*line, *options]


def variables(plugin: Path, folder: Path, threads: int) -> dict[str, str]:
    """The environment of its server: with ``plugin``, in ``folder``, ``threads`` of each rank."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONPATH": os.pathsep.join([str(plugin), str(Path(__file__).resolve().parent)]),
        "HOME": str(folder),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(threads),
        THREADS: str(threads),
        "VLLM_PLUGINS": f"{PLUGIN},{_OWN}",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_OMNI_SERVER_STORAGE__PATH": str(folder / "storage"),
    }
