"""ROW_MX: FP8 numbers with one fp32 scale a token and one an output channel, for the MX matmul."""

from wantrn.kernels.row_mx.products import NEUTRAL_SCALE, dequantize_products, row_mx_linear
from wantrn.kernels.row_mx.rows import (
    OCP_LIMIT,
    SCALE_BYTES,
    SMALLEST_ROW_SCALE,
    TRN2_LIMIT,
    dequantize_rows,
    pack_rows,
    quantize_rows,
    unpack_rows,
)
from wantrn.kernels.row_mx.weights import (
    VALUES,
    ChannelWeight,
    from_kernel_layout,
    kernel_layout,
    kernel_weight,
    quantize_channels,
    to_kernel_layout,
)

__all__ = [
    "NEUTRAL_SCALE",
    "OCP_LIMIT",
    "SCALE_BYTES",
    "SMALLEST_ROW_SCALE",
    "TRN2_LIMIT",
    "VALUES",
    "ChannelWeight",
    "dequantize_products",
    "dequantize_rows",
    "from_kernel_layout",
    "kernel_layout",
    "kernel_weight",
    "pack_rows",
    "quantize_channels",
    "quantize_rows",
    "row_mx_linear",
    "to_kernel_layout",
    "unpack_rows",
]
