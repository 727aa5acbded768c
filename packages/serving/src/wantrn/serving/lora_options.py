"""The options ``--lora``, ``--lora-high`` and ``--lora-low``: files, each with a scale."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

LORA_OPTIONS = ("lora", "lora_high", "lora_low")


def add_lora_options(parser: argparse.ArgumentParser) -> None:
    """Add them to the parser of a command; what each gives is a list of (path, scale)."""
    add = parser.add_argument_group(
        "LoRA",
        "Files in safetensors, in the dialects of diffusers (and PEFT's folders), the original "
        "release, ComfyUI and kohya; SCALE is a factor of its effect (default: 1). Each option may "
        "be given several times, and all add up.",
    ).add_argument
    option: dict[str, Any] = {
        "metavar": "FILE[=SCALE]",
        "type": _lora,
        "action": "append",
        "default": [],
    }
    add("--lora", help="for all experts", **option)
    add("--lora-high", help="for the high-noise expert alone, of a model with two", **option)
    add("--lora-low", help="for the low-noise expert alone, of a model with two", **option)


def _lora(value: str) -> tuple[Path, float]:
    path, separator, scale = value.rpartition("=")
    if not separator or value.endswith(".safetensors"):
        return Path(value), 1.0
    try:
        return Path(path), float(scale)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{scale!r}, after =, is no number") from None
