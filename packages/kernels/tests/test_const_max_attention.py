"""`attention_const_max` against float64, and what it does not do between its two matmuls."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ring_support import assert_as_good_as_torch, exact, qkv, sample
from torch import Tensor

import nkisim
from nkisim.errors import NkiWarning
from wantrn.kernels.ring import (
    RingOptions,
    attention_const_max,
    ring_attention,
    ring_attention_online,
)

LENGTHS = st.sampled_from([1, 2, 63, 127, 128, 129, 200, 511])


def run(inputs: list[Tensor], lnc: int, target: str, *args: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", NkiWarning)
        return nkisim.simulate(attention_const_max, target=target)[lnc](*inputs, *args)


@settings(max_examples=30, deadline=None)
@given(
    queries=LENGTHS,
    keys=LENGTHS,
    heads=st.integers(1, 3),
    batch=st.integers(1, 2),
    dim=st.sampled_from([1, 16, 64, 128]),
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
    lnc=st.sampled_from([1, 2]),
    target=st.sampled_from(["trn2", "trn3"]),
)
def test_it_is_attention(
    queries: int, keys: int, heads: int, batch: int, dim: int,
    dtype: torch.dtype, lnc: int, target: str,
) -> None:  # fmt: skip
    inputs = [
        sample((batch, length, heads, dim), dtype, seed)
        for seed, length in enumerate((queries, keys, keys))
    ]
    out, least, lse = run(inputs, lnc, target, 0.0, True)
    expected, logs = exact(inputs, dim**-0.5)
    assert_as_good_as_torch(out, expected, inputs)
    assert out.shape == inputs[0].shape and out.dtype == dtype
    assert least.shape == (lnc, batch * heads)
    # the sum is of exponentials that were rounded once
    coarse = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-18
    torch.testing.assert_close(lse.double(), logs, rtol=coarse, atol=coarse)


@pytest.mark.parametrize(("queries", "keys"), [(1300, 1200), (2049, 130)])
def test_several_blocks_of_queries_and_of_keys(queries: int, keys: int) -> None:
    inputs = [sample((1, n, 1, 128), torch.bfloat16, n) for n in (queries, keys, keys)]
    out, _ = run(inputs, 2, "trn3")
    expected, _ = exact(inputs, 128**-0.5)
    assert_as_good_as_torch(out, expected, inputs)


def test_the_scale_is_the_callers() -> None:
    inputs = qkv(150, 2, 32)
    out, _ = run(inputs, 1, "trn3", 0.5)
    expected, _ = exact(inputs, 0.5)
    assert_as_good_as_torch(out, expected, inputs, 0.5)


def test_the_least_sum_is_that_of_the_reference() -> None:
    """Up to what the bound is raised by, against the roundings of squares."""
    q, k, v = qkv(300, 3, 64)
    _, least = run([q, k, v], 2, "trn3")
    scores = torch.einsum("bqnd,bknd->bnqk", q.double(), k.double()) / 8
    bounds = (q.double().norm(dim=-1) * k.double().norm(dim=-1).amax(1, keepdim=True)) / 8
    sums = torch.exp(scores - bounds.transpose(1, 2)[..., None]).sum(-1).amin(-1)[0]
    found = torch.as_tensor(least).double().amin(0)
    assert bool((found <= sums * 1.01).all())
    assert bool((found >= sums * torch.exp(-(2.0**-7) * bounds.amax(1)[0])).all())


def test_no_exponent_is_above_zero() -> None:
    """With a query along the longest key, the bound is the score itself but for its margin."""
    q, k, v = qkv(256, 1, 128)
    q[0, :, 0] = 8 * k[0, :, 0]
    _, least = run([q, k, v], 1, "trn3")
    longest = int(k.double().norm(dim=-1).argmax())
    bound = 8 * float(k[0, longest, 0].double().square().sum()) * 128**-0.5
    _, _, lse = run([q[:, longest : longest + 1], k, v], 1, "trn3", 0.0, True)
    assert float(lse[0, 0, 0]) >= bound * (1 - 2.0**-8)
    assert 0 < float(torch.as_tensor(least).max()) <= 1.0


def test_between_the_matmuls_there_is_a_subtraction_and_an_exponential() -> None:
    """Transposes are those of Q and K, by tiles of 128 tokens, and one of the least sums."""
    x = nkisim.TensorSpec((1, 1536, 1, 128), "bfloat16")
    found = nkisim.profile(attention_const_max, x, x, x, target="trn3", numerics=False).json()
    groups, blocks = 12, 2
    assert found["count.nc_transpose"] == 2 * groups + 1
    # the squares of 2 x 2 blocks of tokens, the root of the bounds
    assert found["count.activation"] == groups * blocks + 4 + 1
    # and the division of 2 blocks
    assert found["count.tensor_tensor"] == groups * blocks + 2


@pytest.mark.parametrize("kernel", [attention_const_max, ring_attention, ring_attention_online])
def test_the_linter_has_nothing_to_say(kernel: Any) -> None:
    assert nkisim.lint(kernel) == []


@pytest.mark.parametrize(
    ("shapes", "options", "text"),
    [
        (((1, 4, 2, 129),) * 3, {}, r"q is \[1, 4, 2, 129\]"),
        (((1, 4, 2, 8), (1, 4, 1, 8), (1, 4, 1, 8)), {}, r"k is \[1, 4, 1, 8\]"),
        (((1, 4, 2, 8), (1, 5, 2, 8), (1, 4, 2, 8)), {}, r"v is \[1, 4, 2, 8\]"),
        (((1, 4, 2, 8),) * 3, {"valid": 5}, "valid is 5"),
        (((1, 4, 2, 8),) * 3, {"valid": 0}, "valid is 0 on the only rank"),
        (((1, 4, 2, 8),) * 3, {"valid": 2, "common": 3}, "common is 3"),
        (((1, 3, 2, 8), (1, 4, 2, 8), (1, 4, 2, 8)), {"valid": 2}, "q has 3 tokens and k 4"),
        (((1, 4, 2, 8),) * 3, {"valid": 2, "ranks": 2}, "common is not given"),
        (((1, 4, 2, 8),) * 3, {"scale": -1.0}, "scale is -1.0"),
        (((1, 4, 2, 8),) * 3, {"prefetch": 0}, "prefetch is 0"),
        (((1, 4, 2, 8),) * 3, {"ranks": 2, "groups": ((0, 1, 2),)}, r"groups has \[0, 1, 2\]"),
        (((1, 4, 2, 8),) * 3, {"lse": True, "centre": True}, "lse is wanted of centred keys"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(
    shapes: tuple[tuple[int, ...], ...], options: dict[str, Any], text: str
) -> None:
    inputs = [torch.zeros(shape, dtype=torch.bfloat16) for shape in shapes]
    with pytest.raises(ValueError, match=text):
        nkisim.simulate(ring_attention)(*inputs, RingOptions(**options))
