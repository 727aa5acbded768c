"""Local attention against float64."""

from __future__ import annotations

import pytest
import torch
from exact_attention import attention, excess, fp32_error
from torch import Tensor

from wantrn.parallel.attention import torch_attend

BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def inputs(
    queries: int, keys: int, heads: int = 2, width: int = 16, batch: int = 2
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(queries + 7 * keys)
    shapes = ((batch, length, heads, width) for length in (queries, keys, keys))
    q, k, v = (torch.randn(shape, generator=generator) for shape in shapes)
    return q, k, v


def check(q: Tensor, k: Tensor, v: Tensor) -> None:
    out, lse = torch_attend(q, k, v)
    assert out.dtype == lse.dtype == torch.float32
    assert excess(out, q, k, v) <= 0
    exact = attention(q, k, v)[1]
    assert lse.shape == exact.shape
    assert (lse - exact).abs().max() <= 1e-6 * (1 + exact.abs().max())


@BOTH
@pytest.mark.parametrize(
    ("queries", "keys", "width"), [(1, 1, 16), (5, 1, 7), (1, 300, 64), (257, 131, 128)]
)
def test_any_lengths(queries: int, keys: int, width: int, dtype: torch.dtype) -> None:
    q, k, v = (x.to(dtype) for x in inputs(queries, keys, width=width))
    check(q, k, v)


@BOTH
def test_any_strides(dtype: torch.dtype) -> None:
    packed = torch.randn(2, 21, 3, 4, 16).to(dtype)
    check(*packed.unbind(2))
    q, k, v = (x.to(dtype) for x in inputs(21, 13))
    check(q.mT.contiguous().mT, k.transpose(0, 2).contiguous().transpose(0, 2), v.flip(1))
    check(q[:1].expand(2, -1, -1, -1), k, v)


@pytest.mark.parametrize("size", [30.0, 1e4])
def test_large_scores_do_not_overflow(size: float) -> None:
    q, k, v = inputs(9, 40)
    check(size * q, k, v)


def test_bf16_heads_that_are_widened_one_by_one() -> None:
    q, k, v = (x.bfloat16() for x in inputs(1, 40_000, width=128, batch=1))
    check(q, k, v)


def test_results_are_not_rounded_to_bf16() -> None:
    q, k, v = (x.bfloat16() for x in inputs(40, 40))
    out = torch_attend(q, k, v).out
    assert (out != out.bfloat16().float()).any()
    assert fp32_error(q, k, v) < 1e-4


def test_what_does_not_fit_is_refused() -> None:
    q, k, v = inputs(3, 4)
    with pytest.raises(ValueError, match=r"q must be \[B, S_q, N, D\] of at least one element"):
        torch_attend(q[:, :0], k, v)
    with pytest.raises(ValueError, match=r"k must be \[2, S_k > 0, 2, 16\], got \[2, 0, 2, 16\]"):
        torch_attend(q, k[:, :0], v[:, :0])
    with pytest.raises(ValueError, match=r"v must be \[2, 4, 2, 16\] torch.float32 on cpu, got"):
        torch_attend(q, k, v[:, :3])
    with pytest.raises(ValueError, match="k must be .* got .* torch.bfloat16"):
        torch_attend(q, k.bfloat16(), v)
    with pytest.raises(ValueError, match="q must be fp32 or bf16, got torch.float16"):
        torch_attend(q.half(), k.half(), v.half())
    with pytest.raises(ValueError, match="q must be on the CPU, got meta"):
        torch_attend(q.to("meta"), k, v)
