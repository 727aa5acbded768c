"""``wantrn quantize``: a checkpoint with its transformers in FP8."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from wantrn.model.quantization import (
    QuantizationOptions,
    parse_group,
    report_text,
)
from wantrn.model.quantization.run import QuantizationJob


@dataclass(frozen=True)
class QuantizeOptions:
    """The command's arguments."""

    source: Path
    destination: Path
    groups: tuple[str, ...]
    limit: float
    threads: int | None = None


def quantize(options: QuantizeOptions) -> int:
    """Make the destination and print the error of every layer; return the exit status.

    Raises ``RequestError`` and ``CheckpointError``; nothing is then at the destination that was not
    there before. Work that was begun is taken up from the folder ``destination.partial``.
    """
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    job = QuantizationJob.plan(
        options.source,
        options.destination,
        QuantizationOptions(frozenset(map(parse_group, options.groups)), options.limit),
    )
    if job.finished:
        print(f"{job.destination} is finished already; nothing is written", file=sys.stderr)
        print(report_text(job.run(lambda done: None)))
        return 0
    # a log is not the place for ten lines a second
    interval = 0.1 if sys.stderr.isatty() else 10.0
    with tqdm(
        total=job.source_bytes,
        desc="quantizing",
        unit="B",
        unit_scale=True,
        file=sys.stderr,
        mininterval=interval,
    ) as bar:

        def progress(done: int) -> None:
            bar.update(done)

        errors = job.run(progress)
    print(report_text(errors))
    return 0
