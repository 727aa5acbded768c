"""`attention_cte`: softmax attention of one head at a time, in NKI."""

from wantrn.kernels.attention.kernel import attention_cte
from wantrn.kernels.attention.options import Options

__all__ = ["Options", "attention_cte"]
