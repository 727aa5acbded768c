"""What the files of a quantized transformer say of themselves, beside what they should say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wantrn.model.checkpoints import TensorStore
from wantrn.model.checkpoints.key_maps import KeyDifferences, Shape, compare_shapes
from wantrn.model.checkpoints.native import native_shapes
from wantrn.model.checkpoints.source import PLAIN_DTYPES
from wantrn.model.config import WanConfig
from wantrn.model.dit_config import read_dit_config
from wantrn.model.errors import CheckpointError
from wantrn.model.quantization.groups import quantized_layers
from wantrn.model.quantization.manifest import MANIFEST, Manifest, read_manifest
from wantrn.model.quantization.state import (
    check_widths,
    layer_shapes,
    scales_name,
    weight_name,
)
from wantrn.model.quantization.tensor_file import TensorSpec

FORMAT_NAME = "fp8-channels"
"""Beside the names of the formats that a checkpoint can be quantized from."""


@dataclass(frozen=True)
class QuantizedHeaders:
    """A folder that ``wantrn quantize`` has written: no data is read.

    Attributes:
        folder: of one transformer
        layers: in FP8, ``blocks.0.self_attention.qkv``
        quantized: dtype and shape that each tensor of these layers has, by its name in the files
        parameters: shape that each other parameter has, by native name
    """

    folder: Path
    manifest: Manifest
    config: WanConfig
    store: TensorStore
    layers: tuple[str, ...]
    quantized: Mapping[str, TensorSpec]
    parameters: Mapping[str, Shape]

    @classmethod
    def open(cls, folder: Path) -> QuantizedHeaders:
        """Raises ``CheckpointError`` naming the file that is missing or cannot be read."""
        manifest = read_manifest(folder)
        config = read_dit_config(folder)
        check_widths(config, manifest.options, folder)
        layers = quantized_layers(config, manifest.options.groups)
        parameters = native_shapes(config)
        quantized: dict[str, TensorSpec] = {}
        for layer in layers:
            quantized |= layer_shapes(layer, parameters.pop(weight_name(layer)))
        store = TensorStore.open(folder)
        return cls(folder, manifest, config, store, layers, quantized, parameters)

    @property
    def scales(self) -> frozenset[str]:
        """The names of all scales."""
        return frozenset(map(scales_name, self.layers))

    def differences(self) -> KeyDifferences:
        """By names and shapes. A weight without its scales, say, is a missing tensor."""
        shapes = {name: shape for name, (_, shape) in self.quantized.items()}
        return compare_shapes({**self.parameters, **shapes}, self.store.shapes)

    def problems(self) -> tuple[str, ...]:
        """What else is wrong: dtypes, and a manifest that speaks of other layers."""
        return (*self._dtype_problems(), *self._manifest_problems())

    def check(self) -> None:
        """Raise ``CheckpointError`` naming files and keys, unless all fits."""
        self.differences().check(self.folder)
        for problem in self.problems():
            raise CheckpointError(problem)

    def _dtype_problems(self) -> list[str]:
        problems = []
        for name, info in self.store.tensors.items():
            found = f"{info.file}: {name}: is {info.dtype}"
            if name in self.quantized and info.dtype != self.quantized[name][0]:
                problems.append(f"{found}, expected {self.quantized[name][0]}")
            if name in self.parameters and info.dtype not in PLAIN_DTYPES:
                problems.append(f"{found}, expected plain floating point")
        return problems

    def _manifest_problems(self) -> list[str]:
        differing = sorted(self.manifest.errors.keys() ^ set(self.layers))
        return [
            f"{self.folder / MANIFEST}: {'does not list' if layer in self.layers else 'lists'} "
            f"{layer}"
            for layer in differing
        ]
