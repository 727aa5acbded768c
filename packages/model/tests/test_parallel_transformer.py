"""The transformer on several ranks against the one on a single rank."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from rank_processes import run_ranks
from torch import Tensor

from wantrn.model.config import WanConfig
from wantrn.model.local_tokens import LocalTokens
from wantrn.model.parallelism import Parallelism
from wantrn.model.sharding import cut
from wantrn.model.tiny import random_state
from wantrn.model.transformer import WanTransformer
from wantrn.parallel import Degrees, Groups
from wantrn.parallel.attention import Strategy
from wantrn.parallel.layout import Layout as RankLayout
from wantrn.parallel.layout import place_in
from wantrn.parallel.shares import norm_tokens_of, tokens_of

TEXT_TOKENS = 7


@dataclass(frozen=True)
class Layout:
    """How ranks share the work."""

    degrees: Degrees
    strategy: Strategy = Strategy.RING
    replicate_cross_attention: bool = False

    def parallelism(self) -> Parallelism:
        groups = Groups.build(self.degrees)
        return Parallelism(
            groups, self.strategy, replicate_cross_attention=self.replicate_cross_attention
        )


@dataclass(frozen=True)
class Case:
    """A model's channels, the latents' (frames, height, width), and how many timesteps."""

    in_channels: int
    out_channels: int
    latents: tuple[int, int, int]
    timesteps: int = 1

    def config(self) -> WanConfig:
        return WanConfig(
            num_attention_heads=4,
            attention_head_dim=24,
            in_channels=self.in_channels,
            out_channels=self.out_channels,
            text_dim=16,
            freq_dim=16,
            ffn_dim=160,
            num_layers=2,
        )

    @property
    def tokens(self) -> int:
        t, h, w = self.latents
        return t * h * w // 4


CASES = {
    "T2V, 24 tokens": Case(16, 16, (2, 6, 8)),
    "I2V, 45 tokens": Case(36, 16, (3, 6, 10)),
    "T2V, 13 tokens": Case(16, 16, (1, 2, 26)),
    "TI2V, a timestep a frame": Case(48, 48, (3, 6, 10), timesteps=3),
    "TI2V, a timestep a token": Case(48, 48, (1, 2, 26), timesteps=13),
    "fewer tokens than ranks": Case(16, 16, (1, 2, 6)),
}
LAYOUTS = {
    2: {
        "tp2": Layout(Degrees(tp=2)),
        "ring2": Layout(Degrees(ring=2)),
        "ulysses2": Layout(Degrees(ulysses=2)),
        "all-gather2": Layout(Degrees(ring=2), Strategy.ALL_GATHER),
        "tp2, tokens sharded": Layout(Degrees(tp=2, sequence_sharding=True)),
        "tp2, whole cross-attention": Layout(Degrees(tp=2), replicate_cross_attention=True),
        "tp2, tokens sharded, whole cross-attention": Layout(
            Degrees(tp=2, sequence_sharding=True), replicate_cross_attention=True
        ),
    },
    4: {
        "tp4": Layout(Degrees(tp=4)),
        "ring4": Layout(Degrees(ring=4)),
        "ulysses4": Layout(Degrees(ulysses=4)),
        "ring2 x ulysses2": Layout(Degrees(ring=2, ulysses=2)),
        "tp2 x ring2": Layout(Degrees(tp=2, ring=2)),
        "tp2 x ulysses2, tokens sharded": Layout(Degrees(tp=2, ulysses=2, sequence_sharding=True)),
        "tp2 x all-gather2, tokens sharded": Layout(
            Degrees(tp=2, ring=2, sequence_sharding=True), Strategy.ALL_GATHER
        ),
    },
}


def inputs(case: Case) -> tuple[Tensor, Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(3)
    latents = torch.randn(2, case.in_channels, *case.latents, generator=generator)
    timestep = 1000 * torch.rand(2, case.timesteps, generator=generator)
    texts = torch.randn(2, 2, TEXT_TOKENS, 16, generator=generator)
    return latents, timestep, list(texts)


def velocities(case: Case, parallel: Parallelism, batched: bool = False) -> list[Tensor]:
    """For two prompts, from weights that are the same on all ranks."""
    config, shard = case.config(), parallel.shard
    with torch.device("meta"):
        model = WanTransformer(config, parallel=parallel)
    state = {
        name: cut(tensor, shard.sharding(name), shard)
        for name, tensor in random_state(config, 0).items()
    }
    model.load_state_dict(state, assign=True)
    model.eval().requires_grad_(False)
    latents, timestep, texts = inputs(case)
    with torch.inference_mode():
        contexts = [model.text_context(text) for text in texts]
        rotary = model.rotary(latents)
        return list(model.velocities(latents, timestep, contexts, rotary, batched))


def of_all(layouts: dict[str, Layout]) -> dict[tuple[str, str], list[Tensor]]:
    found = {}
    for layout_name, layout in layouts.items():
        parallel = layout.parallelism()
        for case_name, case in CASES.items():
            found[layout_name, case_name] = velocities(case, parallel)
    return found


@pytest.mark.parametrize("world", LAYOUTS)
def test_all_ranks_have_the_velocities_of_one(world: int) -> None:
    on_one = {name: velocities(case, Parallelism()) for name, case in CASES.items()}
    by_rank = run_ranks(world, of_all, LAYOUTS[world])
    faults = []
    for layout in LAYOUTS[world]:
        for case in CASES:
            for rank, found in enumerate(by_rank):
                errors = [
                    float((ours - one).abs().max() / one.abs().max())
                    for ours, one in zip(found[layout, case], on_one[case], strict=True)
                ]
                if not max(errors) <= 1e-5:
                    faults.append(f"{layout}, {case}, rank {rank}: {errors}")
    assert not faults


def test_both_branches_in_one_pass() -> None:
    for case in CASES.values():
        apart = velocities(case, Parallelism())
        together = velocities(case, Parallelism(), batched=True)
        for one, other in zip(apart, together, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("degrees", "fault"),
    [
        (Degrees(tp=3), "tp must divide the 4 heads, got 3"),
        (Degrees(tp=2, ulysses=4), "ulysses must divide the 2 heads .* tp=2, got 4"),
    ],
)
def test_heads_that_cannot_be_shared(degrees: Degrees, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        degrees.check_heads(CASES["T2V, 24 tokens"].config().num_attention_heads)


def test_all_is_where_the_latents_are() -> None:
    """Nothing of a forward stays on the CPU: torch refuses tensors of two devices."""
    meta = torch.device("meta")
    case = CASES["TI2V, a timestep a frame"]
    with meta:
        model = WanTransformer(case.config())
    latents, timestep, (text, _) = inputs(case)
    latents = latents.to(meta)
    with torch.inference_mode():
        context = model.text_context(text.to(meta))
        found = model(latents, timestep.to(meta), context, model.rotary(latents))
    assert found.device == meta
    assert found.shape == (2, case.out_channels, *case.latents)


@pytest.mark.parametrize("sharding", [False, True])
def test_tokens_are_those_that_the_layout_shows(sharding: bool) -> None:
    """``python -m wantrn.parallel layout`` draws what the transformer does."""
    degrees = Degrees(tp=2, ring=3, ulysses=2, sequence_sharding=sharding)
    layout = RankLayout.arithmetic(degrees)
    for total in (1, 5, 12, 45, 97, 3645):
        for rank in range(degrees.world):
            groups = groups_without_processes(degrees, layout, rank)
            tokens = LocalTokens.of(total, Parallelism(groups))
            at = layout.coordinates_of(rank)
            shown = norm_tokens_of(at, degrees, total)
            shards = tokens.shards
            assert shown.real == range(shards.start, shards.start + shards.real)
            assert shown.padding == shards.length - shards.real
            whole = tokens_of(at, degrees, total)
            assert len(whole.real) + whole.padding == shards.length * tokens.sharers


def groups_without_processes(degrees: Degrees, layout: RankLayout, rank: int) -> Groups:
    """Only positions and sizes count."""

    def group(axis: str) -> SimpleNamespace:
        ranks, position = place_in(getattr(layout, axis), rank)
        return SimpleNamespace(size=len(ranks), position=position)

    axes = {axis: group(axis) for axis in ("tp", "ulysses", "ring", "cfg", "dp", "cp")}
    return cast(Groups, SimpleNamespace(degrees=degrees, **axes))
