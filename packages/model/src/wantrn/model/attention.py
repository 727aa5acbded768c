"""Self-attention over the video's tokens, and cross-attention to the text."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from wantrn.kernels import ops
from wantrn.kernels.ops import HeadNorm, Rotary
from wantrn.model.config import WanConfig
from wantrn.model.linears import Linear, make_linear, o_proj, qkv_proj


class SelfAttention(nn.Module):
    """Fused Q|K|V projection, RMSNorm over heads, rotary embedding, attention, output projection.

    The Q and K rows of ``qkv`` and the weights of ``q_norm`` and ``k_norm`` are permuted in each
    head from interleaved to rotate-half order (see ``checkpoints.native``); scores do not change.

    ``quantized``: both projections are in FP8, and the input is packed rows.
    """

    def __init__(self, config: WanConfig, quantized: bool = False) -> None:
        super().__init__()
        self.quantized = quantized
        hidden = config.hidden_size
        self.heads, self.head_dim, self.eps = (
            config.num_attention_heads,
            config.attention_head_dim,
            config.eps,
        )
        self.qkv = make_linear(hidden, 3 * hidden, quantized)
        self.q_norm = nn.RMSNorm(hidden, eps=config.eps)
        self.k_norm = nn.RMSNorm(hidden, eps=config.eps)
        self.out = make_linear(hidden, hidden, quantized)

    def forward(self, x: Tensor, rotary: Rotary) -> Tensor:
        """``[B, S, H]``, or packed rows ``[B, S, H + 4]`` if quantized, to ``[B, S, H]``."""
        qkv = qkv_proj(
            x,
            self.qkv,
            head_dim=self.head_dim,
            num_kv_heads=self.heads,
            norm=HeadNorm(self.q_norm.weight, self.k_norm.weight, self.eps),
            rotary=rotary,
        )
        q, k, v = qkv.view(*x.shape[:2], 3, self.heads, self.head_dim).unbind(2)
        return o_proj(ops.attention(q, k, v), self.out)


@dataclass(frozen=True)
class TextKV:
    """Keys and values of one block's cross-attention, ``[B, L, N, D]`` each."""

    k: Tensor
    v: Tensor


class CrossAttention(nn.Module):
    """Attention from the video's tokens to the text; keys and values come from ``project``.

    ``quantized``: all four projections are in FP8, and the video's tokens are packed rows.
    """

    def __init__(self, config: WanConfig, quantized: bool = False) -> None:
        super().__init__()
        self.quantized = quantized
        hidden = config.hidden_size
        self.head_dim, self.eps = config.attention_head_dim, config.eps
        self.q = make_linear(hidden, hidden, quantized)
        self.k = make_linear(hidden, hidden, quantized)
        self.v = make_linear(hidden, hidden, quantized)
        self.q_norm = nn.RMSNorm(hidden, eps=config.eps)
        self.k_norm = nn.RMSNorm(hidden, eps=config.eps)
        self.out = make_linear(hidden, hidden, quantized)

    def project(self, text: Tensor) -> TextKV:
        """Keys and values of the embedded text ``[B, L, H]``, which is never packed rows."""
        x = ops.row_quantize(text) if self.quantized else text
        return TextKV(self._heads(x, self.k, self.k_norm), self._heads(x, self.v, None))

    def forward(self, x: Tensor, text: TextKV) -> Tensor:
        """``[B, S, H]``, or packed rows ``[B, S, H + 4]`` if quantized, to ``[B, S, H]``."""
        q = self._heads(x, self.q, self.q_norm)
        return o_proj(ops.attention(q, text.k, text.v), self.out)

    def _heads(self, x: Tensor, layer: Linear, norm: nn.RMSNorm | None) -> Tensor:
        segment = qkv_proj(
            x,
            layer,
            head_dim=self.head_dim,
            num_kv_heads=0,
            norm=None if norm is None else HeadNorm(norm.weight, eps=self.eps),
        )
        return segment.view(*x.shape[:2], -1, self.head_dim)
