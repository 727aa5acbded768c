"""`ops.ring_attention` by torch and in the simulator, in one process and in several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import run_ranks
from statements import softmax_attention
from torch import Tensor

from wantrn.kernels.backend import Backend, Simulation, use_backend
from wantrn.kernels.ops import ring_attention

ONE = ((0,),)


def tokens(ranks: int, length: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(length)
    return [torch.randn(1, ranks * length, 2, 16).to(dtype) for _ in range(3)]


def statement(q: Tensor, k: Tensor, v: Tensor, total: int) -> Tensor:
    return softmax_attention(q, k[:, :total], v[:, :total], 0.25)


@pytest.mark.parametrize("backend", [Backend.TORCH, Backend.SIM])
@pytest.mark.parametrize("total", [None, 1, 70])
def test_one_rank(backend: Backend, total: int | None) -> None:
    q, k, v = tokens(1, 70)
    with use_backend(backend):
        found = ring_attention(q, k, v, ONE, total=total, lse=True)
    count = total or 70
    expected = statement(q, k, v, count)
    # what is beyond the last token means nothing
    assert torch.allclose(found.out[:, :count].double(), expected[:, :count], atol=2e-6)
    scores = 0.25 * torch.einsum("bqnd,bknd->bnqk", q.double(), k[:, :count].double())
    assert found.lse is not None
    assert torch.allclose(
        found.lse[..., :count].double(), scores.logsumexp(-1)[..., :count], atol=1e-5
    )
    assert found.path_names() == ("torch" if backend is Backend.TORCH else "const_max",) * 2
    assert found.gaps.isinf().all() == (backend is Backend.TORCH)


def test_heads_whose_bound_is_unsafe_are_computed_otherwise() -> None:
    q, k, v = tokens(1, 130)
    # orthogonal to the other keys and longer than any
    k[:, 5, 1] *= 400.0
    q[:, :, 1] -= (
        (q[:, :, 1] * k[:, 5:6, 1]).sum(-1, keepdim=True)
        * k[:, 5:6, 1]
        / k[:, 5:6, 1].square().sum(-1, keepdim=True)
    )
    with use_backend(Backend.SIM):
        found = ring_attention(q, k, v, ONE)
    assert found.path_names() == ("const_max", "online")
    assert found.gaps[0] < 58 < found.gaps[1]
    assert torch.allclose(found.out.double(), statement(q, k, v, 130), atol=2e-5)


def test_centred_keys() -> None:
    q, k, v = tokens(1, 130)
    k = k + 5.0
    with use_backend(Backend.SIM, Simulation("trn2", 1)):
        plain = ring_attention(q, k, v, ONE)
        centred = ring_attention(q, k, v, ONE, centre=True)
    assert (centred.gaps < plain.gaps).all()
    for found in (plain, centred):
        assert torch.allclose(found.out.double(), statement(q, k, v, 130), atol=1e-5)


def test_what_the_kernels_refuse_goes_to_torch() -> None:
    q = torch.randn(1, 5, 1, 160)
    with use_backend(Backend.SIM):
        assert ring_attention(q, q, q, ONE).path_names() == ("torch",)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"k": torch.zeros(1, 8, 2, 4)}, r"k must be \[1, 9, 2, 4\]"),
        ({"v": torch.zeros(1, 9, 2, 4).bfloat16()}, "v must be"),
        ({"q": torch.zeros(1, 9, 4)}, "q must be"),
        ({"total": 0}, "total must be 1 to 9"),
        ({"total": 10}, "total must be 1 to 9"),
        ({"scale": 0.0}, "scale must be positive"),
        ({"prefetch": 0}, "prefetch must be at least 1"),
        ({"centre": True, "lse": True}, "lse must be False"),
        ({"replica_groups": ((0, 1),)}, "group must be of the ranks"),
        ({"replica_groups": ((1,),)}, "each rank once"),
        ({"replica_groups": ((0,), (1, 2))}, "groups of one length"),
    ],
)
def test_misfits_are_named(changed: dict[str, Any], words: str) -> None:
    q = torch.zeros(1, 9, 2, 4)
    arguments = {"q": q, "k": q, "v": q, "replica_groups": ONE, **changed}
    with pytest.raises(ValueError, match=words):
        ring_attention(**arguments)


# In several processes


def rank_of_a_ring(rank: int) -> None:
    """Two rings of two, the second one in the other order; every backend against the statement."""
    rings = ((0, 2), (3, 1))
    groups = [dist.new_group(list(ring)) for ring in rings]
    ring = 0 if rank in rings[0] else 1
    position = rings[ring].index(rank)
    for length, total in ((40, 80), (33, 50)):
        q, k, v = (x + ring for x in tokens(2, length))
        here = slice(position * length, (position + 1) * length)
        expected = statement(q, k, v, total)[:, here]
        q, k, v = (x[:, here] for x in (q, k, v))
        for backend in (Backend.TORCH, Backend.SIM):
            with use_backend(backend):
                found = ring_attention(q, k, v, rings, group=groups[ring], total=total)
            count = min(max(total - position * length, 0), length)
            error = (found.out[:, :count].double() - expected[:, :count]).abs().max()
            assert error < 1e-5, (rank, found.path_names(), error)
    with pytest.raises(ValueError, match="group must be of the ranks"):
        ring_attention(q, k, v, rings, group=groups[1 - ring] if rank in rings[1 - ring] else None)


def test_processes_of_a_ring(tmp_path: Path) -> None:
    run_ranks(4, tmp_path, rank_of_a_ring)
