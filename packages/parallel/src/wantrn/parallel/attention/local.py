"""Attention to the keys that a rank has, with what is needed to merge it with other keys' part."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from wantrn.parallel.attention.merge import Partial

_WIDE_BYTES = 32 << 20
"""What the fp32 copies of bf16 heads may take at a time; always at least one head's."""


class Attend(Protocol):
    """Softmax attention without a mask, scores times ``D ** -0.5``."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Partial:
        """Every query's attention to all of ``k``.

        Args:
            q: ``[B, S_q, N, D]``, fp32 or bf16; any strides, as ``k`` and ``v``.
            k: ``[B, S_k, N, D]`` of ``q.dtype``, at least one token.
            v: as ``k``.

        Returns:
            The output and the logarithm of the softmax's denominator, in new tensors, as the
            caller merges into them.
        """


def torch_attend(q: Tensor, k: Tensor, v: Tensor) -> Partial:
    """:class:`Attend` by torch on a CPU, in fp32 for both dtypes; no score matrix is ever whole.

    Raises:
        ValueError: tensors that do not fit each other or are not on a CPU, or no key.
    """
    _check(q, k, v)
    if q.dtype is torch.float32:
        return _flash(q, k, v)
    batch, queries, heads, width = q.shape
    a_head = 4 * batch * width * (queries + 2 * k.shape[1])
    step = max(1, _WIDE_BYTES // a_head)
    out = q.new_empty(q.shape, dtype=torch.float32)
    lse = q.new_empty((batch, heads, queries), dtype=torch.float32)
    for start in range(0, heads, step):
        some = slice(start, start + step)
        out[:, :, some], lse[:, some] = _flash(*(x[:, :, some].float() for x in (q, k, v)))
    return Partial(out, lse)


def _flash(q: Tensor, k: Tensor, v: Tensor) -> Partial:
    """fp32 attention by torch's own kernel, asked directly for the logarithms."""
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        *(_rows(x).transpose(1, 2) for x in (q, k, v))
    )
    return Partial(out.transpose(1, 2), lse)


def _rows(x: Tensor) -> Tensor:
    """``x`` with neighbouring channels side by side, which the kernel takes for granted."""
    return x if x.stride(3) == 1 else x.contiguous()


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    if q.dim() != 4 or 0 in q.shape:
        raise ValueError(f"q must be [B, S_q, N, D] of at least one element, got {list(q.shape)}")
    if q.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"q must be fp32 or bf16, got {q.dtype}")
    if q.device.type != "cpu":
        raise ValueError(f"q must be on the CPU, got {q.device}")
    batch, _, heads, width = q.shape
    if k.dim() != 4 or (k.shape[0], *k.shape[2:]) != (batch, heads, width) or k.shape[1] == 0:
        raise ValueError(f"k must be [{batch}, S_k > 0, {heads}, {width}], got {list(k.shape)}")
    for name, x in (("k", k), ("v", v)):
        if x.shape != k.shape or x.dtype != q.dtype or x.device != q.device:
            raise ValueError(
                f"{name} must be {list(k.shape)} {q.dtype} on {q.device}, "
                f"got {list(x.shape)} {x.dtype} on {x.device}"
            )
