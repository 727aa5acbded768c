"""What `adaln_modulate` computes, in torch; it rounds where the kernel rounds."""

from __future__ import annotations

import torch
from torch import Tensor

from wantrn.kernels.adaln.options import Options
from wantrn.kernels.row_mx import quantize_rows


def adaln_reference(
    x: Tensor,
    options: Options,
    mul: Tensor | None = None,
    add: Tensor | None = None,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The stream, and its modulated normalisation; arguments as of `adaln_modulate`.

    Normalised in float64 and modulated in fp32, so that against the kernel only the last bits of
    fp32 differ before the last rounding.

    Returns:
        `[B, S, H]` of x's dtype, which is `x` itself without a residual; and `[B, S, H]` of x's
        dtype, or packed rows `[B, S, H + 4]` float8_e4m3fn with `options.limit`.
    """
    stream = x
    if residual is not None:
        product = x.float() if gate is None else x.float() * _spread(gate, x)
        stream = (product + residual.float()).to(x.dtype)
    wide = stream.double()
    if options.norm == "layer":
        wide = wide - wide.mean(-1, keepdim=True)
    if options.norm != "none":
        wide = wide * (wide.square().mean(-1, keepdim=True) + options.eps).rsqrt()
    y = wide.float()
    if mul is not None:
        y = y * _spread(mul, x)
    if add is not None:
        y = y + _spread(add, x)
    return stream, quantize_rows(y, options.limit) if options.limit else y.to(x.dtype)


def _spread(rows: Tensor, x: Tensor) -> Tensor:
    """Rows `[1 or B, G, H]` written out for every token."""
    return torch.repeat_interleave(rows, x.shape[1] // rows.shape[1], dim=1)
