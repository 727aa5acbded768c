"""From files to FP8 weights and the other parameters: every tensor, or an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from wantrn.kernels.row_mx import VALUES, ChannelWeight
from wantrn.model.checkpoints import TensorStore
from wantrn.model.checkpoints.source import PLAIN_DTYPES
from wantrn.model.checkpoints.values import convert
from wantrn.model.config import WanConfig
from wantrn.model.errors import CheckpointError
from wantrn.model.quantization.groups import QuantizationOptions, quantized_layers
from wantrn.model.quantization.headers import QuantizedHeaders
from wantrn.model.quantization.layer import has_nan
from wantrn.model.quantization.source import LayerSource
from wantrn.model.quantization.state import (
    QuantizedState,
    check_shard,
    check_widths,
    codes_name,
    scales_name,
    weight_name,
)
from wantrn.model.sharding import WHOLE, Shard, slices_of
from wantrn.model.slices import Slice


def load_quantized(
    folder: Path, parameter_dtype: Callable[[str], torch.dtype], shard: Shard = WHOLE
) -> tuple[WanConfig, QuantizedState]:
    """A transformer that ``wantrn quantize`` has written, with its configuration.

    Names, shapes and dtypes are checked before any data is read; no tensor shares memory with a
    file.

    Args:
        folder: with ``config.json``, ``quantization.json``, an index and its files.
        parameter_dtype: the dtype of each parameter that is not FP8, by native name.
        shard: what of each layer and parameter the state has (see ``sharding``), and only that is
            read. A part of a layer's input features has the scales of the whole layer.

    Raises:
        CheckpointError: naming file and keys, if anything is missing, unexpected, misshaped, of
            another dtype, not finite, or a scale that is not positive.
        ValueError: ``parameter_dtype`` asks for what is not plain floating point, or ``shard``
            cannot cut this transformer.
    """
    headers = QuantizedHeaders.open(folder)
    headers.check()
    check_shard(headers.config, headers.manifest.options.groups, shard)
    store = headers.store
    state = QuantizedState(
        layers={layer: _read_layer(store, layer, shard) for layer in headers.layers},
        parameters={
            name: _read_parameter(store, name, parameter_dtype(name), shard)
            for name in headers.parameters
        },
        errors=headers.manifest.errors,
    )
    return headers.config, state


def quantize_store(
    store: TensorStore,
    config: WanConfig,
    options: QuantizationOptions,
    parameter_dtype: Callable[[str], torch.dtype],
) -> QuantizedState:
    """A checkpoint in any format, in FP8 in memory: what ``load_quantized`` would read, unwritten.

    The codes of a ComfyUI FP8 file are kept as they are, with its scale for every channel.

    Raises:
        CheckpointError: naming file and keys; see ``LayerSource``.
        ValueError: ``parameter_dtype`` asks for what is not plain floating point.
    """
    check_widths(config, options, store.source)
    source = LayerSource.open(store, config)
    made = {
        layer: source.quantize(layer, options.limit)
        for layer in quantized_layers(config, options.groups)
    }
    replaced = set(map(weight_name, made))

    def parameters() -> Iterator[tuple[str, Tensor]]:
        for name in source.parameters:
            if name not in replaced:
                dtype = _plain(name, parameter_dtype(name))
                where = f"{store.source}: {name}"
                # a copy, so that nothing of the mapped file is kept
                yield name, convert(source.read(name).clone(), dtype, where)

    return QuantizedState(
        layers={layer: result.weight for layer, result in made.items()},
        parameters=dict(parameters()),
        errors={layer: result.error for layer, result in made.items()},
    )


def _read_layer(store: TensorStore, layer: str, shard: Shard) -> ChannelWeight:
    depth, width, values = store.info(codes_name(layer)).shape  # [H/4, I, 4] of a weight [I, H]
    of_weight = slices_of((width, depth * values), shard.sharding(weight_name(layer)), shard)
    codes = _load(store, codes_name(layer), tuple(map(_slice_of_codes, of_weight)))
    channels = tuple(replace(part, axis=1) for part in of_weight if part.axis == 0)
    scales = _load(store, scales_name(layer), channels)
    if has_nan(codes):
        raise CheckpointError(f"{_where(store, codes_name(layer))}: holds NaN")
    if not bool((torch.isfinite(scales) & (scales > 0)).all()):
        raise CheckpointError(
            f"{_where(store, scales_name(layer))}: a scale is finite and positive, one here is not"
        )
    return ChannelWeight(codes, scales)


def _slice_of_codes(part: Slice) -> Slice:
    """What a slice of a weight ``[I, H]`` is of its codes ``[H/4, I, 4]``."""
    if part.axis == 0:
        return replace(part, axis=1)
    return Slice(0, part.begin // VALUES, part.end // VALUES, part.size // VALUES)


def _read_parameter(store: TensorStore, name: str, dtype: torch.dtype, shard: Shard) -> Tensor:
    slices = slices_of(store.info(name).shape, shard.sharding(name), shard)
    return convert(_load(store, name, slices), _plain(name, dtype), _where(store, name))


def _load(store: TensorStore, name: str, slices: tuple[Slice, ...]) -> Tensor:
    """The ``slices``, joined; the whole tensor if there are none."""
    if not slices:
        return store.load(name)
    parts = [store.load(name, part) for part in slices]
    if len(parts) == 1:
        return parts[0]
    # bytes, since not every operator knows float8
    joined = torch.cat([part.view(torch.uint8) for part in parts], slices[0].axis)
    return joined.view(parts[0].dtype)


def _plain(name: str, dtype: torch.dtype) -> torch.dtype:
    if dtype not in PLAIN_DTYPES:
        allowed = ", ".join(map(str, PLAIN_DTYPES))
        raise ValueError(f"dtype of {name} is {dtype}; allowed are {allowed}")
    return dtype


def _where(store: TensorStore, name: str) -> str:
    return f"{store.info(name).file}: {name}"
