"""``qkv_proj``: fused Q|K|V projection, RMSNorm over all heads, rotary embedding."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from wantrn.kernels.backend import log_fallback
from wantrn.kernels.machine import machine_for
from wantrn.kernels.ops.linear import check_linear, linear
from wantrn.kernels.ops.registration import operator
from wantrn.kernels.replicas import ReplicaGroups, Replicas, groups_of, summed


class QKVLayout(enum.Enum):
    """How ``qkv_proj`` lays out its result."""

    BSD = "BSD"
    """``[B, S, I]``: the columns of Q, then K, then V, head by head."""
    NBSD = "NBSd"
    """``[heads, B, S, D]``: the heads of Q, then K, then V."""


@dataclass(frozen=True)
class HeadNorm:
    """RMSNorm over all heads of a token together: Wan's ``rms_norm_across_heads``.

    Under tensor parallelism a token's heads are spread over ranks, evenly. ``q`` and ``k`` are then
    normalised over the heads of all ranks, with one sum over the ranks for both.

    Attributes:
        q_weight: fp32 ``[N*D]``, of this rank's heads of Q.
        k_weight: fp32 ``[N_kv*D]``, of this rank's heads of K; None exactly where there is no K.
        eps: added to the mean square.
        replica_groups: the groups of ranks among which a token's heads are spread, all of one
            length; together every rank once. Empty where each rank has all heads.
        group: the process group of this rank's; None where each rank has all heads.
    """

    q_weight: Tensor
    k_weight: Tensor | None = None
    eps: float = 1e-6
    replica_groups: ReplicaGroups = ()
    group: dist.ProcessGroup | None = None

    def replicas(self) -> Replicas | None:
        """The ranks among which heads are spread; None where this one has them all.

        Raises:
            ValueError: ``replica_groups`` or ``group`` does not fit the other, or this rank.
        """
        if not self.replica_groups and self.group is None:
            return None
        found = Replicas.of(self.replica_groups, self.group, "norm.")
        return None if found.size == 1 else found


@dataclass(frozen=True)
class Rotary:
    """Cosine and sine of the rotary angles, fp32 ``[S, D/2]``: one value a rotated pair.

    The rotation is rotate-half: it pairs channels ``j`` and ``j + D/2`` of a head.
    """

    cos: Tensor
    sin: Tensor


def qkv_proj(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    head_dim: int,
    num_kv_heads: int,
    norm: HeadNorm | None = None,
    rotary: Rotary | None = None,
    layout: QKVLayout = QKVLayout.BSD,
) -> Tensor:
    """Project tokens to Q, K and V; normalise and rotate Q and K.

    With ``y = x @ weight.T + bias`` rounded to ``x.dtype``, and ``q`` the Q columns of ``y`` (K
    alike), in fp32::

        q = q * rsqrt(mean(q**2 over all columns of Q) + eps) * q_weight    where norm is given
        q_lo, q_hi = q_lo*cos - q_hi*sin, q_hi*cos + q_lo*sin               where rotary is given

    V is never touched.

    Args:
        x: ``[B, S, H]``, fp32 or bf16.
        weight: ``[I, H]`` of ``x.dtype``, ``I = (N + 2*num_kv_heads) * head_dim``, rows Q | K | V.
        bias: ``[I]`` of ``x.dtype``, or None.
        head_dim: ``D``, even where ``rotary`` is given.
        num_kv_heads: heads of K and of V; 0 projects a single segment, "Q".
        norm: RMSNorm over heads, also those of other ranks; None leaves Q and K as projected.
        rotary: rotary tables; None leaves Q and K unrotated.
        layout: the layout of the result.

    Returns:
        ``[B, S, I]`` or ``[N + 2*num_kv_heads, B, S, D]``, of ``x.dtype``.

    Raises:
        ValueError: an argument whose shape or dtype does not fit the others, by name.
    """
    _check(x, weight, bias, head_dim, num_kv_heads, norm, rotary)
    replicas = None if norm is None else norm.replicas()
    out: Tensor = _qkv_proj(
        x,
        weight,
        bias,
        head_dim,
        num_kv_heads,
        None if norm is None else norm.q_weight,
        None if norm is None else norm.k_weight,
        # without a norm there is none
        1e-6 if norm is None else norm.eps,
        None if rotary is None else rotary.cos,
        None if rotary is None else rotary.sin,
        layout is QKVLayout.NBSD,
        *library_arguments(replicas),
    )
    return out


def _check(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    head_dim: int,
    num_kv_heads: int,
    norm: HeadNorm | None,
    rotary: Rotary | None,
) -> None:
    if x.ndim != 3:
        raise ValueError(f"x must be [B, S, H], got {list(x.shape)}")
    check_linear("weight", x.shape[-1], x, weight, bias)
    check_heads(x.shape[1], weight.shape[0], head_dim, num_kv_heads, norm, rotary)


def check_heads(
    tokens: int,
    width: int,
    head_dim: int,
    num_kv_heads: int,
    norm: HeadNorm | None,
    rotary: Rotary | None,
) -> None:
    """Raise ``ValueError`` unless a projection to ``width`` columns can be cut into these heads,
    and norm and tables fit them."""
    if head_dim < 1 or width % head_dim:
        raise ValueError(f"head_dim must divide weight's {width} rows, got {head_dim}")
    num_q_heads = q_heads(width, head_dim, num_kv_heads)
    if num_kv_heads < 0 or num_q_heads < 1:
        raise ValueError(
            f"num_kv_heads must leave Q at least one of weight's {width // head_dim} "
            f"heads, got {num_kv_heads}"
        )
    if norm is not None:
        _check_vector("norm.q_weight", norm.q_weight, (num_q_heads * head_dim,))
        if (norm.k_weight is None) != (num_kv_heads == 0):
            raise ValueError(
                f"norm.k_weight must be given exactly where there is K; num_kv_heads is "
                f"{num_kv_heads}, k_weight is {'None' if norm.k_weight is None else 'given'}"
            )
        if norm.k_weight is not None:
            _check_vector("norm.k_weight", norm.k_weight, (num_kv_heads * head_dim,))
    if rotary is not None:
        if head_dim % 2:
            raise ValueError(f"head_dim must be even with rotary, got {head_dim}")
        _check_vector("rotary.cos", rotary.cos, (tokens, head_dim // 2))
        _check_vector("rotary.sin", rotary.sin, (tokens, head_dim // 2))


def q_heads(width: int, head_dim: int, num_kv_heads: int) -> int:
    """Heads of Q among ``width`` columns of Q, K and V."""
    return width // head_dim - 2 * num_kv_heads


def result_shape(x: Tensor, width: int, head_dim: int, heads_first: bool) -> tuple[int, ...]:
    """The shape of a projection of ``x`` ``[B, S, ...]`` to ``width`` columns."""
    batch, tokens, _ = x.shape
    if heads_first:
        return (width // head_dim, batch, tokens, head_dim)
    return (batch, tokens, width)


def library_arguments(replicas: Replicas | None) -> tuple[list[int], int, str]:
    """The ranks, the length of a group and the name of this rank's, as the registrations take
    them."""
    return ([], 1, "") if replicas is None else (replicas.ranks, replicas.size, replicas.name)


def _check_vector(name: str, value: Tensor, shape: tuple[int, ...]) -> None:
    if value.shape != shape or value.dtype != torch.float32:
        raise ValueError(
            f"{name} must be {list(shape)} float32, got {list(value.shape)} {value.dtype}"
        )


@operator("qkv_proj")
def _qkv_proj(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    head_dim: int,
    num_kv_heads: int,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    cos: Tensor | None,
    sin: Tensor | None,
    heads_first: bool,
    ranks: list[int],
    group_size: int,
    group: str,
) -> Tensor:
    machine = machine_for(x)
    if machine is not None:
        from wantrn.kernels.qkv.options import Options
        from wantrn.kernels.qkv.torch_call import Call

        heads = q_heads(weight.shape[0], head_dim, num_kv_heads)
        groups = groups_of(ranks, group_size)
        options = Options(heads, num_kv_heads, head_dim, eps, heads_first, groups)
        call = Call(x, weight, bias, options, q_weight, k_weight, cos, sin, group)
        reason = call.refusal(machine)
        if reason is None:
            return call.computed(machine)
        log_fallback("qkv_proj", reason)
    out = linear(x, weight, bias)
    kv = num_kv_heads * head_dim
    q_columns = out.shape[-1] - 2 * kv
    segments = [out[..., :q_columns], out[..., q_columns : q_columns + kv]][: 2 if kv else 1]
    inverses: list[Tensor | None] = [None] * len(segments)
    if q_weight is not None:
        inverses = [*_inverse_rms(segments, eps, group_size, group)]
    weights = (q_weight, k_weight)
    for segment, gamma, inv_rms in zip(segments, weights, inverses, strict=False):
        _normalise_rotate(segment, head_dim, gamma, inv_rms, cos, sin)
    if not heads_first:
        return out
    return out.view(*out.shape[:2], -1, head_dim).permute(2, 0, 1, 3).contiguous()


@_qkv_proj.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    head_dim: int,
    num_kv_heads: int,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    cos: Tensor | None,
    sin: Tensor | None,
    heads_first: bool,
    ranks: list[int],
    group_size: int,
    group: str,
) -> Tensor:
    return x.new_empty(result_shape(x, weight.shape[0], head_dim, heads_first))


def _inverse_rms(segments: list[Tensor], eps: float, ranks: int, group: str) -> list[Tensor]:
    """``1/rms`` of each token of each segment ``[B, S, n*D]``, of which ``ranks`` ranks have as
    many columns each: fp32 ``[B, S, 1]``."""
    sums = [
        torch.linalg.vector_norm(part, dim=-1, keepdim=True, dtype=torch.float32).square_()
        for part in segments
    ]
    if ranks > 1:
        sums = list(summed(torch.stack(sums), group))
    return [
        total.div_(part.shape[-1] * ranks).add_(eps).rsqrt_()
        for total, part in zip(sums, segments, strict=True)
    ]


def _normalise_rotate(
    segment: Tensor,
    head_dim: int,
    weight: Tensor | None,
    inv_rms: Tensor | None,
    cos: Tensor | None,
    sin: Tensor | None,
) -> None:
    """Normalise and rotate one segment ``[B, S, n*D]`` of the projection in place.

    The token's factor ``inv_rms`` ``[B, S, 1]`` multiplies the small tables, not the wide segment:
    one pass over memory less.
    """
    if weight is None and cos is None:
        return
    wide = segment.float()
    if weight is not None:
        wide = wide * weight
    if cos is None or sin is None:
        segment.copy_(wide if inv_rms is None else wide * inv_rms)
        return
    if inv_rms is not None:
        cos, sin = cos * inv_rms, sin * inv_rms  # [B, S, D/2]
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)  # the same for every head
    if wide is segment:  # fp32 without norm: not a copy yet
        wide = wide.clone()
    halves = (*segment.shape[:2], -1, 2, head_dim // 2)
    lo, hi = wide.view(halves).unbind(-2)
    out_lo, out_hi = segment.view(halves).unbind(-2)
    torch.addcmul(lo * cos, hi, sin, value=-1, out=out_lo)
    torch.addcmul(hi * cos, lo, sin, out=out_hi)
