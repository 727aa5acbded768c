"""The guard: which heads it runs again, that it must, and that the result is then right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ring_support import assert_as_good_as_torch, exact, launched, qkv, sharded, whole
from torch import Tensor

from wantrn.kernels.ring import (
    RankInput,
    gap_reference,
    guarded_attention,
    ring_attention,
    ring_attention_online,
    safe_least,
)

SCALE = 64**-0.5
LENGTH = 260


def loud_key(q: Tensor, k: Tensor, v: Tensor) -> None:
    k[:, 7] *= 40


def loud_query(q: Tensor, k: Tensor, v: Tensor) -> None:
    q[:, 200] *= 40


def constant_keys(q: Tensor, k: Tensor, v: Tensor) -> None:
    k[:] = 20 * k[:, :1]


def large_norms(q: Tensor, k: Tensor, v: Tensor) -> None:
    q *= 30
    k *= 30


def zero_rows(q: Tensor, k: Tensor, v: Tensor) -> None:
    q[:, 3:40] = 0
    k[:, 100:150] = 0


def all_zero(q: Tensor, k: Tensor, v: Tensor) -> None:
    q[:] = 0
    k[:] = 0


ADVERSE = [loud_key, loud_query, constant_keys, large_norms]
HARMLESS = [zero_rows, all_zero]
Spoil = Callable[[Tensor, Tensor, Tensor], None]


def spoilt(spoil: Spoil) -> list[Tensor]:
    """Three heads, of which the middle one is not as the others."""
    inputs = qkv(LENGTH, 3, 64)
    spoil(*(x[:, :, 1] for x in inputs))
    return inputs


def launch(lnc: int = 2) -> Callable[[Any, list[tuple[Any, ...]]], list[Any]]:
    def run(kernel: Any, inputs: list[tuple[Any, ...]]) -> list[Any]:
        return launched(kernel, [RankInput(*one) for one in inputs], lnc)

    return run


def head(inputs: list[Tensor], number: int) -> list[Tensor]:
    return [x[:, :, number : number + 1] for x in inputs]


def reference(inputs: list[Tensor]) -> tuple[Tensor, Tensor]:
    return exact(inputs, SCALE)


@pytest.mark.parametrize("spoil", ADVERSE)
def test_an_unsafe_head_is_run_again_and_the_bound_alone_was_wrong(spoil: Spoil) -> None:
    inputs = spoilt(spoil)
    shards = sharded(inputs, 4)
    found = guarded_attention(launch(), shards)
    assert found.paths == ("const_max", "online", "const_max")
    expected, _ = reference(inputs)
    out = whole(found.out, LENGTH)
    bounded = whole([result[0] for result in launched(ring_attention, shards, 2)], LENGTH)
    for number in range(3):
        one = slice(number, number + 1)
        assert_as_good_as_torch(out[:, :, one], expected[:, :, one], head(inputs, number))
    # the heads that were safe are those of the kernel with the bound, bit for bit
    assert torch.equal(out[:, :, ::2], bounded[:, :, ::2])
    wrong = (bounded[:, :, 1].double() - expected[:, :, 1]).abs().max()
    assert not bool(wrong < 0.1 * expected[:, :, 1].abs().max())


@pytest.mark.parametrize("spoil", HARMLESS)
def test_what_is_safe_is_not_run_again(spoil: Spoil) -> None:
    inputs = spoilt(spoil)
    found = guarded_attention(launch(), sharded(inputs, 3))
    assert found.paths == ("const_max",) * 3
    expected, _ = reference(inputs)
    assert_as_good_as_torch(whole(found.out, LENGTH), expected, inputs)


def test_centring_makes_keys_with_much_in_common_safe() -> None:
    inputs = spoilt(constant_keys)
    found = guarded_attention(launch(), sharded(inputs, 2, centre=True))
    assert found.paths == ("const_max",) * 3
    expected, _ = reference(inputs)
    out = whole(found.out, LENGTH)
    assert_as_good_as_torch(out[:, :, 1:2], expected[:, :, 1:2], head(inputs, 1))


@settings(max_examples=20, deadline=None)
@given(loudness=st.floats(0.5, 12.0), seed=st.integers(0, 5), ranks=st.sampled_from([1, 2, 4]))
def test_the_guard_trips_where_the_gap_is_too_wide(loudness: float, seed: int, ranks: int) -> None:
    """And what it leaves to the bound is as good as attention is."""
    inputs = qkv(LENGTH, 2, 64, seed)
    inputs[1][:, 11, 1] *= loudness
    inputs[0][:, :, 1] *= loudness / 2
    shards = sharded(inputs, ranks)
    found = guarded_attention(launch(1), shards)
    gaps = gap_reference(inputs[0].double(), inputs[1].double(), SCALE)[0]
    keys = shards[0].k.shape[1] * ranks
    limit = -torch.log(torch.tensor(safe_least(keys), dtype=torch.float64))
    q, k = inputs[0].double().norm(dim=-1), inputs[1].double().norm(dim=-1)
    raised = 2.0**-7 * SCALE * (q.amax(1) * k.amax(1))[0]
    for number in range(2):
        if gaps[number] > limit:
            assert found.paths[number] == "online"
        if gaps[number] + raised[number] < limit:
            assert found.paths[number] == "const_max"
        # the kernel's gap is that of the reference, up to the margin of the bound
        if gaps[number] < limit:
            assert gaps[number] - 0.01 <= found.gaps()[number]
            assert found.gaps()[number] <= gaps[number] + raised[number] + 0.01
    expected, _ = reference(inputs)
    out = whole(found.out, LENGTH)
    for number in range(2):
        one = slice(number, number + 1)
        assert_as_good_as_torch(out[:, :, one], expected[:, :, one], head(inputs, number))


def test_heads_may_start_with_maxima() -> None:
    inputs = spoilt(loud_key)
    kernels = []

    def run(kernel: Any, given: list[tuple[Any, ...]]) -> list[Any]:
        kernels.append((kernel, given[0][0].shape[2]))
        return launch()(kernel, given)

    found = guarded_attention(run, sharded(inputs, 2, lse=True), online=[1])
    assert kernels == [(ring_attention, 2), (ring_attention_online, 1)]
    assert found.paths == ("const_max", "online", "const_max")
    assert bool(found.least.isnan()[1]) and not bool(found.least.isnan()[::2].any())
    _, logs = reference(inputs)
    lse = whole(found.lse, LENGTH, 2).double()
    torch.testing.assert_close(lse, logs, rtol=2.0**-8, atol=2.0**-8)


def test_a_rank_of_its_own_takes_the_path_of_the_others() -> None:
    """Each process sees its own queries; the least sum is that of all, by the caller's exchange."""
    inputs = spoilt(loud_query)
    shards = sharded(inputs, 2)
    results = {kernel: launch()(kernel, [(s.q, s.k, s.v, s.options) for s in shards])
               for kernel in (ring_attention,)}  # fmt: skip
    again = []

    def own(kernel: Any, given: list[tuple[Any, ...]]) -> list[Any]:
        if kernel is ring_attention:
            return results[kernel][:1]
        again.append(kernel)
        return [given[0][0]]

    least = torch.stack([torch.as_tensor(r[1]).double().amin(0) for r in results[ring_attention]])
    # the loud query, token 200, is on rank 1, and this is rank 0
    found = guarded_attention(own, shards[:1], lambda mine: torch.minimum(mine, least.amin(0)))
    assert found.paths == ("const_max", "online", "const_max")
    assert again == [ring_attention_online]
    assert guarded_attention(own, shards[:1]).paths == ("const_max",) * 3


def test_what_is_no_head_is_refused() -> None:
    shards = sharded(qkv(5, 2, 8), 1)
    with pytest.raises(ValueError, match=r"online is \[2\]; q has the heads 0 to 1"):
        guarded_attention(launch(), shards, online=[2])
    with pytest.raises(ValueError, match="ranks is empty"):
        guarded_attention(launch(), [])
