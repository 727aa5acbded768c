"""``ring_attention``: attention over a sequence whose tokens are shared by a ring of ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from wantrn.kernels.backend import log_fallback
from wantrn.kernels.machine import machine_for
from wantrn.kernels.replicas import ReplicaGroups, Replicas, gathered, groups_of

# who computes heads
PATHS = ("torch", "const_max", "online")
# queries whose scores torch holds at a time: 40 MB a head for 9,450 keys
_ROWS = 1024


@dataclass(frozen=True)
class RingResult:
    """The result of ``ring_attention``.

    Attributes:
        out: ``[B, S, N, D]`` of ``q.dtype``.
        lse: fp32 ``[B, N, S]``, ``log(sum_j exp(scale * q_i k_j))``; None where not asked for.
        gaps: fp32 ``[N]`` on the CPU, what was measured of the distance in nats from the scores to
            the bound that took the place of their maximum; -inf for heads that were computed
            without one.
        paths: int8 ``[N]`` on the CPU, who computed each head, a place in ``PATHS``.
    """

    out: Tensor
    lse: Tensor | None
    gaps: Tensor
    paths: Tensor

    def path_names(self) -> tuple[str, ...]:
        """Who computed each head: ``torch``, or the kernel with the bound (``const_max``) or with a
        running maximum (``online``). The result is exact whoever it was."""
        return tuple(PATHS[path] for path in self.paths.tolist())


def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    replica_groups: ReplicaGroups,
    *,
    group: dist.ProcessGroup | None = None,
    total: int | None = None,
    scale: float | None = None,
    prefetch: int = 2,
    centre: bool = False,
    lse: bool = False,
) -> RingResult:
    """``softmax(scale * Q K^T) V`` of this rank's queries and the keys of all ranks of its ring.

    Every rank of a ring calls it, with tensors of the same shapes.

    Args:
        q: ``[B, S, N, D]``, this rank's tokens, fp32 or bf16.
        k, v: as ``q``.
        replica_groups: the rings, each a tuple of ranks; together every rank once. Rank ``r`` at
            position ``p`` of its ring holds tokens ``p * S`` to ``(p + 1) * S`` of the sequence.
        group: the process group of this rank's ring; None for a ring of one rank.
        total: tokens of the sequence; those beyond are padding, which takes no part as keys, and as
            queries has results that mean nothing. All of them when None.
        scale: multiplies the scores; ``D ** -0.5`` when None.
        prefetch: shards of K and V that are under way while one is used; at most the ring takes.
        centre: whether the mean of all keys is taken from each first. It changes no output but for
            rounding, and makes the bound tighter where keys have much in common.
        lse: whether it is returned; not with ``centre``, which changes the scores.

    Raises:
        ValueError: an argument that does not fit the others, by name.
    """
    _check_tensors(q, k, v)
    ring = Replicas.of(replica_groups, group)
    tokens = ring.size * q.shape[1]
    if total is None:
        total = tokens
    if not 1 <= total <= tokens:
        raise ValueError(f"total must be 1 to {tokens} for {ring.size} ranks, got {total}")
    if scale is None:
        scale = q.shape[3] ** -0.5
    if not 0 < scale < float("inf"):
        raise ValueError(f"scale must be positive and finite, got {scale}")
    if prefetch < 1:
        raise ValueError(f"prefetch must be at least 1, got {prefetch}")
    if lse and centre:
        raise ValueError("lse must be False with centre, which changes the scores")
    members = (ring.ranks, ring.order, ring.position, ring.name)
    out, sums, gaps, paths = _ring_attention(q, k, v, *members, total, scale, prefetch, centre, lse)
    return RingResult(out, sums if lse else None, gaps, paths)


def _check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    if q.ndim != 4 or 0 in q.shape:
        raise ValueError(f"q must be [B, S, N, D] of at least one element, got {list(q.shape)}")
    for name, tensor in (("k", k), ("v", v)):
        if tensor.shape != q.shape or tensor.dtype != q.dtype:
            raise ValueError(
                f"{name} must be {list(q.shape)} {q.dtype}, got {list(tensor.shape)} {tensor.dtype}"
            )


@torch.library.custom_op("wantrn::ring_attention", mutates_args=())
def _ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ranks: list[int],
    order: list[int],
    position: int,
    group: str,
    total: int,
    scale: float,
    prefetch: int,
    centre: bool,
    lse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    machine = machine_for(q)
    if machine is not None:
        from wantrn.kernels.ring import torch_call

        groups = groups_of(ranks, len(order))
        call = torch_call.Call(groups, position, total, scale, prefetch, centre, lse, group)
        reason = call.refusal(q, machine)
        if reason is None:
            out, sums, gaps, names = call.computed(q, k, v, machine)
            paths = torch.tensor([PATHS.index(name) for name in names], dtype=torch.int8)
            return out, sums, gaps, paths
        log_fallback("ring_attention", reason)
    out, sums = _computed(q, gathered(k, order, group), gathered(v, order, group), total, scale)
    heads = q.shape[2]
    gaps = torch.full((heads,), -torch.inf)
    return out, sums if lse else sums.new_empty(0), gaps, torch.zeros(heads, dtype=torch.int8)


@_ring_attention.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ranks: list[int],
    order: list[int],
    position: int,
    group: str,
    total: int,
    scale: float,
    prefetch: int,
    centre: bool,
    lse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, length, heads, _ = q.shape
    sums = q.new_empty((batch, heads, length) if lse else (0,), dtype=torch.float32)
    gaps = torch.empty((heads,), dtype=torch.float32)
    return q.new_empty(q.shape), sums, gaps, torch.empty((heads,), dtype=torch.int8)


def _computed(
    q: Tensor, keys: list[Tensor], values: list[Tensor], total: int, scale: float
) -> tuple[Tensor, Tensor]:
    """By torch: a shard of keys after the other, merged by the logarithms of their sums."""
    batch, length, heads, d = q.shape
    out = torch.zeros(batch, heads, length, d, device=q.device)
    lse = torch.full((batch, heads, length), -torch.inf, device=q.device)
    wide = q.float().transpose(1, 2)
    for position, (k, v) in enumerate(zip(keys, values, strict=True)):
        count = min(max(total - position * length, 0), length)
        if count == 0:
            break
        shard = (k[:, :count].float().permute(0, 2, 3, 1), v[:, :count].float().transpose(1, 2))
        for start in range(0, length, _ROWS):
            rows = slice(start, start + _ROWS)
            part = (out[:, :, rows], lse[:, :, rows])
            _merge(part, scale * wide[:, :, rows], shard)
    return out.transpose(1, 2).to(q.dtype).contiguous(), lse


def _merge(part: tuple[Tensor, Tensor], q: Tensor, shard: tuple[Tensor, Tensor]) -> None:
    """Take the keys `[B, N, D, S]` and values of a shard into outputs and `lse`, in place."""
    out, lse = part
    scores = q @ shard[0]
    merged = torch.logaddexp(lse, torch.logsumexp(scores, dim=-1))
    out *= torch.exp(lse - merged)[..., None]
    out += torch.exp(scores - merged[..., None]) @ shard[1]
    lse.copy_(merged)
