"""`adaln_modulate`: gated residual, norm, modulation and quantization of rows, in NKI."""

from wantrn.kernels.adaln.capability import refusal
from wantrn.kernels.adaln.kernel import adaln_modulate, row_quantize
from wantrn.kernels.adaln.options import Options, Sizes
from wantrn.kernels.adaln.reference import adaln_reference

__all__ = ["Options", "Sizes", "adaln_modulate", "adaln_reference", "refusal", "row_quantize"]
