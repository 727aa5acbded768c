"""H.264 in an MP4 file, by PyAV."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
from av.video.reformatter import ColorRange, Colorspace

from wantrn.model.errors import RequestError

# x264's scale of constant quality; 18 is taken for visually lossless.
_CRF = "18"
# With x264's "macroblock tree", the same frames became another file in 15 of 80 runs where four
# were encoded at once (PyAV 18.1), and never without it. The same seed is to have the same bits.
_X264 = "mbtree=0"
# ITU-T H.273: the code of BT.709 for primaries and transfer
_BT709 = 1


def check_mp4(size: tuple[int, int] | None) -> None:
    """Refuse a ``(width, height)`` that chroma at half resolution cannot hold, or no encoder."""
    if size is not None and (size[0] % 2 or size[1] % 2):
        raise RequestError(
            "size", f"{size[0]}x{size[1]} is not allowed in an .mp4; its sides must be even"
        )
    try:
        av.codec.Codec("libx264", "w")
    except av.codec.codec.UnknownCodecError as error:
        raise RequestError(
            "output", "this PyAV has no H.264 encoder (libx264); .gif and folders work"
        ) from error


def write_mp4(
    path: Path, frames: npt.NDArray[np.uint8], fps: int, metadata: Mapping[str, Any]
) -> None:
    """``metadata`` goes, as JSON, into the comment tag, and its prompt into the title tag."""
    # by a clock that has every frame's end exactly, or the file is said to be a little shorter
    container_options = {"movflags": "+faststart", "movie_timescale": str(1000 * fps)}
    with av.open(str(path), "w", format="mp4", options=container_options) as container:
        container.metadata["comment"] = json.dumps(metadata, ensure_ascii=False)
        if "prompt" in metadata:
            container.metadata["title"] = str(metadata["prompt"])
        options = {"crf": _CRF, "x264-params": _X264}
        stream = container.add_stream("libx264", rate=fps, options=options)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        context = stream.codec_context
        context.color_range = ColorRange.MPEG
        context.colorspace = Colorspace.ITU709
        context.color_primaries = context.color_trc = _BT709
        for pixels in frames:
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            container.mux(stream.encode(_to_yuv(frame)))
        container.mux(stream.encode(None))


def _to_yuv(frame: av.VideoFrame) -> av.VideoFrame:
    return frame.reformat(
        format="yuv420p",
        src_color_range=ColorRange.JPEG,
        dst_colorspace=Colorspace.ITU709,
        dst_color_range=ColorRange.MPEG,
    )


def read_mp4(path: Path) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
    """Frames [F, H, W, 3] and the comment tag's metadata. Raises ``KeyError`` without the tag."""
    with av.open(str(path)) as container:
        metadata = json.loads(container.metadata["comment"])
        return _decoded(container), metadata


def read_mp4_frames(path: Path) -> npt.NDArray[np.uint8]:
    """Frames [F, H, W, 3] of a file that anybody may have written. Raises ``ValueError`` on one
    without a video."""
    with av.open(str(path)) as container:
        return _decoded(container)


def _decoded(container: av.container.InputContainer) -> npt.NDArray[np.uint8]:
    if not container.streams.video:
        raise ValueError("it has no video stream")
    return np.stack(
        [
            frame.reformat(format="rgb24", dst_color_range=ColorRange.JPEG).to_ndarray()
            for frame in container.decode(video=0)
        ]
    )
