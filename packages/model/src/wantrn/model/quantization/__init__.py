"""FP8 transformers: one scale an output channel, in the layout that the kernels read."""

from __future__ import annotations

from wantrn.model.quantization.groups import (
    LIMITS,
    Group,
    QuantizationOptions,
    parse_group,
    quantized_layers,
)
from wantrn.model.quantization.layer import LayerError, QuantizedLayer, keep_codes, quantize_layer
from wantrn.model.quantization.load import load_quantized, quantize_store
from wantrn.model.quantization.report import report_text
from wantrn.model.quantization.run import QuantizationJob
from wantrn.model.quantization.state import QuantizedState, quantize_state

__all__ = [
    "LIMITS",
    "Group",
    "LayerError",
    "QuantizationJob",
    "QuantizationOptions",
    "QuantizedLayer",
    "QuantizedState",
    "keep_codes",
    "load_quantized",
    "parse_group",
    "quantize_layer",
    "quantize_state",
    "quantize_store",
    "quantized_layers",
    "report_text",
]
