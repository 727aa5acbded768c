"""The losses of all stages: a picture, and whether the first ones come out again.

    ./pants run tools/train_tiny/losses.py -- WORK --picture FILE.png
    ./pants run tools/train_tiny/losses.py -- WORK --record
    ./pants run tools/train_tiny/losses.py -- WORK --check frames base

``--record`` writes ``first_losses.json`` beside this file. ``--check`` trains the first steps of
the named stages anew and compares with it; a stage needs those before it in ``WORK``, but
``frames`` needs nothing.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch

from train_tiny.recipe import TRAINED, Recipe
from train_tiny.training import THREADS

FIRST = 200
TOLERANCE = 1e-4
RECORD = Path(__file__).resolve().parent / "first_losses.json"

_SMOOTH = 50  # steps


def losses(work: Path, stage: str) -> list[float]:
    """Of all steps that ``stage`` has made."""
    found: list[float] = json.loads((work / f"{stage}.losses.json").read_text())
    return found


def record(work: Path) -> None:
    """Write the first losses of all stages."""
    found = {stage: losses(work, stage)[:FIRST] for stage in TRAINED}
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(values)}" for name, values in found.items()
    )
    RECORD.write_text("{\n" + lines + "\n}\n")


def check(work: Path, stage: str) -> float:
    """The largest difference of the first losses, made anew, from the recorded ones."""
    with tempfile.TemporaryDirectory() as scratch:
        found = Recipe(work).rehearse(stage, FIRST, Path(scratch))
    return float(np.abs(np.subtract(found, json.loads(RECORD.read_text())[stage])).max())


def draw(work: Path, picture: Path) -> None:
    """A plot for each stage."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(TRAINED), figsize=(14, 3.2), layout="constrained")
    for axis, stage in zip(axes, TRAINED, strict=True):
        values = np.array(losses(work, stage))
        smooth = np.convolve(values, np.ones(_SMOOTH) / _SMOOTH, mode="valid")
        axis.plot(values, color="0.8", linewidth=0.5)
        axis.plot(np.arange(len(smooth)) + _SMOOTH / 2, smooth, linewidth=1.5)
        axis.set(title=stage, xlabel="step", yscale="log")
        axis.grid(True, which="both", alpha=0.3)
    axes[0].set_ylabel("loss (grey), and its mean over 50 steps")
    figure.savefig(picture, dpi=120)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description="Look at the losses of the recipe, or check them.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--picture", type=Path, metavar="FILE.png")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--check", choices=TRAINED, nargs="+", default=())
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    if options.record:
        record(options.work)
    if options.picture is not None:
        draw(options.work, options.picture)
    differences = {stage: check(options.work, stage) for stage in options.check}
    for stage, difference in differences.items():
        print(f"{stage}: {FIRST} losses within {difference:.1e} of the recorded ones")
    if any(difference > TOLERANCE for difference in differences.values()):
        raise SystemExit(f"the bar is {TOLERANCE}")


if __name__ == "__main__":
    main()
