"""What `qkv_cte` is asked to do, and the sizes of one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wantrn.kernels.nki import nl
from wantrn.kernels.words import is_fp8, values_of, vector_bytes, word_bytes, words

# RMSNorm over all heads of a token together; RMSNorm, or LayerNorm, of each head by itself
RMS_ALL_HEADS = "rms_all_heads"
RMS_PER_HEAD = "rms_per_head"
LAYER_PER_HEAD = "layer_per_head"
NORMS = (RMS_ALL_HEADS, RMS_PER_HEAD, LAYER_PER_HEAD)


@dataclass(frozen=True)
class Options(nl.NKIObject):
    """How a projection is computed.

    Attributes:
        heads: heads of Q in this call, `N`
        kv_heads: heads of K and of V; 0 projects one segment, as Q
        head_dim: `D`
        eps: under the root of the norm
        heads_first: the result is `[N + 2 * kv_heads, B, S, D]`; otherwise `[B, S, I]`
        replica_groups: ranks over which a token's heads are spread, whose squares are summed; empty
            if every rank has all heads. Tuples, since arguments of a kernel must be hashable.
        norm: which one of `NORMS`, where there is one: where the call has its weight
        squared_sums: the sums of squares of a token's Q, K and V are a result too
        cache_starts: for each sequence, the row of its caches that its first token goes to; empty
            if that is row 0, if there are no caches, or if slots are given
    """

    heads: int
    kv_heads: int = 0
    head_dim: int = 128
    eps: float = 1e-6
    heads_first: bool = False
    replica_groups: tuple[tuple[int, ...], ...] = ()
    norm: str = RMS_ALL_HEADS
    squared_sums: bool = False
    cache_starts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Sizes(nl.NKIObject):
    """The sizes of one call on one rank, which are all that a plan depends on.

    Attributes:
        tokens: `B * S`: tokens of a batch follow one another
        hidden: `H`
        heads, kv_heads, head_dim: as in `Options`
        packed: ROW_MX: packed FP8 rows and weights; otherwise bf16
        bias_bytes: bytes of an element of the bias, 0 without one
        norm: Q and K are normalised over all heads
        per_head: Q and K are normalised head by head
        centred: their means are taken off before: LayerNorm
        shifted: that norm has a bias
        rope: Q and K are rotated
        ranks: among which the heads are spread
        heads_first, squared_sums: as in `Options`
        cached: K and V go to caches, not into the result
        mapped: each token of them to a row of its own choice
    """

    tokens: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    packed: bool = False
    bias_bytes: int = 0
    norm: bool = False
    rope: bool = False
    ranks: int = 1
    heads_first: bool = False
    per_head: bool = False
    centred: bool = False
    shifted: bool = False
    squared_sums: bool = False
    cached: bool = False
    mapped: bool = False

    def width(self) -> int:
        """`I`, columns of the weight."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def result_heads(self) -> int:
        """Heads of the result."""
        return self.heads if self.cached else self.heads + 2 * self.kv_heads

    def words(self) -> int:
        """Rows of the weight as it is contracted: elements of four values, or of one."""
        return words(self.hidden, self.packed)

    def word_bytes(self) -> int:
        """Bytes of such an element, of a weight or of a token."""
        return word_bytes(self.packed)


def sizes_of(
    x: Any,
    options: Options,
    bias: Any,
    norm: bool,
    rope: bool,
    shifted: bool = False,
    cached: bool = False,
    mapped: bool = False,
) -> Sizes:
    """The sizes of a call's tensors, arrays or specifications.

    Args:
        x: `[B, S, H]`, or `[B, S, H + 4]` of FP8.
        norm: there is one, of any kind.
        rope, shifted, cached, mapped: as in `Sizes`.
    """
    packed = is_fp8(x)
    batch, tokens, row = x.shape
    return Sizes(
        tokens=batch * tokens,
        hidden=values_of(row, packed),
        heads=options.heads,
        kv_heads=options.kv_heads,
        head_dim=options.head_dim,
        packed=packed,
        bias_bytes=vector_bytes(bias),
        norm=norm and options.norm == RMS_ALL_HEADS,
        rope=rope,
        ranks=len(options.replica_groups[0]) if options.replica_groups else 1,
        heads_first=options.heads_first,
        per_head=norm and options.norm != RMS_ALL_HEADS,
        centred=norm and options.norm == LAYER_PER_HEAD,
        shifted=shifted,
        squared_sums=options.squared_sums,
        cached=cached,
        mapped=mapped,
    )
