"""Large checkpoints without large memory, and the memory that quantizing one takes, for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from wantrn.model.checkpoints.diffusers import canonical_shapes
from wantrn.model.config import WanConfig
from wantrn.model.quantization.tensor_file import write_tensors

_NOISE = 1 << 20  # values drawn; large tensors repeat them with another factor for each row


def write_synthetic(folder: Path, config: WanConfig, dtype: torch.dtype, seed: int = 0) -> Path:
    """A diffusers transformer in one file, written a tensor at a time. Returns ``folder``.

    Rows of a matrix differ in magnitude, as those of trained weights do.
    """
    folder.mkdir(parents=True)
    shapes = canonical_shapes(config)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(_NOISE, generator=generator)

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for name, shape in shapes.items():
            tensor = torch.empty(shape, dtype=dtype)
            flat = tensor.reshape(shape[0], -1)
            sizes = torch.randn(shape[0], generator=generator).exp_()
            for row in range(shape[0]):
                start = int(torch.randint(_NOISE - flat.shape[1], (1,), generator=generator))
                flat[row] = noise[start : start + flat.shape[1]] * sizes[row] * 0.02
            yield name, tensor

    write_tensors(
        folder / "diffusion_pytorch_model.safetensors",
        {name: (dtype, shape) for name, shape in shapes.items()},
        tensors(),
    )
    (folder / "config.json").write_text(json.dumps(config.to_diffusers()))
    return folder


# VmHWM and not ru_maxrss, which a new process inherits from the one that started it.
_PROGRAM = """
import re, sys
from pathlib import Path
import torch
from wantrn.model.quantization import QuantizationOptions
from wantrn.model.quantization.run import QuantizationJob
def kib(key):
    return int(re.search(key + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
torch.set_num_threads(1)
warm, source, destination = map(Path, sys.argv[1:])
QuantizationJob.plan(warm, Path(f"{destination}-warm"), QuantizationOptions()).run(lambda n: None)
Path("/proc/self/clear_refs").write_text("5")  # the peak is from now on
before = kib("VmRSS")
QuantizationJob.plan(source, destination, QuantizationOptions()).run(lambda n: None)
print((kib("VmHWM") - before) * 1024)
"""


def peak_memory(warm: Path, source: Path, destination: Path) -> int:
    """Bytes by which the peak resident memory of a new process grows while it quantizes ``source``.

    Pages of mapped files count. Before that it quantizes ``warm``, a small one, so that only the
    size of the work counts and not the libraries.
    """
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(warm), str(source), str(destination)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return int(run.stdout)
