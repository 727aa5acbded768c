"""`attention_cte`: softmax attention of one head at a time, in NKI."""

from wantrn.kernels.attention.capability import refusal
from wantrn.kernels.attention.kernel import attention_cte
from wantrn.kernels.attention.options import Options, Sizes
from wantrn.kernels.attention.reference import attention_reference, visible

__all__ = ["Options", "Sizes", "attention_cte", "attention_reference", "refusal", "visible"]
