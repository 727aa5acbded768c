"""One of the ranks on which tools/ab.py has videos made: what to make is its arguments.

``CONTEXT`` (ring or all_gather), ``ASKED`` (``Asked.to_json``), and the folder that the first rank
writes a folder of PNG files to for each video: ``0``, ``1``, ...
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from ab_videos import Asked, Video, videos_of

from wantrn.model.execution import Execution
from wantrn.model.media import read_frames, write_video
from wantrn.model.parallelism import Parallelism
from wantrn.model.pipeline import WanPipeline
from wantrn.parallel import Degrees, Groups
from wantrn.parallel.attention import Strategy
from wantrn.parallel.launch import join_world, run_local
from wantrn.serving.modules import MODULES

DEGREES = Degrees(ring=2)


def on_two_ranks(asked: Asked, strategy: Strategy) -> Iterator[Video]:
    """The videos in fp32, made by two processes that share their tokens.

    Raises ``RuntimeError`` if these fail; they have said why.
    """
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", __name__, strategy.value, asked.to_json(), folder]
        status = run_local(DEGREES.world, command, environment={"PYTHONPATH": MODULES})
        if status != 0:
            raise RuntimeError(f"the ranks of {strategy.value} ended with status {status}")
        for number in range(len(asked.prompts) * asked.rounds):
            yield Video(read_frames(Path(folder, str(number))))


def main() -> None:
    strategy, asked, folder = Strategy(sys.argv[1]), Asked.from_json(sys.argv[2]), sys.argv[3]
    with join_world() as place:
        parallel = Parallelism(Groups.build(DEGREES), strategy)
        pipeline = WanPipeline.load(asked.model, torch.float32, Execution(parallel))
        for number, video in enumerate(videos_of(pipeline, asked)):
            if place.rank == 0:
                write_video(Path(folder, str(number)), video.frames, 1, {})


if __name__ == "__main__":
    main()
