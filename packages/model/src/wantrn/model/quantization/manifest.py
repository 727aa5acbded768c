"""``quantization.json``: what a folder of FP8 weights was made from, and how far it is."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from wantrn.model.errors import CheckpointError
from wantrn.model.json_file import read_json
from wantrn.model.quantization.groups import Group, QuantizationOptions, parse_group
from wantrn.model.quantization.layer import LayerError
from wantrn.model.quantization.state import LayerErrors

MANIFEST = "quantization.json"
FORMAT = "wantrn-fp8-channels-1"
"""Codes in kernel layout and a scale for each output channel; the number counts its revisions."""


@dataclass(frozen=True)
class Manifest:
    """What identifies a quantization, and the errors of the layers in each finished file."""

    fingerprint: str  # of the checkpoint, see ``LayerSource.fingerprint``
    options: QuantizationOptions
    files: Mapping[str, LayerErrors] = field(default_factory=dict)  # by file name

    @property
    def errors(self) -> LayerErrors:
        """Of all finished files."""
        return {layer: error for file in self.files.values() for layer, error in file.items()}

    def same_work(self, other: Manifest) -> bool:
        """Whether both have the same source and options, however far they are."""
        return (self.fingerprint, self.options) == (other.fingerprint, other.options)

    def with_file(self, name: str, errors: LayerErrors) -> Manifest:
        """This and one more finished file."""
        return replace(self, files=MappingProxyType({**self.files, name: errors}))


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Replace the manifest in ``folder`` at once: a reader sees the old one or the new one."""
    value = {
        "format": FORMAT,
        "fingerprint": manifest.fingerprint,
        "groups": [group.value for group in Group if group in manifest.options.groups],
        "limit": manifest.options.limit,
        "files": {
            name: {layer: error and asdict(error) for layer, error in errors.items()}
            for name, errors in manifest.files.items()
        },
    }
    replace_text(folder / MANIFEST, json.dumps(value, indent=2) + "\n")


def read_manifest(folder: Path) -> Manifest:
    """The manifest in ``folder``; ``CheckpointError`` naming the file if it is missing or bad."""
    file = folder / MANIFEST
    value = read_json(file)
    if value.get("format") != FORMAT:
        raise CheckpointError(f"{file}: format is {value.get('format')!r}, expected {FORMAT!r}")
    try:
        return Manifest(
            fingerprint=str(value["fingerprint"]),
            options=QuantizationOptions(
                frozenset(map(parse_group, value["groups"])), float(value["limit"])
            ),
            files=MappingProxyType(
                {
                    name: {layer: _error(entry) for layer, entry in layers.items()}
                    for name, layers in value["files"].items()
                }
            ),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error!r}") from error


def replace_text(file: Path, text: str) -> None:
    """Write ``file`` under a temporary name and rename it when all of it is on the disk."""
    new = file.with_name(file.name + ".partial")
    with open(new, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(new, file)


def _error(entry: Any) -> LayerError | None:
    if entry is None:
        return None
    return LayerError(float(entry["per_channel"]), float(entry["per_tensor"]))
