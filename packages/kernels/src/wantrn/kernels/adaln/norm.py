"""Mean and variance of rows, as a factor and an offset of each token."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.adaln.options import Options
from wantrn.kernels.nki import nisa, nl
from wantrn.kernels.psum import BANK

# fp32 columns of a token: bn_aggr's mean and variance, then what is made of them
MEAN, VARIANCE, SQUARE, FACTOR, OFFSET = 0, 1, 2, 3, 4
# and of its quantization
LARGEST, INVERSE = 5, 6


def normalisation(row: Any, statistics: Any, columns: Any, options: Options) -> tuple[Any, Any]:
    """What makes `row * factor + offset` its normalisation, both fp32 `[rows, 1]`.

    `factor = 1 / sqrt(variance + eps)` and `offset = -mean * factor`; with the RMS norm
    `factor = 1 / sqrt(variance + mean ** 2 + eps)` and no offset (None), without norm neither.

    Args:
        row: SBUF `[rows, H]`.
        statistics: SBUF fp32 `[rows, 6 n]` for `n` pieces of the row.
        columns: SBUF fp32 `[rows, COLUMNS]`.
    """
    if options.norm == "none":
        return None, None
    hidden = row.shape[1]
    for index, at in enumerate(range(0, hidden, BANK)):
        piece = row[:, at : min(at + BANK, hidden)]
        nisa.bn_stats(statistics[:, 6 * index : 6 * index + 6], piece)
    nisa.bn_aggr(columns[:, MEAN : VARIANCE + 1], statistics)
    mean = columns[:, MEAN : MEAN + 1]
    spread = columns[:, VARIANCE : VARIANCE + 1]
    factor = columns[:, FACTOR : FACTOR + 1]
    if options.norm == "rms":
        square = columns[:, SQUARE : SQUARE + 1]
        nisa.tensor_scalar(
            square, mean, nl.multiply, mean, op1=nl.add, operand1=spread, engine=nisa.engine.vector
        )
        nisa.activation(factor, nl.rsqrt, square, bias=options.eps)
        return factor, None
    nisa.activation(factor, nl.rsqrt, spread, bias=options.eps)
    offset = columns[:, OFFSET : OFFSET + 1]
    nisa.tensor_scalar(
        offset, mean, nl.multiply, factor, op1=nl.multiply, operand1=-1.0, engine=nisa.engine.vector
    )
    return factor, offset
