"""A transformer whose blocks compute in FP8, from its quantized state or from files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from wantrn.kernels.ops.channel_linear import MX_BLOCK
from wantrn.model.config import WanConfig
from wantrn.model.errors import CheckpointError
from wantrn.model.parallelism import Parallelism
from wantrn.model.quantization import (
    Group,
    QuantizedState,
    load_quantized,
    quantized_layers,
)
from wantrn.model.quantization.state import check_shard, codes_name, scales_name
from wantrn.model.transformer import WanTransformer

DTYPE = torch.bfloat16
"""Of the residual stream and of what is not FP8: kernels with FP8 weights give bf16."""


def quantized_transformer(
    config: WanConfig, state: QuantizedState, parallel: Parallelism | None = None
) -> WanTransformer:
    """The transformer that computes with the FP8 weights of ``state``.

    The groups in FP8 are those whose layers ``state`` has, and become the model's
    ``quantized_groups``. The model's tensors are those of ``state``, not copies.

    Args:
        config: of the transformer.
        state: from ``quantize_state``, ``quantize_store`` or ``load_quantized``; parameters that
            are not FP8 have the dtypes of a bf16 model, ``WanTransformer.parameter_dtype``.
        parallel: of which ``state`` is this rank's shard.

    Raises:
        ValueError: a layer or parameter that is missing, unexpected, misshaped or of another
            dtype, by name; a width that MX cannot cut into blocks.
    """
    groups = _groups_of(config, state)
    parallel = Parallelism() if parallel is None else parallel
    _check_blocks(config, groups)
    check_shard(config, groups, parallel.shard)
    with torch.device("meta"):
        model = WanTransformer(config, groups, parallel)
    tensors = dict(state.parameters)
    for layer, weight in state.layers.items():
        tensors[codes_name(layer)] = weight.codes
        tensors[scales_name(layer)] = weight.scales
    _check(model, tensors)
    model.load_state_dict(tensors, strict=True, assign=True)
    return model.eval().requires_grad_(False)


def load_quantized_transformer(folder: Path, parallel: Parallelism | None = None) -> WanTransformer:
    """One expert from a folder that ``wantrn quantize`` has written, with every tensor checked.

    With ``parallel`` only this rank's shard of the parameters is read.

    Raises:
        CheckpointError: naming file and keys, see ``load_quantized``; or a width that MX cannot cut
            into blocks.
    """
    parallel = Parallelism() if parallel is None else parallel
    config, state = load_quantized(
        folder, lambda name: WanTransformer.parameter_dtype(name, DTYPE), parallel.shard
    )
    try:
        return quantized_transformer(config, state, parallel)
    except ValueError as error:
        raise CheckpointError(f"{folder}: {error}") from error


def _groups_of(config: WanConfig, state: QuantizedState) -> frozenset[Group]:
    found = frozenset(
        group
        for group in Group
        if not state.layers.keys().isdisjoint(quantized_layers(config, frozenset({group})))
    )
    for layer in sorted(state.layers.keys() ^ set(quantized_layers(config, found))):
        fault = "is no layer of this model" if layer in state.layers else "is missing"
        raise ValueError(f"state.layers: {layer} {fault}")
    return found


def _check_blocks(config: WanConfig, groups: frozenset[Group]) -> None:
    """What attention and GELU give is quantized on the way, in blocks of channels."""
    attention = not groups.isdisjoint((Group.SELF_ATTENTION, Group.CROSS_ATTENTION))
    for name, width, quantized in (
        ("hidden_size", config.hidden_size, attention),
        ("ffn_dim", config.ffn_dim, Group.FEED_FORWARD in groups),
    ):
        if quantized and width % MX_BLOCK:
            raise ValueError(
                f"config: {name} is {width}; in FP8 it must be a multiple of {MX_BLOCK}"
            )


def _check(model: WanTransformer, tensors: Mapping[str, Tensor]) -> None:
    buffers = {name for name, _ in model.named_buffers()}
    expected = model.state_dict()
    for name in (*expected, *tensors):
        if name not in tensors or name not in expected:
            raise ValueError(f"state: {name} is {'missing' if name in expected else 'unexpected'}")
        wanted, found = expected[name], tensors[name]
        dtype = wanted.dtype if name in buffers else model.parameter_dtype(name, DTYPE)
        if found.shape != wanted.shape or found.dtype != dtype:
            raise ValueError(
                f"state: {name} must be {list(wanted.shape)} {dtype}, "
                f"got {list(found.shape)} {found.dtype}"
            )
