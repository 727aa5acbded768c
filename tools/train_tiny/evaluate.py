"""What a checkpoint can do in the tiny world, judged by the pixels.

    ./pants run tools/train_tiny/evaluate.py -- [MODEL] [--steps N] [--strip FILE.png] [--json]

Without MODEL it is that of the wheel ``wantrn-tiny``. All scenes are of colours, shapes and motions
that no clip of the training has together. Prints how many of 40 captions come out in their colour
and with their motion, how well a given first frame is kept and moved in 10 videos, and the
autoencoder's PSNR. ``--strip`` draws some of the videos, five frames of each.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from tqdm import tqdm

from train_tiny.captions import caption, held_out_words
from train_tiny.judge import Seen, see
from train_tiny.training import step_generator
from train_tiny.world import Words, draw_scene, render
from wantrn.model.info import read_model_info
from wantrn.model.media import to_uint8
from wantrn.model.pipeline import WanPipeline
from wantrn.model.quality import Frames, psnr
from wantrn.model.settings import VideoRequest, resolve
from wantrn.model.vae import VideoAutoencoder
from wantrn.serving.frame_rows import chosen_frames
from wantrn.tiny import CHECKPOINT

CAPTIONS = 40
FIRST_FRAMES = 10
CLIPS = 32  # for the autoencoder


@dataclass(frozen=True, eq=False)
class Video:
    """One that was asked for, made, and looked at."""

    words: Words
    caption: str
    frames: Frames
    seen: Seen
    first_frame: Frames | None = None  # of one frame, that it was given

    @property
    def right(self) -> bool:
        """Whether colour and motion are those of the caption."""
        return (self.seen.colour, self.seen.motion) == (self.words.colour, self.words.motion)

    @property
    def first_frame_psnr(self) -> float:
        """dB; of a video that was given a first frame."""
        assert self.first_frame is not None
        return psnr(self.frames[:1], self.first_frame)


def asked(count: int) -> list[tuple[Words, str]]:
    """What is asked for: always the same scenes, and a caption of each."""
    generator, words = step_generator("asked", 0), held_out_words()
    order = torch.randperm(len(words), generator=generator)[:count].tolist()
    return [(words[index], caption(words[index], generator)) for index in order]


def text_to_video(pipeline: WanPipeline, steps: int | None = None) -> Iterator[Video]:
    """A video of each of ``CAPTIONS`` captions."""
    for seed, (words, said) in enumerate(asked(CAPTIONS)):
        frames = _make(pipeline, VideoRequest(said, seed=seed, steps=steps))
        yield Video(words, said, frames, see(frames))


def image_to_video(pipeline: WanPipeline, steps: int | None = None) -> Iterator[Video]:
    """A video from each of ``FIRST_FRAMES`` first frames."""
    for seed, (words, said) in enumerate(asked(CAPTIONS + FIRST_FRAMES)[CAPTIONS:]):
        first = levels(render([draw_scene(words, step_generator("frame", seed))]))[0, :1]
        request = VideoRequest(said, image=Image.fromarray(first[0]), seed=seed, steps=steps)
        frames = _make(pipeline, request)
        yield Video(words, said, frames, see(frames), first)


def autoencoder_psnr(vae: VideoAutoencoder) -> list[float]:
    """dB, of each of ``CLIPS`` clips."""
    found = []
    for seed, (words, _) in enumerate(asked(CLIPS)):
        clip = render([draw_scene(words, step_generator("clip", seed))])
        found.append(psnr(to_uint8(vae.decode(vae.encode(clip))), levels(clip)[0]))
    return found


def levels(clips: torch.Tensor) -> npt.NDArray[np.uint8]:
    """``[B, 3, F, height, width]`` in [-1, 1] to uint8 ``[B, F, height, width, 3]``."""
    return to_uint8((clips.permute(0, 2, 3, 4, 1) + 1) / 2)


def strip(videos: Sequence[Video], frames: int = 5) -> Image.Image:
    """A row of ``frames`` even frames of each video, at twice their size."""
    rows = []
    for video in videos:
        chosen = chosen_frames(len(video.frames), frames)
        rows.append(np.concatenate(list(video.frames[chosen]), axis=1))
    picture = Image.fromarray(np.concatenate(rows))
    return picture.resize((2 * picture.width, 2 * picture.height), Image.Resampling.NEAREST)


def _make(pipeline: WanPipeline, request: VideoRequest) -> Frames:
    run = pipeline.prepare(resolve(request, pipeline.info))
    while not run.done:
        pipeline.step(run)
    return to_uint8(pipeline.decode(run))


def main() -> None:
    parser = argparse.ArgumentParser(description="Judge a checkpoint of the tiny world.")
    parser.add_argument("model", type=Path, nargs="?", default=CHECKPOINT)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--strip", type=Path, metavar="FILE.png")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    pipeline = WanPipeline.load(options.model, read_model_info(options.model).defaults.dtype)
    videos = list(tqdm(text_to_video(pipeline, options.steps), total=CAPTIONS, desc="captions"))
    given = list(
        tqdm(image_to_video(pipeline, options.steps), total=FIRST_FRAMES, desc="first frames")
    )
    quality = autoencoder_psnr(VideoAutoencoder.load(options.model / "vae"))
    for video in videos + given:
        print(f"{'right' if video.right else 'WRONG'}  {video.caption:60} {video.seen}")
    figures = {
        "captions_right": sum(video.right for video in videos),
        "captions": len(videos),
        "first_frames_moved": sum(video.right for video in given),
        "first_frames": len(given),
        "first_frame_psnr_least": min(video.first_frame_psnr for video in given),
        "autoencoder_psnr_mean": float(np.mean(quality)),
        "autoencoder_psnr_median": float(np.median(quality)),
        "autoencoder_psnr_least": min(quality),
    }
    for name, value in figures.items():
        print(f"{name:26} {value:g}")
    if options.strip is not None:
        strip(videos[:8] + given[:2]).save(options.strip)
    if options.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
