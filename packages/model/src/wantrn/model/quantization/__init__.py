"""FP8 transformers: one scale an output channel, in the layout that the kernels read.

``run`` quantizes whole checkpoints. It is not imported here: it stands on ``info``, which reads
manifests with what is here.
"""

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
from wantrn.model.quantization.state import QuantizedState, quantize_state

__all__ = [
    "LIMITS",
    "Group",
    "LayerError",
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
