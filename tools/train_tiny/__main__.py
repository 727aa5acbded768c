"""Train the tiny Wan, stage by stage, on two CPU cores.

    ./pants run tools/train_tiny/__main__.py -- WORK [--stage NAME ...] [--steps N] [--export DIR]

``WORK`` keeps what is trained; an interrupted stage goes on from its last save. Without ``--stage``
all are run. ``--export`` writes the checkpoint, when all are finished.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from train_tiny.export import export
from train_tiny.recipe import STAGES, Recipe
from train_tiny.training import THREADS


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the tiny Wan on two CPU cores.")
    parser.add_argument("work", type=Path, help="folder that keeps what is trained")
    parser.add_argument("--stage", choices=STAGES, nargs="+", default=STAGES)
    parser.add_argument("--steps", type=int, help="stop each stage when it has made so many")
    parser.add_argument("--export", type=Path, metavar="DIR", help="a new or empty folder")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    recipe = Recipe(options.work)
    for stage in options.stage:
        recipe.run(stage, options.steps)
    if options.export is not None:
        export(recipe.result(), options.export)


if __name__ == "__main__":
    main()
