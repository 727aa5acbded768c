"""Whether the transformers of a checkpoint are in FP8, from their manifests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wantrn.model.errors import CheckpointError
from wantrn.model.json_file import read_json
from wantrn.model.quantization.expert import CONFIG
from wantrn.model.quantization.groups import QuantizationOptions
from wantrn.model.quantization.manifest import MANIFEST, read_manifest
from wantrn.model.quantization.plan import STEM


def is_quantized(folder: Path) -> bool:
    """Whether ``folder`` is what ``wantrn quantize`` has written, or some of it."""
    return (folder / MANIFEST).exists() or any(folder.glob(f"{STEM}*"))


def read_quantization(experts: Sequence[Path]) -> QuantizationOptions | None:
    """What of all ``experts`` is in FP8; None where none is.

    Raises ``CheckpointError`` naming the file on a manifest that is missing, bad or of another
    version, and naming the folder on an expert that differs from the first.
    """
    found = [_options(folder) if is_quantized(folder) else None for folder in experts]
    for folder, options in zip(experts, found, strict=True):
        if options != found[0]:
            raise CheckpointError(
                f"{folder}: {_words(options)}, but {experts[0].name} {_words(found[0])}; "
                "all transformers of a checkpoint are quantized alike"
            )
    return found[0]


def _options(folder: Path) -> QuantizationOptions:
    read_json(folder / CONFIG)  # else the shapes of the tensors would be asked for the dimensions
    return read_manifest(folder).options


def _words(options: QuantizationOptions | None) -> str:
    return "is not in FP8" if options is None else f"is in FP8 ({options.describe()})"
