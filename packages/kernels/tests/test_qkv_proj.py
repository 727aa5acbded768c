from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from statements import assert_rounds_to, normalise_heads, rotate_heads, rounded
from torch import Tensor

from wantrn.kernels.ops import HeadNorm, QKVLayout, Rotary, qkv_proj


@dataclass(frozen=True)
class Case:
    x: Tensor
    weight: Tensor
    bias: Tensor
    head_dim: int
    num_kv_heads: int
    norm: HeadNorm
    rotary: Rotary


def make_case(
    batch: int, tokens: int, q_heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> Case:
    torch.manual_seed(batch * 1000 + tokens * 10 + q_heads)
    hidden, width = 24, (q_heads + 2 * kv_heads) * head_dim
    angles = torch.rand(tokens, head_dim // 2) * 100
    return Case(
        torch.randn(batch, tokens, hidden).to(dtype),
        (torch.randn(width, hidden) / hidden**0.5).to(dtype),
        torch.randn(width).to(dtype),
        head_dim,
        kv_heads,
        HeadNorm(
            torch.rand(q_heads * head_dim) + 0.5,
            torch.rand(kv_heads * head_dim) + 0.5 if kv_heads else None,
            1e-6,
        ),
        Rotary(angles.cos(), angles.sin()),
    )


def run(case: Case, norm: bool, rotary: bool, layout: QKVLayout = QKVLayout.BSD) -> Tensor:
    return qkv_proj(
        case.x,
        case.weight,
        case.bias,
        head_dim=case.head_dim,
        num_kv_heads=case.num_kv_heads,
        norm=case.norm if norm else None,
        rotary=case.rotary if rotary else None,
        layout=layout,
    )


def statement(case: Case, norm: bool, rotary: bool) -> Tensor:
    projected = case.x.double() @ case.weight.double().T + case.bias.double()
    out = rounded(projected, case.x.dtype)
    kv = case.num_kv_heads * case.head_dim
    q = out.shape[-1] - 2 * kv
    segments = [(slice(0, q), case.norm.q_weight), (slice(q, q + kv), case.norm.k_weight)]
    for columns, weight in segments:
        if norm and weight is not None:
            out[..., columns] = normalise_heads(out[..., columns], weight, case.norm.eps)
        if rotary:
            cos, sin = case.rotary.cos, case.rotary.sin
            out[..., columns] = rotate_heads(out[..., columns], cos, sin, case.head_dim)
    return out


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 2),
    tokens=st.integers(1, 9),
    q_heads=st.integers(1, 3),
    kv_heads=st.integers(0, 3),
    head_dim=st.sampled_from([2, 6, 16]),
    norm=st.booleans(),
    rotary=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_agrees_with_its_statement(
    batch: int,
    tokens: int,
    q_heads: int,
    kv_heads: int,
    head_dim: int,
    norm: bool,
    rotary: bool,
    dtype: torch.dtype,
) -> None:
    case = make_case(batch, tokens, q_heads, kv_heads, head_dim, dtype)
    expected = statement(case, norm, rotary)
    # A sum of 24 products in fp32; in bf16 one rounding of the projection may fall on the other
    # side and one more follows.
    assert_rounds_to(run(case, norm, rotary), expected, 30 if dtype == torch.float32 else 3, 10.0)


def test_heads_first_layout_holds_the_same_numbers() -> None:
    case = make_case(2, 5, 3, 2, 6, torch.float32)
    wide = run(case, True, True)
    heads = run(case, True, True, QKVLayout.NBSD)
    assert heads.shape == (7, 2, 5, 6)
    for n in range(7):
        assert torch.equal(heads[n], wide[..., n * 6 : (n + 1) * 6])


def test_v_is_never_normalised_or_rotated() -> None:
    case = make_case(1, 4, 2, 2, 6, torch.float32)
    assert torch.equal(run(case, True, True)[..., -12:], run(case, False, False)[..., -12:])


def test_norm_is_over_all_heads_together() -> None:
    """A loud head lowers its quiet neighbour, which a norm for each head would not."""
    case = make_case(1, 1, 2, 0, 4, torch.float32)
    loud = dataclasses.replace(case, bias=torch.tensor([100.0] * 4 + [1.0] * 4))
    loud = dataclasses.replace(loud, weight=torch.zeros_like(loud.weight))
    out = run(dataclasses.replace(loud, norm=HeadNorm(torch.ones(8))), True, False)
    rms = ((100.0**2 + 1) / 2) ** 0.5
    assert torch.allclose(out[0, 0], torch.tensor([100 / rms] * 4 + [1 / rms] * 4))


def test_arguments_are_not_changed() -> None:
    case = make_case(1, 3, 1, 1, 4, torch.float32)
    before = [case.x.clone(), case.weight.clone(), case.rotary.cos.clone()]
    run(case, True, True)
    for old, new in zip(before, [case.x, case.weight, case.rotary.cos], strict=True):
        assert torch.equal(old, new)


def test_no_bias() -> None:
    case = make_case(1, 3, 1, 1, 4, torch.float32)
    plain = qkv_proj(case.x, case.weight, None, head_dim=4, num_kv_heads=1)
    assert torch.allclose(plain + case.bias, run(case, False, False), atol=1e-6)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"x": torch.zeros(3, 24)}, "x must be"),
        ({"weight": torch.zeros(18, 23)}, "weight must be"),
        ({"weight": torch.zeros(18, 24, dtype=torch.bfloat16)}, "weight must have"),
        ({"bias": torch.zeros(17)}, "bias of weight"),
        ({"head_dim": 5}, "head_dim must divide"),
        ({"num_kv_heads": 3}, "num_kv_heads must leave"),
        ({"num_kv_heads": -1}, "num_kv_heads must leave"),
        ({"norm": HeadNorm(torch.zeros(5), torch.zeros(6))}, "norm.q_weight"),
        ({"norm": HeadNorm(torch.zeros(6).bfloat16(), torch.zeros(6))}, "norm.q_weight"),
        ({"norm": HeadNorm(torch.zeros(6))}, "norm.k_weight must be given"),
        ({"norm": HeadNorm(torch.zeros(6), torch.zeros(7))}, "norm.k_weight"),
        ({"rotary": Rotary(torch.zeros(4, 2), torch.zeros(4, 3))}, "rotary.cos"),
        ({"rotary": Rotary(torch.zeros(4, 3), torch.zeros(5, 3))}, "rotary.sin"),
    ],
)
def test_misfits_are_named(change: dict[str, object], name: str) -> None:
    case = make_case(1, 4, 1, 1, 6, torch.float32)
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        run(dataclasses.replace(case, **change), True, True)  # type: ignore[arg-type]
