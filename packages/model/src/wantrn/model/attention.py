"""Self-attention over the video's tokens, and cross-attention to the text."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from wantrn.kernels import ops
from wantrn.kernels.ops import HeadNorm, Rotary
from wantrn.model.config import WanConfig
from wantrn.model.linears import Linear, make_linear, o_proj, qkv_proj
from wantrn.model.lora.adapters import NONE, Adapters, Delta
from wantrn.model.parallelism import Parallelism
from wantrn.model.video_attention import VideoAttention


class SelfAttention(nn.Module):
    """Fused Q|K|V projection, RMSNorm over heads, rotary embedding, attention, output projection.

    The Q and K rows of ``qkv`` and the weights of ``q_norm`` and ``k_norm`` are permuted in each
    head from interleaved to rotate-half order (see ``checkpoints.native``); scores do not change.

    ``quantized``: both projections are in FP8, and the input is packed rows. ``N`` heads are those
    of this rank of the tensor-parallel group.
    """

    def __init__(self, config: WanConfig, parallel: Parallelism, quantized: bool = False) -> None:
        super().__init__()
        self.quantized, self.parallel = quantized, parallel
        hidden = config.hidden_size
        self.heads = config.num_attention_heads // parallel.groups.tp.size
        self.head_dim, self.eps = config.attention_head_dim, config.eps
        local = self.heads * self.head_dim
        self.qkv = make_linear(hidden, 3 * local, quantized)
        self.q_norm = nn.RMSNorm(local, eps=config.eps)
        self.k_norm = nn.RMSNorm(local, eps=config.eps)
        self.attend = VideoAttention(parallel)
        self.out = make_linear(local, hidden, quantized)

    def forward(self, x: Tensor, rotary: Rotary, total: int, adapters: Adapters = NONE) -> Tensor:
        """``[B, S, H]``, or packed rows ``[B, S, H + 4]`` if quantized, to ``[B, S, H]``.

        ``rotary`` is for the tokens that this rank attends from, ``total`` the number of all tokens
        of the sequence.
        """
        parallel = self.parallel
        x = parallel.enter(x)
        q_norm = adapters.of("q_norm").shifted("weight", self.q_norm.weight)
        k_norm = adapters.of("k_norm").shifted("weight", self.k_norm.weight)
        qkv = qkv_proj(
            x,
            self.qkv,
            head_dim=self.head_dim,
            num_kv_heads=self.heads,
            norm=parallel.head_norm(q_norm, k_norm, self.eps),
            rotary=rotary,
            delta=adapters.delta("qkv"),
        )
        q, k, v = qkv.view(*x.shape[:2], 3, self.heads, self.head_dim).unbind(2)
        if parallel.groups.cp.size > 1:
            # apart, for the ring to move them: of views it would make copies beside the whole
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        del qkv
        out = o_proj(
            self.attend(q, k, v, total),
            self.out,
            add_bias=parallel.adds_bias,
            delta=adapters.delta("out"),
        )
        return parallel.leave(out)


@dataclass(frozen=True)
class TextKV:
    """Keys and values of one block's cross-attention, ``[B, L, N, D]`` each."""

    k: Tensor
    v: Tensor


class CrossAttention(nn.Module):
    """Attention from the video's tokens to the text; keys and values come from ``project``.

    ``quantized``: all four projections are in FP8, and the video's tokens are packed rows. ``N``
    heads are those of this rank of the tensor-parallel group, or all heads where each rank computes
    them all.
    """

    def __init__(self, config: WanConfig, parallel: Parallelism, quantized: bool = False) -> None:
        super().__init__()
        self.quantized, self.parallel = quantized, parallel
        hidden = config.hidden_size
        self.shared = not parallel.replicate_cross_attention
        local = hidden // parallel.groups.tp.size if self.shared else hidden
        self.head_dim, self.eps = config.attention_head_dim, config.eps
        self.q = make_linear(hidden, local, quantized)
        self.k = make_linear(hidden, local, quantized)
        self.v = make_linear(hidden, local, quantized)
        self.q_norm = nn.RMSNorm(local, eps=config.eps)
        self.k_norm = nn.RMSNorm(local, eps=config.eps)
        self.out = make_linear(local, hidden, quantized)

    def project(self, text: Tensor, adapters: Adapters = NONE) -> TextKV:
        """Keys and values of the embedded text ``[B, L, H]``, which is never packed rows."""
        x = ops.row_quantize(text) if self.quantized else text
        k = self._heads(x, self.k, adapters.delta("k"), self._norm("k_norm", adapters))
        return TextKV(k, self._heads(x, self.v, adapters.delta("v"), None))

    def forward(self, x: Tensor, text: TextKV, adapters: Adapters = NONE) -> Tensor:
        """``[B, S, H]``, or packed rows ``[B, S, H + 4]`` if quantized, to ``[B, S, H]``."""
        out_delta = adapters.delta("out")
        if not self.shared:
            return o_proj(self._attend(x, text, adapters), self.out, delta=out_delta)
        parallel = self.parallel
        out = self._attend(parallel.enter(x), text, adapters)
        return parallel.leave(o_proj(out, self.out, add_bias=parallel.adds_bias, delta=out_delta))

    def _attend(self, x: Tensor, text: TextKV, adapters: Adapters) -> Tensor:
        q = self._heads(x, self.q, adapters.delta("q"), self._norm("q_norm", adapters))
        return ops.attention(q, text.k, text.v)

    def _heads(
        self, x: Tensor, layer: Linear, delta: Delta | None, norm: HeadNorm | None
    ) -> Tensor:
        segment = qkv_proj(x, layer, head_dim=self.head_dim, num_kv_heads=0, norm=norm, delta=delta)
        return segment.view(*x.shape[:2], -1, self.head_dim)

    def _norm(self, name: str, adapters: Adapters) -> HeadNorm:
        norm = self.q_norm if name == "q_norm" else self.k_norm
        weight = adapters.of(name).shifted("weight", norm.weight)
        if self.shared:
            return self.parallel.head_norm(weight, None, self.eps)
        return HeadNorm(weight, eps=self.eps)
