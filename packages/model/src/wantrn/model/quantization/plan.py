"""Which files a quantized transformer has, and what is in each, known before any data is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from wantrn.model.checkpoints.native import native_parameters, native_shapes
from wantrn.model.checkpoints.tensor_store import INDEX_SUFFIX, SAFETENSORS_SUFFIX
from wantrn.model.config import WanConfig
from wantrn.model.quantization.groups import QuantizationOptions, quantized_layers
from wantrn.model.quantization.source import LayerSource
from wantrn.model.quantization.state import layer_shapes, weight_name
from wantrn.model.quantization.tensor_file import TensorSpec

STEM = "fp8_channels"
INDEX = STEM + INDEX_SUFFIX


@dataclass(frozen=True)
class FilePlan:
    """One file: a block of the transformer, or all that is outside of blocks."""

    name: str
    layers: tuple[str, ...]  # in FP8, ``blocks.0.self_attention.qkv``
    parameters: tuple[str, ...]  # as they are, native names

    def specs(self, source: LayerSource) -> dict[str, TensorSpec]:
        """Every tensor of the file."""
        shapes = native_shapes(source.config)
        specs: dict[str, TensorSpec] = {
            name: (source.dtype(name), shapes[name]) for name in self.parameters
        }
        for layer in self.layers:
            specs |= layer_shapes(layer, shapes[weight_name(layer)])
        return specs

    def source_bytes(self, source: LayerSource) -> int:
        """What there is to read for this file."""
        names = (*self.parameters, *map(weight_name, self.layers))
        return sum(map(source.nbytes, names))


def plan_files(config: WanConfig, options: QuantizationOptions) -> tuple[FilePlan, ...]:
    """One file for what is outside of blocks, then one for each block."""
    layers = quantized_layers(config, options.groups)
    replaced = {weight_name(layer) for layer in layers}
    parameters = [name for name in native_parameters(config) if name not in replaced]
    blocks = [f"blocks.{index}." for index in range(config.num_layers)]
    count = 1 + len(blocks)
    return (
        FilePlan(
            _file_name(1, count),
            (),
            tuple(name for name in parameters if not name.startswith("blocks.")),
        ),
        *(
            FilePlan(
                _file_name(number, count),
                tuple(layer for layer in layers if layer.startswith(block)),
                tuple(name for name in parameters if name.startswith(block)),
            )
            for number, block in enumerate(blocks, start=2)
        ),
    )


def index_text(plans: tuple[FilePlan, ...], source: LayerSource) -> str:
    """The index that joins the files, as diffusers and transformers have it."""
    entries = sorted(_entries(plans, source))
    return json.dumps({"metadata": {}, "weight_map": dict(entries)}, indent=2) + "\n"


def _entries(plans: tuple[FilePlan, ...], source: LayerSource) -> Iterator[tuple[str, str]]:
    for plan in plans:
        for name in plan.specs(source):
            yield name, plan.name


def _file_name(number: int, count: int) -> str:
    return f"{STEM}-{number:05}-of-{count:05}{SAFETENSORS_SUFFIX}"
