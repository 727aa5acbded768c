"""The table of shardings: every parameter is cut without loss, as the definition says."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from checkpoint_files import SMALL, canonical_tensors
from hypothesis import given, settings
from hypothesis import strategies as st

from wantrn.model.checkpoints.native import native_shapes, to_native
from wantrn.model.config import WanConfig
from wantrn.model.sharding import (
    Shard,
    Sharding,
    cut,
    join,
    local_shape,
    sharding_of,
    slices_of,
)
from wantrn.model.transformer import WanTransformer

CONFIGS = {
    "t2v": WanConfig(),
    "i2v": WanConfig(in_channels=36),
    "ti2v": WanConfig(
        num_attention_heads=24, num_layers=30, ffn_dim=14336, in_channels=48, out_channels=48
    ),
}
DEGREES = (1, 2, 4, 8)
TINY = replace(SMALL, num_attention_heads=8, ffn_dim=64)


def shards(tp: int, replicate: bool = False) -> list[Shard]:
    return [Shard(tp, rank, replicate) for rank in range(tp)]


@pytest.mark.parametrize("replicate", [False, True])
@pytest.mark.parametrize("tp", DEGREES)
@pytest.mark.parametrize("kind", CONFIGS)
def test_every_parameter_is_cut_without_loss(kind: str, tp: int, replicate: bool) -> None:
    for name, shape in native_shapes(replace(CONFIGS[kind], num_layers=1)).items():
        sharding = sharding_of(name, replicate)
        # real sizes along the axis that is cut; the others stay as they are, so few will do
        narrow = [n if axis == _axis(sharding) else min(n, 2) for axis, n in enumerate(shape)]
        tensor = torch.arange(math.prod(narrow)).view(narrow)
        parts = [cut(tensor, sharding, shard) for shard in shards(tp, replicate)]
        joined = join(parts, sharding)
        assert joined.shape == tensor.shape and torch.equal(joined, tensor)
        for shard in shards(tp, replicate):
            real = cut(torch.empty(shape, device="meta"), sharding, shard)
            assert real.shape == local_shape(shape, sharding, shard)


@pytest.mark.parametrize(("replicate", "most"), [(False, 0.30), (True, 0.50)])
@pytest.mark.parametrize("kind", CONFIGS)
def test_the_share_of_a_rank_of_four(kind: str, replicate: bool, most: float) -> None:
    """Of the parameters; more where each has all of cross-attention."""
    shapes = native_shapes(CONFIGS[kind])
    whole = sum(map(math.prod, shapes.values()))
    for shard in shards(4, replicate):
        local = [local_shape(shape, shard.sharding(n), shard) for n, shape in shapes.items()]
        share = sum(map(math.prod, local)) / whole
        print(f"{kind}, rank {shard.rank}: {share:.3f}")
        assert 1 / 4 < share <= most


def _axis(sharding: Sharding) -> int | None:
    return {Sharding.REPLICATED: None, Sharding.ROW: 1}.get(sharding, 0)


@pytest.mark.parametrize("tp", DEGREES)
def test_a_rank_has_its_heads_and_its_part_of_the_feed_forward(tp: int) -> None:
    """The definition, in the terms of heads and channels."""
    state = to_native(canonical_tensors(TINY), TINY)
    heads, hidden, ffn = TINY.num_attention_heads // tp, TINY.hidden_size, TINY.ffn_dim // tp
    dim = TINY.attention_head_dim
    for shard in shards(tp):
        local = {name: cut(t, shard.sharding(name), shard) for name, t in state.items()}
        mine = range(shard.rank * heads, (shard.rank + 1) * heads)
        assert shard.heads(TINY) == mine
        for block in ("blocks.0.", "blocks.1."):
            channels = [head * dim + d for head in mine for d in range(dim)]
            attention = f"{block}self_attention."
            rows = [part * hidden + c for part in range(3) for c in channels]
            for leaf in ("qkv.weight", "qkv.bias"):
                assert torch.equal(local[attention + leaf], state[attention + leaf][rows])
            for attention in (f"{block}self_attention.", f"{block}cross_attention."):
                for leaf in ("q_norm.weight", "k_norm.weight"):
                    assert torch.equal(local[attention + leaf], state[attention + leaf][channels])
                weight = state[f"{attention}out.weight"][:, channels]
                assert torch.equal(local[f"{attention}out.weight"], weight)
                bias = f"{attention}out.bias"
                assert torch.equal(local[bias], state[bias])
            for leaf in ("q.weight", "q.bias", "k.weight", "k.bias", "v.weight", "v.bias"):
                assert torch.equal(local[attention + leaf], state[attention + leaf][channels])
            mlp = f"{block}feed_forward."
            middle = slice(shard.rank * ffn, (shard.rank + 1) * ffn)
            for leaf in ("up.weight", "up.bias"):
                assert torch.equal(local[mlp + leaf], state[mlp + leaf][middle])
            assert torch.equal(local[f"{mlp}down.weight"], state[f"{mlp}down.weight"][:, middle])
            assert torch.equal(local[f"{mlp}down.bias"], state[f"{mlp}down.bias"])


def test_the_rest_is_whole_and_so_is_cross_attention_if_asked() -> None:
    for name in native_shapes(SMALL):
        inner = name.split(".", 2)[-1] if name.startswith("blocks.") else name
        part = inner.split(".")[0]
        own = part in ("self_attention", "feed_forward") and inner not in (
            "self_attention.out.bias",
            "feed_forward.down.bias",
        )
        cross = part == "cross_attention" and inner != "cross_attention.out.bias"
        assert (sharding_of(name) is not Sharding.REPLICATED) == (own or cross), name
        assert (sharding_of(name, True) is not Sharding.REPLICATED) == own, name


def test_the_table_has_every_parameter_of_the_model_and_no_other_name() -> None:
    with torch.device("meta"):
        model = WanTransformer(SMALL)
    for name in model.state_dict():
        assert isinstance(sharding_of(name), Sharding)
    for name in ("", "blocks.0", "blocks.x.modulation", "blocks.0.modulation.weight", "norm"):
        with pytest.raises(ValueError, match="is no parameter"):
            sharding_of(name)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(list(Sharding)),
    st.integers(1, 5),
    st.lists(st.integers(1, 4), min_size=2, max_size=3),
)
def test_cut_and_join_are_inverse(sharding: Sharding, tp: int, sizes: list[int]) -> None:
    shape = list(sizes)
    axis = _axis(sharding)
    if axis is not None:
        shape[axis] *= tp * (3 if sharding is Sharding.QKV else 1)
    tensor = torch.arange(torch.Size(shape).numel()).view(shape)
    parts = [cut(tensor, sharding, shard) for shard in shards(tp)]
    assert torch.equal(join(parts, sharding), tensor)
    for part, shard in zip(parts, shards(tp), strict=True):
        assert part.shape == local_shape(tuple(shape), sharding, shard)
        assert sum(s.width for s in slices_of(tuple(shape), sharding, shard)) in (
            {0} if axis is None else {part.shape[axis]}
        )
    if axis is not None:  # nothing is had twice
        counts = torch.cat([part.flatten() for part in parts]).bincount()
        assert torch.equal(counts, torch.ones_like(counts))


@pytest.mark.parametrize(
    ("change", "tp", "words"),
    [
        ({"num_attention_heads": 6}, 4, ("num_attention_heads is 6", "tp = 4")),
        ({"ffn_dim": 66, "num_attention_heads": 8}, 4, ("ffn_dim is 66", "tp = 4")),
    ],
)
def test_refuses_a_transformer_that_cannot_be_cut(
    change: dict[str, Any], tp: int, words: tuple[str, ...]
) -> None:
    config = replace(SMALL, **change)
    for action in (Shard(tp, 0).check, Shard(tp, 0).heads):
        with pytest.raises(ValueError, match=".*".join(words)):
            action(config)
    Shard(2, 1).check(config)


@pytest.mark.parametrize(("tp", "rank", "word"), [(0, 0, "tp"), (2, 2, "rank"), (2, -1, "rank")])
def test_refuses_a_rank_that_is_none(tp: int, rank: int, word: str) -> None:
    with pytest.raises(ValueError, match=f"{word} must be"):
        Shard(tp, rank)


def test_refuses_shapes_and_parts_that_do_not_fit() -> None:
    shard = Shard(2, 0)
    misfits = {Sharding.COLUMN: (3, 4), Sharding.ROW: (4,), Sharding.QKV: (8, 4)}
    for sharding, shape in misfits.items():
        with pytest.raises(ValueError, match=rf"shape \[{shape[0]}.*2 ranks"):
            cut(torch.zeros(shape), sharding, shard)
    with pytest.raises(ValueError, match="ranks 0 and 1 differ"):
        join([torch.zeros(2), torch.ones(2)], Sharding.REPLICATED)
    with pytest.raises(ValueError, match="3 equal parts"):
        join([torch.zeros(4), torch.ones(4)], Sharding.QKV)
    with pytest.raises(ValueError, match="empty"):
        join([], Sharding.COLUMN)


def test_one_rank_has_all() -> None:
    assert Shard.whole() == Shard(1, 0)
    for name, tensor in to_native(canonical_tensors(SMALL), SMALL).items():
        sharding = sharding_of(name)
        assert torch.equal(cut(tensor, sharding, Shard.whole()), tensor)
