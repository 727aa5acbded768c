"""Caches, sums of squares and norms of single heads of `qkv_cte`, in all combinations."""

from __future__ import annotations

import itertools

import pytest
import torch
from qkv_cases import STRICT, assert_within_a_rounding, random_case
from torch import Tensor

from nkisim import World, lint
from wantrn.kernels.qkv import LAYER_PER_HEAD, RMS_ALL_HEADS, Options, best_plan, qkv_cte
from wantrn.kernels.qkv.options import NORMS
from wantrn.kernels.row_mx import dequantize_rows, from_kernel_layout

TOKENS = 131


@pytest.mark.parametrize("norm", ["", "biased", *NORMS])
@pytest.mark.parametrize("rope", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_every_epilogue_with_everything(norm: str, rope: bool, packed: bool) -> None:
    for heads_first, lnc, batch in itertools.product((False, True), (1, 2), (1, 2)):
        caches = "dense" if (batch == 1) == heads_first else "slots"
        options = Options(
            3,
            # as many heads of K as of Q, or fewer
            3 if batch == lnc else 2,
            32,
            1e-5,
            heads_first,
            norm=norm if norm in NORMS else LAYER_PER_HEAD,
            squared_sums=True,
            cache_starts=(4, 0)[:batch] if caches == "dense" else (),
        )
        case = random_case(
            (batch, TOKENS, 128),
            options,
            packed=packed,
            norm=norm != "",
            rope=rope,
            beta=norm == "biased",
            caches=caches,
        )
        assert_within_a_rounding(case.run(lnc), case.expected())


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize("caches", ["", "dense", "slots"])
def test_ranks_write_their_own(heads_first: bool, caches: str) -> None:
    """The sums are those of a rank, though the norm is that of both."""
    options = Options(
        3, 2, 64, heads_first=heads_first, replica_groups=((0, 1),), squared_sums=True
    )
    case = random_case((2, TOKENS, 256), options, packed=True, ranks=2, caches=caches)
    assert_within_a_rounding(case.run(2), case.expected())


@pytest.mark.parametrize("caches", ["dense", "slots"])
def test_runs_of_tokens_that_go_over_into_the_next_sequence(caches: str) -> None:
    """Stored head by head, a partition has several tokens, here of two sequences."""
    starts = (1, 6, 0) if caches == "dense" else ()
    options = Options(2, 1, 16, heads_first=True, cache_starts=starts)
    case = random_case((3, 333, 128), options, rope=False, caches=caches)
    for lnc in (1, 2):
        plan = best_plan(case.sizes(), lnc)
        assert plan.choice.stride > 1
        assert_within_a_rounding(case.run(lnc, plan=plan), case.expected())


@pytest.mark.parametrize("lnc", [1, 2])
def test_the_caches_of_the_caller_are_written(lnc: int) -> None:
    case = random_case((2, 37, 128), Options(2, 2, 16), caches="dense")
    (arguments,) = case.arguments(best_plan(case.sizes(), lnc))
    k, v = arguments[-3:-1]
    ((q, new_k, new_v),) = World(1, lnc, "trn3", rules=STRICT).run(qkv_cte, [arguments])
    assert q.shape == (2, 37, 32)
    assert torch.equal(k, new_k) and torch.equal(v, new_v)
    before_k, before_v = case.caches[0]
    for now, before in ((k, before_k), (v, before_v)):
        assert torch.equal(now[:, 37:], before[:, 37:])
        assert bool((now[:, :37] != before[:, :37]).any(-1).all())


def test_the_compiler_takes_all_of_it() -> None:
    assert not list(lint(qkv_cte))


# Against statements that know nothing of the kernel


def in_float64(x: Tensor, weight: Tensor, scales: Tensor | None, bias: Tensor | None) -> Tensor:
    assert bias is not None
    if scales is None:
        return x.double() @ weight.double() + bias.double()
    matrix = from_kernel_layout(weight.float()).double() * scales.double().T
    return dequantize_rows(x).double() @ matrix.T + bias.double()


@pytest.mark.parametrize("packed", [False, True])
def test_a_layer_norm_is_that_of_torch(packed: bool) -> None:
    options = Options(3, 2, 64, 1e-5, norm=LAYER_PER_HEAD)
    case = random_case((2, TOKENS, 256), options, packed=packed, rope=False, beta=True)
    row = in_float64(case.x, case.weights[0], case.weight_scales[0], case.biases[0])
    (found,) = case.run(2)
    gammas, betas = case.gammas[0], case.betas[0]
    assert gammas is not None and betas is not None
    for number, (first, heads) in enumerate(((0, 3), (192, 2))):
        gamma, beta = gammas[number], betas[number]
        assert gamma is not None and beta is not None
        part = row[..., first : first + heads * 64].reshape(2, TOKENS, heads, 64)
        # it is computed from the rounded row
        expected = torch.nn.functional.layer_norm(
            part.bfloat16().double(), (64,), gamma[0].double(), beta[0].double(), 1e-5
        )
        error = (found[..., first : first + heads * 64].double() - expected.flatten(-2)).abs()
        assert float(error.max()) <= 2.0**-7 * float(expected.abs().max())


@pytest.mark.parametrize("packed", [False, True])
def test_a_caller_can_normalise_by_the_sums(packed: bool) -> None:
    """Without a norm but with sums, over two ranks: what the norm over all heads gives."""
    alone = Options(3, 2, 64, squared_sums=True)
    plain = random_case((1, TOKENS, 256), alone, packed=packed, norm=False, rope=False, ranks=2)
    results = plain.run()
    rows, sums = results[0::2], results[1::2]
    assert sums[0].shape == (1, TOKENS, 3) and sums[0].dtype == torch.float32
    exact = [
        in_float64(plain.x, *rank)
        for rank in zip(plain.weights, plain.weight_scales, plain.biases, strict=True)
    ]
    for found, row in zip(sums, exact, strict=True):
        for segment, columns in enumerate((slice(192), slice(192, 320), slice(320, 448))):
            part = row[..., columns]
            assert torch.allclose(found[..., segment].double(), part.square().sum(-1), rtol=1e-4)
    joint = Options(3, 2, 64, norm=RMS_ALL_HEADS, replica_groups=((0, 1),))
    normed = random_case((1, TOKENS, 256), joint, packed=packed, rope=False, ranks=2)
    inv = ((sums[0] + sums[1])[..., :1] / 384 + 1e-6).rsqrt()
    for row, expected, gammas in zip(rows, normed.run(), normed.gammas, strict=True):
        assert gammas is not None
        q = row[..., :192].float() * inv * gammas[0]
        error = (q - expected[..., :192].float()).abs()
        assert float(error.max()) <= 2.0**-7 * float(expected.abs().max())
