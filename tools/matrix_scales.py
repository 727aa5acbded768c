"""FP8 weights with one scale for each matrix: what a scale for each channel is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from wantrn.kernels.row_mx import OCP_LIMIT, quantize_channels
from wantrn.model.checkpoints.native import native_parameters
from wantrn.model.config import WanConfig
from wantrn.model.quantization import QuantizedState, keep_codes
from wantrn.model.quantization.state import weight_name


def with_scale_per_matrix(
    quantized: QuantizedState, state: Mapping[str, Tensor], config: WanConfig
) -> QuantizedState:
    """``quantized`` with one scale for each matrix of the checkpoint: Q, K and V have three.

    ``state`` has the weights that were quantized, by native name.
    """
    sources = native_parameters(config)
    layers = {}
    for layer in quantized.layers:
        name = weight_name(layer)
        codes, scales = [], []
        for matrix in state[name].chunk(len(sources[name].sources)):
            # all of a matrix as one channel
            code, scale = quantize_channels(matrix.reshape(1, -1), OCP_LIMIT)
            codes.append(code.view(torch.uint8).reshape(matrix.shape))
            scales.append(scale.expand(matrix.shape[0]))
        joined = torch.cat(codes).view(torch.float8_e4m3fn)
        layers[layer] = keep_codes(joined, torch.cat(scales)).weight
    return replace(quantized, layers=layers)
