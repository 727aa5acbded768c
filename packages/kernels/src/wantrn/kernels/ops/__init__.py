"""The torch operators that a Wan2.2 transformer block is made of.

Each module holds one operator: the function that callers use, which checks its arguments; the
arithmetic in torch, which defines the operator; and its registration with ``torch.library``, so
that ``torch.compile`` and fake tensors treat it as one node (``torch.ops.wantrn.*``). ``linear`` is
a plain function beside them, for the small projections around the blocks.

Names of sizes: ``B`` batch, ``S`` tokens, ``H`` hidden, ``N`` heads, ``D`` head dimension, ``I``
projection width. The ``row_mx_*`` operators have FP8 weights and take packed rows (see
``wantrn.kernels.row_mx``), which ``row_quantize`` and ``adaln_modulate`` give; in torch they round
where the NKI kernels round. The operators are for inference: they have no backward formula, and
asking for one raises torch's own error.
"""

from wantrn.kernels.ops.adaln import (
    Norm,
    adaln_modulate,
    gated_adaln_modulate,
    gated_add,
    row_quantize,
)
from wantrn.kernels.ops.attention import attention
from wantrn.kernels.ops.linear import linear
from wantrn.kernels.ops.mlp import mlp
from wantrn.kernels.ops.o_proj import o_proj
from wantrn.kernels.ops.qkv_proj import HeadNorm, QKVLayout, Rotary, qkv_proj
from wantrn.kernels.ops.ring_attention import RingResult, ring_attention
from wantrn.kernels.ops.row_mx_mlp import row_mx_mlp
from wantrn.kernels.ops.row_mx_o_proj import row_mx_o_proj
from wantrn.kernels.ops.row_mx_qkv_proj import row_mx_qkv_proj

__all__ = [
    "HeadNorm",
    "Norm",
    "QKVLayout",
    "RingResult",
    "Rotary",
    "adaln_modulate",
    "attention",
    "gated_adaln_modulate",
    "gated_add",
    "linear",
    "mlp",
    "o_proj",
    "qkv_proj",
    "ring_attention",
    "row_mx_mlp",
    "row_mx_o_proj",
    "row_mx_qkv_proj",
    "row_quantize",
]
