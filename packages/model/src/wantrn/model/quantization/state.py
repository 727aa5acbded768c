"""A transformer's parameters with some layers in FP8: names, shapes, and the pure function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from wantrn.kernels.ops.channel_linear import MX_BLOCK
from wantrn.kernels.row_mx import VALUES, ChannelWeight, kernel_layout
from wantrn.model.checkpoints.key_maps import Shape
from wantrn.model.checkpoints.native import native_parameters, native_shapes
from wantrn.model.config import WanConfig
from wantrn.model.errors import CheckpointError
from wantrn.model.quantization.groups import Group, QuantizationOptions, quantized_layers
from wantrn.model.quantization.layer import FP8, LayerError, quantize_layer
from wantrn.model.sharding import Shard, Sharding

LayerErrors = Mapping[str, LayerError | None]
"""By layer, in the order of the model; None where the checkpoint's own codes were kept."""


@dataclass(frozen=True)
class QuantizedState:
    """Every parameter of a transformer, each in exactly one of the two mappings.

    Attributes:
        layers: the FP8 weights, by layer: ``blocks.0.self_attention.qkv``
        parameters: all others (their biases too) by native name, as ``WanTransformer`` has them
        errors: what rounding has cost each layer
    """

    layers: Mapping[str, ChannelWeight]
    parameters: Mapping[str, Tensor]
    errors: LayerErrors


def codes_name(layer: str) -> str:
    """What the codes ``[H/4, I, 4]`` of ``layer`` are called in files."""
    return f"{layer}.codes"


def scales_name(layer: str) -> str:
    """What the scales ``[1, I]`` of ``layer`` are called in files."""
    return f"{layer}.scales"


def weight_name(layer: str) -> str:
    """The native name of the weight that ``layer`` has where it is not quantized."""
    return f"{layer}.weight"


def layer_shapes(layer: str, weight: Shape) -> dict[str, tuple[torch.dtype, Shape]]:
    """Names, dtypes and shapes of the tensors that take the place of ``weight``, ``[I, H]``."""
    rows, width = weight
    return {
        codes_name(layer): (FP8, kernel_layout(rows, width)),
        scales_name(layer): (torch.float32, (1, rows)),
    }


def check_widths(config: WanConfig, options: QuantizationOptions, where: object) -> None:
    """``CheckpointError`` naming ``where`` and the first layer whose H is no multiple of 4."""
    shapes = native_shapes(config)
    for layer in quantized_layers(config, options.groups):
        width = shapes[weight_name(layer)][1]
        if width % VALUES:
            raise CheckpointError(
                f"{where}: {layer} contracts {width} values; "
                f"in FP8 it must be a multiple of {VALUES}"
            )


def check_shard(config: WanConfig, groups: frozenset[Group], shard: Shard) -> None:
    """``ValueError`` naming what ``shard`` cannot cut: a field of ``config``, or a layer of
    ``groups``, which are in FP8.

    The input of a layer that is cut by input features is quantized on the rank, in blocks of MX.
    """
    shard.check(config)
    if shard.tp == 1:
        return
    shapes = native_shapes(config)
    for layer in quantized_layers(config, groups):
        width = shapes[weight_name(layer)][1]
        by_row = shard.sharding(weight_name(layer)) is Sharding.ROW
        if by_row and width % (shard.tp * MX_BLOCK):
            raise ValueError(
                f"shard: tp = {shard.tp} leaves {layer} {width // shard.tp} of its {width} input "
                f"features; in FP8 a rank has a multiple of {MX_BLOCK}"
            )


def quantize_state(
    state: Mapping[str, Tensor], config: WanConfig, options: QuantizationOptions
) -> QuantizedState:
    """The native parameters ``state`` with the layers of ``options`` in FP8.

    Parameters that are not quantized are the very tensors of ``state``.

    Raises:
        ValueError: ``state`` has not the names and shapes of ``config``, or a width is no
            multiple of 4 (``CheckpointError``).
    """
    _check(state, native_shapes(config))
    check_widths(config, options, "state")
    layers = quantized_layers(config, options.groups)
    sources = native_parameters(config)
    made = {
        layer: quantize_layer(
            state[weight_name(layer)], options.limit, len(sources[weight_name(layer)].sources)
        )
        for layer in layers
    }
    replaced = {weight_name(layer) for layer in layers}
    return QuantizedState(
        layers={layer: result.weight for layer, result in made.items()},
        parameters={name: state[name] for name in sources if name not in replaced},
        errors={layer: result.error for layer, result in made.items()},
    )


def _check(state: Mapping[str, Tensor], shapes: Mapping[str, Shape]) -> None:
    for name in (*shapes, *state):
        if name not in state or name not in shapes:
            raise ValueError(f"state: {name} is {'missing' if name in shapes else 'unexpected'}")
        if tuple(state[name].shape) != shapes[name]:
            raise ValueError(
                f"state: {name} has shape {list(state[name].shape)}, expected {list(shapes[name])}"
            )
