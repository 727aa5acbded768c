"""`qkv_proj` and `row_mx_qkv_proj` with a token's heads spread over processes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import run_ranks
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from wantrn.kernels.ops import HeadNorm, QKVLayout, Rotary, qkv_proj, row_mx_qkv_proj
from wantrn.kernels.row_mx import ChannelWeight, quantize_rows

HIDDEN, DIM, TOKENS = 128, 16, 5
# of groups of two and of four; the order of ranks is not that of their numbers everywhere
PARTITIONS = (((0, 2), (3, 1)), ((2, 3, 1, 0),))


@dataclass(frozen=True)
class Layer:
    """A projection with all of its heads."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    heads: int
    kv_heads: int
    norm: HeadNorm

    @classmethod
    def random(cls, heads: int, kv_heads: int, dtype: torch.dtype) -> Layer:
        g = torch.Generator().manual_seed(heads + kv_heads)
        width = (heads + 2 * kv_heads) * DIM
        # heads of unequal size: a norm of only some of them shows
        size = torch.linspace(0.5, 4.0, width)
        return cls(
            torch.randn(2, TOKENS, HIDDEN, generator=g).to(dtype),
            (torch.randn(width, HIDDEN, generator=g) * size[:, None] / HIDDEN**0.5).to(dtype),
            (torch.randn(width, generator=g) * size).to(dtype),
            heads,
            kv_heads,
            HeadNorm(
                torch.rand(heads * DIM, generator=g) + 0.5,
                torch.rand(kv_heads * DIM, generator=g) + 0.5 if kv_heads else None,
            ),
        )

    def columns(self, ranks: int, position: int) -> Tensor:
        """Those of the heads at `position` among the columns of all."""
        kv = self.kv_heads * DIM
        parts = torch.split(torch.arange(self.weight.shape[0]), [self.heads * DIM, kv, kv])
        return torch.cat([part.chunk(ranks)[position] for part in parts if len(part)])

    def shard(
        self, groups: tuple[tuple[int, ...], ...], group: dist.ProcessGroup, position: int
    ) -> Layer:
        ranks = len(groups[0])
        own = self.columns(ranks, position)
        q, k = self.norm.q_weight, self.norm.k_weight
        norm = HeadNorm(
            q.chunk(ranks)[position],
            None if k is None else k.chunk(ranks)[position],
            self.norm.eps,
            groups,
            group,
        )
        return Layer(
            self.x,
            self.weight[own],
            self.bias[own],
            self.heads // ranks,
            self.kv_heads // ranks,
            norm,
        )

    def projected(self, layout: QKVLayout, packed: bool = False) -> Tensor:
        angles = torch.linspace(0, 7, TOKENS * DIM // 2).view(TOKENS, -1)
        arguments: dict[str, Any] = {
            "head_dim": DIM,
            "num_kv_heads": self.kv_heads,
            "norm": self.norm,
            "rotary": Rotary(angles.cos(), angles.sin()),
            "layout": layout,
        }
        if not packed:
            return qkv_proj(self.x, self.weight, self.bias, **arguments)
        weight = ChannelWeight.of(self.weight.float())
        return row_mx_qkv_proj(quantize_rows(self.x.float()), weight, self.bias, **arguments)


def rank_of_several(rank: int) -> None:
    for groups in PARTITIONS:
        made = [dist.new_group(list(members)) for members in groups]
        (number,) = [i for i, members in enumerate(groups) if rank in members]
        position = groups[number].index(rank)
        for heads, kv_heads in ((8, 4), (4, 0)):
            for dtype in (torch.float32, torch.bfloat16):
                layer = Layer.random(heads, kv_heads, dtype)
                shard = layer.shard(groups, made[number], position)
                check(layer, shard, layer.columns(len(groups[0]), position))
        if rank == 0:
            continue
        with FakeTensorMode(allow_non_fake_inputs=True):
            # nothing is exchanged: one rank does not come
            found = shard.projected(QKVLayout.NBSD)
            assert found.shape == (shard.heads, 2, TOKENS, DIM)
    plain = shard.projected(QKVLayout.BSD)
    project = shard.projected
    if rank == 0:  # which takes seconds
        project = torch.compile(project, fullgraph=True, backend="aot_eager")
    assert torch.equal(project(QKVLayout.BSD), plain)
    with pytest.raises(ValueError, match=r"norm\.replica_groups must be groups of one length"):
        HeadNorm(shard.norm.q_weight, group=shard.norm.group).replicas()
    with pytest.raises(ValueError, match=r"norm\.group must be of the ranks \[2, 3, 1, 0\]"):
        HeadNorm(shard.norm.q_weight, replica_groups=PARTITIONS[1]).replicas()


def check(layer: Layer, shard: Layer, columns: Tensor) -> None:
    whole = layer.projected(QKVLayout.BSD)
    assert_near(shard.projected(QKVLayout.BSD), whole[..., columns])
    own = columns[::DIM] // DIM
    assert_near(shard.projected(QKVLayout.NBSD), layer.projected(QKVLayout.NBSD)[own])
    packed = layer.projected(QKVLayout.BSD, packed=True)[..., columns]
    assert_near(shard.projected(QKVLayout.BSD, packed=True), packed)


def assert_near(found: Tensor, expected: Tensor) -> None:
    """Sums in another order: a few roundings of fp32, of which bf16 keeps one here and there."""
    error = (found.double() - expected.double()).abs()
    if found.dtype == torch.float32:
        assert error.max() <= 1e-6 * expected.abs().max()
    else:
        assert (error <= 2.0**-8 * expected.double().abs()).all()
        assert (error > 0).double().mean() < 0.01


def test_as_with_all_heads_on_one_rank(tmp_path: Path) -> None:
    run_ranks(4, tmp_path, rank_of_several)
