"""Kernels whose ranks are processes: the bits of the same ranks in one process, and failures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import run_ranks
from qkv_cases import Case, random_case
from ring_support import qkv, whole
from torch import Tensor

import nkisim
from nkisim.errors import NkiPeerError
from wantrn.kernels import ops
from wantrn.kernels.backend import Backend, Simulation, use_backend
from wantrn.kernels.process_carrier import ProcessCarrier
from wantrn.kernels.qkv import Options, best_plan, qkv_cte
from wantrn.kernels.ring import RankInput, RingOptions, guarded_attention
from wantrn.kernels.row_mx import ChannelWeight

# of a world of four; positions are not the order of numbers everywhere
RINGS = {2: ((0, 2), (3, 1)), 4: ((2, 3, 1, 0),)}


def own_of(groups: tuple[tuple[int, ...], ...], rank: int) -> tuple[int, int, dist.ProcessGroup]:
    """The number of this rank's group, its position there, and the process group."""
    made = [dist.new_group(list(members)) for members in groups]
    (number,) = [i for i, members in enumerate(groups) if rank in members]
    return number, groups[number].index(rank), made[number]


# Rings


def ring_inputs(ranks: int) -> tuple[list[list[Tensor]], int]:
    """Shards of a sequence whose last one is padded, and its length; head 1 defies the bound."""
    length = 40
    tensors = qkv(length * ranks, 2, 16, seed=ranks)
    q, k, _ = tensors
    k[:, 5, 1] *= 400.0
    q[:, :, 1] -= (
        (q[:, :, 1] * k[:, 5:6, 1]).sum(-1, keepdim=True)
        * k[:, 5:6, 1]
        / k[:, 5:6, 1].square().sum(-1, keepdim=True)
    )
    shards = [[x.chunk(ranks, 1)[p].contiguous() for x in tensors] for p in range(ranks)]
    return shards, length * ranks - 7


def ring_in_one_process(shards: list[list[Tensor]], total: int, simulation: Simulation) -> Any:
    ranks, length = len(shards), shards[0][0].shape[1]
    valid = [min(max(total - p * length, 0), length) for p in range(ranks)]
    options = [
        RingOptions(ranks, scale=0.25, valid=count, common=min(valid), lse=True) for count in valid
    ]
    world = nkisim.World(ranks, simulation.lnc, simulation.target)
    given = [RankInput(q, k, v, one) for (q, k, v), one in zip(shards, options, strict=True)]
    return guarded_attention(world.run, given)


def rank_of_rings(rank: int) -> None:
    for size, lnc in ((2, 2), (4, 1)):
        rings = RINGS[size]
        _, position, group = own_of(rings, rank)
        shards, total = ring_inputs(size)
        simulation = Simulation("trn3", lnc)
        with use_backend(Backend.SIM, simulation):
            q, k, v = shards[position]
            found = ops.ring_attention(q, k, v, rings, group=group, total=total, lse=True)
        expected = ring_in_one_process(shards, total, simulation)
        assert found.path_names() == expected.paths == ("const_max", "online")
        count = min(total - position * 40, 40)
        assert torch.equal(found.out[:, :count], expected.out[position][:, :count])
        assert found.lse is not None
        assert torch.equal(found.lse[..., :count], expected.lse[position][..., :count])
        assert torch.equal(found.gaps, expected.gaps().float())
        # a real tensor, not an empty one
        assert whole([found.out], count).abs().max() > 0


# A norm over all heads


def projected(case: Case, position: int, norm: ops.HeadNorm, rotary: ops.Rotary) -> Tensor:
    options, bias = case.options, case.biases[position]
    assert bias is not None
    arguments: dict[str, Any] = {
        "head_dim": options.head_dim,
        "num_kv_heads": options.kv_heads,
        "norm": norm,
        "rotary": rotary,
    }
    scales = case.weight_scales[position]
    if scales is None:
        weight = case.weights[position].T.contiguous()
        return ops.qkv_proj(case.x, weight, bias[0], **arguments)
    codes = ChannelWeight(case.weights[position], scales)
    return ops.row_mx_qkv_proj(case.x, codes, bias[0], **arguments)


def rank_of_heads(rank: int) -> None:
    for size, lnc, packed in ((2, 2, True), (4, 1, False), (2, 2, False)):
        groups = RINGS[size]
        _, position, group = own_of(groups, rank)
        everyone = (tuple(range(size)),)
        options = Options(2, 1, head_dim=32, replica_groups=everyone)
        case = random_case((1, 70, 128), options, packed=packed, ranks=size)
        gammas = case.gammas[position]
        assert gammas is not None and gammas[1] is not None and case.angles is not None
        norm = ops.HeadNorm(gammas[0][0], gammas[1][0], 1e-6, groups, group)
        with use_backend(Backend.SIM, Simulation("trn3", lnc)):
            found = projected(case, position, norm, ops.Rotary(*case.angles))
        world = nkisim.World(size, lnc, "trn3")
        expected = world.run(qkv_cte, case.arguments(best_plan(case.sizes(), lnc)))
        assert torch.equal(found, expected[position])
        # torch adds up in another order
        by_torch = projected(case, position, norm, ops.Rotary(*case.angles))
        assert (found.float() - by_torch.float()).abs().max() < 0.1


# When a rank fails


def rank_that_may_fail(number: int) -> None:
    assert dist.group.WORLD is not None
    name = dist.group.WORLD.group_name
    q, k, v = qkv(8, 1, 16)

    def failing(*args: Any) -> None:
        raise ArithmeticError("rank 1 cannot")

    def run(kernel: Any) -> Any:
        return nkisim.Rank(ProcessCarrier(name)).run(kernel, q, k, v, RingOptions(4))

    from wantrn.kernels.ring.kernels import ring_attention

    with pytest.raises(ArithmeticError if number == 1 else NkiPeerError) as told:
        run(failing if number == 1 else ring_attention)
    if number != 1:
        assert "rank 1 failed: ArithmeticError: rank 1 cannot" in str(told.value)
    # nothing is left of it
    assert run(ring_attention)[0].isfinite().all()
    if number == 1:
        os._exit(0)  # without a word
    with pytest.raises(NkiPeerError, match="rank 1 is lost: "):
        run(ring_attention)


def rank(number: int) -> None:
    rank_of_rings(number)
    rank_of_heads(number)
    rank_that_may_fail(number)


def test_four_processes(tmp_path: Path) -> None:
    """All in the same ones, since a process takes seconds to start."""
    run_ranks(4, tmp_path, rank)
