"""What every stage of a ring uses: tokens into SBUF, products of any width."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nisa
from wantrn.kernels.psum import BANK
from wantrn.kernels.sbuf import PARTITIONS


def load_tokens(dst: Any, src: Any, first: int, valid: int) -> None:
    """Tokens onto partitions; zeros where there is none.

    Args:
        dst: SBUF `[128, T, n, D]`; token `first + 128 t + p` comes to `[p, t]`.
        src: HBM `[S, n, D]`.
        first: token.
        valid: tokens from this one on are no real ones.
    """
    tiles = dst.shape[1]
    here = min(max(valid - first, 0), tiles * PARTITIONS)
    full, rest = here // PARTITIONS, here % PARTITIONS
    if here < tiles * PARTITIONS:
        nisa.memset(dst, 0.0)
    if full > 0:
        rows = src[first : first + full * PARTITIONS]
        turned = rows.reshape_dim(0, (full, PARTITIONS)).permute((1, 0, 2, 3))
        nisa.dma_copy(dst[:, 0:full], turned)
    if rest > 0:
        nisa.dma_copy(dst[0:rest, full], src[first + full * PARTITIONS : first + here])


def product(dst: Any, stationary: Any, moving: Any, wide: bool) -> None:
    """`dst = stationary.T @ moving`; before Trainium3 a PSUM bank at a time.

    Args:
        dst: PSUM fp32 `[M, n]`.
        stationary, moving: SBUF `[K, M]` and `[K, n]`.
        wide: whether one matmul may fill several banks.
    """
    columns = moving.shape[1]
    step = columns if wide else BANK
    for start in range(0, columns, step):
        end = min(start + step, columns)
        nisa.nc_matmul(dst[:, start:end], stationary, moving[:, start:end], accumulate=False)
