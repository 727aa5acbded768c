"""What `qkv_cte` computes, against a reference that rounds where it rounds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from qkv_cases import assert_within_a_rounding, random_case
from statements import assert_rounds_to, rotate_heads

from wantrn.kernels import ops
from wantrn.kernels.qkv import LAYER_PER_HEAD, Options
from wantrn.kernels.qkv.options import NORMS
from wantrn.kernels.row_mx import dequantize_rows, from_kernel_layout

BF16, FP32 = torch.bfloat16, torch.float32


@settings(max_examples=160, deadline=None)
@given(
    batch=st.integers(1, 2),
    tokens=st.sampled_from([1, 2, 97, 128, 129, 200, 255, 257, 300]),
    hidden=st.sampled_from([128, 256, 384, 640]),
    heads=st.sampled_from([(1, 0), (2, 2), (3, 1), (5, 0), (9, 2)]),
    head_dim=st.sampled_from([16, 64, 128]),
    packed=st.booleans(),
    norm=st.sampled_from(["", "biased", *NORMS]),
    rope=st.booleans(),
    squared_sums=st.booleans(),
    caches=st.sampled_from(["", "dense", "slots"]),
    bias=st.sampled_from([None, BF16, FP32]),
    heads_first=st.booleans(),
    lnc=st.sampled_from([1, 2]),
    seed=st.integers(0, 100),
)
def test_any_call(
    batch: int,
    tokens: int,
    hidden: int,
    heads: tuple[int, int],
    head_dim: int,
    packed: bool,
    norm: str,
    rope: bool,
    squared_sums: bool,
    caches: str,
    bias: torch.dtype | None,
    heads_first: bool,
    lnc: int,
    seed: int,
) -> None:
    caches = caches if heads[1] else ""
    options = Options(
        *heads,
        head_dim,
        1e-5,
        heads_first,
        norm=norm if norm in NORMS else LAYER_PER_HEAD,
        squared_sums=squared_sums,
        cache_starts=(5, 2)[:batch] if caches == "dense" else (),
    )
    case = random_case(
        (batch, tokens, hidden),
        options,
        packed=packed,
        norm=norm != "",
        rope=rope,
        bias=bias,
        beta=norm == "biased",
        caches=caches,
        seed=seed,
    )
    assert_within_a_rounding(case.run(lnc), case.expected())


@settings(max_examples=12, deadline=None)
@given(
    ranks=st.sampled_from([2, 4]),
    tokens=st.sampled_from([97, 130, 300]),
    batch=st.integers(1, 2),
    heads=st.sampled_from([(2, 2), (3, 0), (9, 1)]),
    packed=st.booleans(),
    rope=st.booleans(),
    heads_first=st.booleans(),
    lnc=st.sampled_from([1, 2]),
)
def test_heads_spread_over_ranks(
    ranks: int,
    tokens: int,
    batch: int,
    heads: tuple[int, int],
    packed: bool,
    rope: bool,
    heads_first: bool,
    lnc: int,
) -> None:
    options = Options(*heads, 64, 1e-5, heads_first, (tuple(range(ranks)),))
    case = random_case((batch, tokens, 256), options, packed=packed, rope=rope, ranks=ranks)
    assert_within_a_rounding(case.run(lnc), case.expected())


@pytest.mark.parametrize("rope", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_bf16_on_the_older_generation(rope: bool, ranks: int) -> None:
    groups = ((0, 1),) if ranks > 1 else ()
    case = random_case((1, 200, 256), Options(9, 2, 128, 1e-6, True, groups), ranks=ranks)
    assert_within_a_rounding(case.run(2, "gen3"), case.expected())


# Against statements that know nothing of the kernel


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_against_float64(packed: bool, ranks: int) -> None:
    groups = ((0, 1),) if ranks > 1 else ()
    options = Options(3, 2, 64, 1e-6, False, groups)
    case = random_case((2, 150, 256), options, packed=packed, ranks=ranks, seed=3)
    x = dequantize_rows(case.x).double() if packed else case.x.double()
    rows = []
    for weight, scales, bias in zip(case.weights, case.weight_scales, case.biases, strict=True):
        matrix = weight.double()
        if scales is not None:
            matrix = (from_kernel_layout(weight.float()).double() * scales.double().T).T
        assert bias is not None
        rows.append(x @ matrix + bias.double())
    assert case.angles is not None
    found = case.run(lnc=2)
    for first, width in ((0, 192), (192, 128)):
        parts = [row[..., first : first + width] for row in rows]
        mean = torch.cat(parts, -1).square().mean(-1, keepdim=True)
        for rank, part in enumerate(parts):
            weights = case.gammas[rank]
            assert weights is not None
            gamma = weights[0 if first == 0 else 1]
            assert gamma is not None
            normed = part / torch.sqrt(mean + 1e-6) * gamma.double()
            expected = rotate_heads(normed, *case.angles, 64)
            part = found[rank][..., first : first + width]
            # rounded before the norm, and after the rotation of two values
            assert_rounds_to(part, expected, 3.5, float(expected.abs().max()))
    for rank, row in enumerate(rows):
        plain = row[..., 320:]
        assert_rounds_to(found[rank][..., 320:], plain, 1.01, float(plain.abs().max()))


def test_as_the_operator_computes() -> None:
    options = Options(4, 2, 32)
    case = random_case((1, 100, 128), options)
    gammas, bias = case.gammas[0], case.biases[0]
    assert gammas is not None and gammas[1] is not None and bias is not None and case.angles
    expected = ops.qkv_proj(
        case.x,
        case.weights[0].T.contiguous(),
        bias[0],
        head_dim=32,
        num_kv_heads=2,
        norm=ops.HeadNorm(gammas[0][0], gammas[1][0], options.eps),
        rotary=ops.Rotary(*case.angles),
    )
    (found,) = case.run()
    error = float((found.double() - expected.double()).abs().max())
    assert error <= 3 * 2.0**-8 * float(expected.abs().max())


@pytest.mark.parametrize("packed", [False, True])
def test_neighbouring_pairs_give_equal_scores(packed: bool) -> None:
    """Checkpoints rotate channels 2j and 2j + 1; with weight, bias and gamma permuted, the scores
    of Q and K are the same as those of halves."""
    heads, d, tokens, hidden = 3, 32, 70, 128
    width = heads * d
    case = random_case((1, tokens, hidden), Options(heads, heads, d), packed=packed, seed=5)
    assert case.angles is not None
    (halves,) = case.run()
    # what the kernel got is what a checkpoint with neighbouring pairs was permuted to
    order = torch.stack((torch.arange(d // 2), d // 2 + torch.arange(d // 2)), 1).flatten()
    undo = torch.cat([h * d + order for h in range(2 * heads)])
    weight = case.weights[0]
    dense = (
        from_kernel_layout(weight.float()).double() * case.weight_scales[0].double().T  # type: ignore[union-attr]
        if packed
        else weight.double().T
    )
    x = dequantize_rows(case.x).double() if packed else case.x.double()
    bias, gammas = case.biases[0], case.gammas[0]
    assert bias is not None and gammas is not None and gammas[1] is not None
    gamma = torch.cat((gammas[0], gammas[1]), 1)[0].double()
    y = x[0] @ dense[: 2 * width][undo].T + bias[0, : 2 * width][undo].double()
    cos, sin = (table.double()[:, None] for table in case.angles)
    segments = []
    for at in (0, width):
        part = y[:, at : at + width]
        part = part * torch.rsqrt(part.square().mean(-1, keepdim=True) + 1e-6)
        pairs = (part * gamma[undo][at : at + width]).view(tokens, heads, d // 2, 2)
        even, odd = pairs.unbind(-1)
        turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1)
        segments.append(turned.flatten(-2))
    expected = torch.einsum("snd,tnd->nst", *segments)
    q, k = (halves[0, :, at : at + width].double().view(tokens, heads, d) for at in (0, width))
    found = torch.einsum("snd,tnd->nst", q, k)
    # a score adds D products, each with an error of a few roundings of bf16
    size = torch.einsum("snd,tnd->nst", q.abs(), k.abs())
    assert bool(((found - expected).abs() <= 6 * 2.0**-8 * size + 1e-3).all())
    assert float((found - expected).abs().mean()) < 2.0**-8 * float(size.mean())


def test_long_calls_of_several_blocks() -> None:
    """More tiles than a block has, on two cores, the last one short."""
    options = Options(2, 0, 16, heads_first=True)
    case = random_case((2, 1171, 128), options, packed=True, rope=False)
    assert_within_a_rounding(case.run(lnc=2), case.expected())
    case = random_case((3, 700, 128), Options(2, 1, 16))
    assert_within_a_rounding(case.run(lnc=2), case.expected())
    case = random_case((1, 9450, 128), Options(1, 1, 32), packed=True)
    assert_within_a_rounding(case.run(lnc=2), case.expected())


@pytest.mark.parametrize(
    ("options", "rope", "ranks"),
    [
        (Options(10, 10, replica_groups=((0, 1, 2, 3),)), True, 4),
        (Options(20, 20, replica_groups=((0, 1),)), True, 2),
        (Options(40, heads_first=True), False, 1),
    ],
)
def test_widths_of_wan(options: Options, rope: bool, ranks: int) -> None:
    case = random_case((1, 97, 5120), options, packed=True, rope=rope, ranks=ranks)
    assert_within_a_rounding(case.run(lnc=2), case.expected())
