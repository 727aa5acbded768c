"""Write a tiny Wan2.2 checkpoint with random weights, in diffusers' layout.

    ./pants run tools/make_tiny.py -- FOLDER [--kind t2v|i2v|ti2v] [--seed N]

`wantrn generate --model FOLDER` runs it; its pictures are noise. The one that draws, which `wantrn
generate` uses without a model, is trained by tools/train_tiny.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from wantrn.model.info import ModelKind
from wantrn.model.tiny import write_tiny_checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a tiny checkpoint with random weights.")
    parser.add_argument("folder", type=Path, help="a new or empty folder")
    parser.add_argument("--kind", choices=[kind.value for kind in ModelKind], default="t2v")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.folder.exists() and (not options.folder.is_dir() or any(options.folder.iterdir())):
        parser.error(f"{options.folder} is not an empty folder")
    print(write_tiny_checkpoint(options.folder, ModelKind(options.kind), options.seed))


if __name__ == "__main__":
    main()
