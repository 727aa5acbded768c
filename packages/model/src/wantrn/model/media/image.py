"""Reading the picture that a video starts from."""

from __future__ import annotations

import struct
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from wantrn.model.errors import RequestError

# Pillow has readers that run other programs, or are seldom used and so seldom tested; a picture
# from elsewhere should not reach them.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")

_BACKGROUND = (255, 255, 255)


def read_image(path: Path) -> Image.Image:
    """An RGB picture, upright (its EXIF orientation is applied), on white where it is transparent.

    Of an animation, the first picture. 16-bit grey is brought to 8 bits. Raises ``RequestError``
    on ``image``, naming the file, when it is missing, no picture of ``FORMATS``, damaged, cut
    short, or so large that Pillow takes it for a decompression bomb.
    """
    if not path.is_file():
        reason = "is not a file" if path.exists() else "does not exist"
        raise RequestError("image", f"{path} {reason}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            warnings.filterwarnings("ignore", category=UserWarning)  # of odd EXIF entries
            with Image.open(path, formats=FORMATS) as image:
                image.load()
                return _flatten(ImageOps.exif_transpose(image))
    except UnidentifiedImageError as error:
        allowed = ", ".join(FORMATS)
        raise RequestError("image", f"{path} is not a picture (one of {allowed})") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        limit = Image.MAX_IMAGE_PIXELS
        raise RequestError("image", f"{path} has more than {limit} pixels") from error
    except (OSError, SyntaxError, ValueError, EOFError, struct.error) as error:
        raise RequestError("image", f"{path} cannot be read: {error}") from error


def cover(image: Image.Image, width: int, height: int) -> Image.Image:
    """The largest centred part of ``image`` with the shape of width x height, resized to it.

    It is scaled (Lanczos) until it covers the frame and cut evenly on both sides, in one operation,
    so that the cut is not rounded to whole pixels.
    """
    scale = max(width / image.width, height / image.height)
    left = max(0.0, (image.width - width / scale) / 2)
    top = max(0.0, (image.height - height / scale) / 2)
    box = (left, top, image.width - left, image.height - top)
    return image.resize((width, height), Image.Resampling.LANCZOS, box=box)


def to_tensor(image: Image.Image) -> torch.Tensor:
    """An RGB picture as [1, 3, 1, H, W] float32 in [-1, 1]: a video of one frame."""
    if image.mode != "RGB":
        raise ValueError(f"image must be RGB, got {image.mode}")
    pixels = torch.from_numpy(np.array(image))
    return (pixels.permute(2, 0, 1).float() / 127.5 - 1)[None, :, None]


def _flatten(image: Image.Image) -> Image.Image:
    """RGB, with transparent parts laid on white."""
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"its pixels are 32-bit numbers (mode {image.mode}) without a known range")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        background = Image.new("RGBA", image.size, (*_BACKGROUND, 255))
        image = Image.alpha_composite(background, image)
    return image.convert("RGB")
