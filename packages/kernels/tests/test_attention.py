from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from statements import assert_rounds_to, softmax_attention

from wantrn.kernels.ops import attention


@settings(max_examples=50, deadline=None)
@given(
    batch=st.integers(1, 2),
    queries=st.integers(1, 40),
    keys=st.integers(1, 70),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 2),
    head_dim=st.sampled_from([1, 8, 128]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_agrees_with_its_statement(
    batch: int,
    queries: int,
    keys: int,
    kv_heads: int,
    group: int,
    head_dim: int,
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(queries * 100 + keys)
    q = torch.randn(batch, queries, kv_heads * group, head_dim).to(dtype)
    k = torch.randn(batch, keys, kv_heads, head_dim).to(dtype)
    v = torch.randn(batch, keys, kv_heads, head_dim).to(dtype)
    out = attention(q, k, v)
    assert out.is_contiguous()
    expected = softmax_attention(q, k, v, head_dim**-0.5)
    # scores of size s give weights with a relative error of s roundoffs
    assert_rounds_to(out, expected, 40 if dtype == torch.float32 else 3, float(v.abs().max()))


@pytest.mark.parametrize("loud", ["q", "k", "both"])
def test_large_scores_do_not_overflow(loud: str) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 33, 2, 16) for _ in range(3))
    q, k = q * (30 if loud != "k" else 1), k * (30 if loud != "q" else 1)
    expected = softmax_attention(q, k, v, 0.25)
    assert_rounds_to(attention(q, k, v), expected, 20_000, 4.0)


def test_given_scale() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 7, 1, 4) for _ in range(3))
    assert_rounds_to(attention(q, k, v, scale=3.0), softmax_attention(q, k, v, 3.0), 100, 3.0)
    mean = v.mean(1, keepdim=True).expand_as(v)
    assert torch.allclose(attention(q, k, v, scale=0.0), mean, atol=1e-6)


def test_bf16_is_no_worse_than_torch() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 200, 2, 64).bfloat16() for _ in range(3))
    expected = softmax_attention(q, k, v, 0.125)
    plain = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    theirs = (plain.transpose(1, 2).double() - expected).abs().max()
    ours = (attention(q, k, v).double() - expected).abs().max()
    assert ours <= 1.5 * theirs


def test_strided_views_are_taken_as_they_are() -> None:
    torch.manual_seed(0)
    qkv = torch.randn(2, 9, 3, 2, 8)
    q, k, v = qkv.unbind(2)
    dense = attention(q.contiguous(), k.contiguous(), v.contiguous())
    assert torch.allclose(attention(q, k, v), dense, atol=1e-6)


@pytest.mark.parametrize(
    ("q", "k", "v", "name"),
    [
        ((1, 4, 2), (1, 4, 2, 8), (1, 4, 2, 8), "q must be"),
        ((1, 4, 2, 8), (2, 4, 2, 8), (2, 4, 2, 8), "k must be"),
        ((1, 4, 2, 8), (1, 4, 2, 6), (1, 4, 2, 6), "k must be"),
        ((1, 4, 2, 8), (1, 0, 2, 8), (1, 0, 2, 8), "k must be"),
        ((1, 4, 3, 8), (1, 4, 2, 8), (1, 4, 2, 8), "k's heads"),
        ((1, 4, 2, 8), (1, 4, 2, 8), (1, 5, 2, 8), "v must have"),
    ],
)
def test_misfits_are_named(
    q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], name: str
) -> None:
    with pytest.raises(ValueError, match=name):
        attention(torch.zeros(q), torch.zeros(k), torch.zeros(v))


def test_mixed_dtypes_are_named() -> None:
    q = torch.zeros(1, 2, 1, 4)
    with pytest.raises(ValueError, match="k and v must have q's dtype"):
        attention(q, q.bfloat16(), q)
