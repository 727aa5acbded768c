"""The memory that the quantizer takes on a checkpoint of full width, and whether it repeats itself.

    python packages/model/tests/quantize_memory.py FOLDER [--layers N] [--dtype bfloat16|float32]

Makes a checkpoint in the new folder FOLDER, with the dimensions of A14B but for its layers,
quantizes it twice in processes of their own, and deletes the folder. Three layers in bf16 are
2.6 GB, one in fp32 is 2.3 GB.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
from pathlib import Path

import torch
from checkpoint_files import SMALL
from quantize_files import peak_memory, write_synthetic

from wantrn.model.config import WanConfig


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the quantizer's memory.")
    parser.add_argument("folder", type=Path, help="a new folder")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True)
    try:
        measure(folder, WanConfig(num_layers=options.layers), getattr(torch, options.dtype))
    finally:
        shutil.rmtree(folder)


def measure(folder: Path, config: WanConfig, dtype: torch.dtype) -> None:
    """Print the size of the checkpoint, the peaks of two runs, and whether their bytes agree."""
    warm = write_synthetic(folder / "warm", SMALL, torch.float32)
    source = write_synthetic(folder / "source", config, dtype)
    size = sum(path.stat().st_size for path in source.iterdir())
    print(f"checkpoint: {size / 1e9:.2f} GB of {dtype}", flush=True)
    digests = []
    for name in ("first", "second"):
        peak = peak_memory(warm, source, folder / name)
        print(f"{name} run: memory grew by {peak / 1e9:.3f} GB at most", flush=True)
        digests.append(digest(folder / name))
        shutil.rmtree(folder / name)
    print(f"same bytes: {digests[0] == digests[1]}")


def digest(folder: Path) -> dict[str, str]:
    """SHA-256 of every file by name."""
    digests = {}
    for path in sorted(folder.iterdir()):
        with open(path, "rb") as stream:
            digests[path.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return digests


if __name__ == "__main__":
    main()
