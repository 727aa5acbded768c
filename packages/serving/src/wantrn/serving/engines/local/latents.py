"""The latents of a run whose steps are all made, in a file."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from wantrn.model.media.atomic import draft_of

_NAME = "latents"


def write_latents(file: Path, latents: Tensor) -> None:
    """Keep ``latents``; the file is there only once it is whole. ``OSError`` if it cannot be."""
    with draft_of(file) as draft:
        try:
            save_file({_NAME: latents.contiguous()}, draft)
        except SafetensorError as error:  # what it makes of a full disk
            raise OSError(str(error)) from error


def read_latents(file: Path | None) -> Tensor | None:
    """What ``write_latents`` kept, if it did."""
    return None if file is None or not file.exists() else load_file(file)[_NAME]
