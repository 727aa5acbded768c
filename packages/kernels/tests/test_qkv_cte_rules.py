"""What `qkv_cte` refuses, and what it says."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

import nkisim
from nkisim.enums import NcVersion
from wantrn.kernels.qkv import Options, best_plan, candidates, qkv_cte, refusal
from wantrn.kernels.qkv.options import Sizes

BF16, FP32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
SIZES = Sizes(8, 128, 2, 1, 16, False, 2, True, True)
PACKED = Sizes(8, 128, 2, 1, 16, True, 2, True, True)


def call(options: Options | None = None, packed: bool = False, **changed: Any) -> None:
    """A correct call but for what is changed."""
    sizes = PACKED if packed else SIZES
    arguments: dict[str, Any] = {
        "x": torch.zeros(2, 4, 132).to(FP8) if packed else torch.zeros(2, 4, 128, dtype=BF16),
        "weight": torch.zeros(32, 64, 4).to(FP8) if packed else torch.zeros(128, 64, dtype=BF16),
        "options": options or Options(2, 1, 16),
        "plan": best_plan(sizes),
        "weight_scales": torch.ones(1, 64) if packed else None,
        "bias": torch.zeros(1, 64, dtype=BF16),
        "q_gamma": torch.ones(1, 32),
        "k_gamma": torch.ones(1, 16),
        "cos": torch.ones(4, 8),
        "sin": torch.zeros(4, 8),
    }
    nkisim.simulate(qkv_cte, target="trn3")(**{**arguments, **changed})


def test_the_call_that_is_changed_is_correct() -> None:
    call()
    call(packed=True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (Options(0, 1, 16), "heads is 0 and kv_heads 1; there must be at least 1 and 0"),
        (Options(2, -1, 16), "kv_heads -1"),
        (Options(2, 1, 129), "head_dim is 129; it must be 1 to 128"),
        (Options(2, 1, 16, 0.0), "eps is 0.0; it must be positive and finite"),
        (
            Options(2, 1, 16, replica_groups=[[0, 1]]),  # type: ignore[arg-type]
            r"replica_groups is \[\[0, 1\]\]; it must be a tuple of tuples of ranks",
        ),
        (
            Options(2, 1, 16, replica_groups=((0, 1), (2,))),
            "all groups must have as many ranks, and at least 1",
        ),
    ],
)
def test_options(options: Options, text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        call(options)


@pytest.mark.parametrize(
    ("packed", "changed", "text"),
    [
        (False, {"x": torch.zeros(4, 128, dtype=BF16)}, r"x is \[4, 128\]; it must be \[B, S, H\]"),
        (False, {"x": torch.zeros(2, 4, 128)}, "x is .*float32; x and weight must both be bf"),
        (True, {"weight": torch.zeros(128, 64, dtype=BF16)}, "weight is .*bfloat16; x and weight"),
        (
            False,
            {"x": torch.zeros(2, 4, 192, dtype=BF16)},
            "H is 192; it must be a multiple of 128",
        ),
        (True, {"x": torch.zeros(2, 4, 100).to(FP8)}, "H is 96; it must be a multiple of 128"),
        (
            False,
            {"weight": torch.zeros(128, 48, dtype=BF16)},
            r"weight is \[128, 48\]; it must be \[128, 64\]",
        ),
        (
            True,
            {"weight": torch.zeros(128, 64).to(FP8)},
            r"weight is \[128, 64\]; it must be \[32, 64, 4\]",
        ),
        (True, {"weight_scales": None}, "weight_scales must be given exactly where weight is FP8"),
        (False, {"weight_scales": torch.ones(1, 64)}, "weight_scales must be given exactly"),
        (
            True,
            {"weight_scales": torch.ones(64)},
            r"weight_scales is \[64\]; it must be \[1, 64\]",
        ),
        (True, {"weight_scales": torch.ones(1, 64, dtype=BF16)}, "weight_scales is .*bfloat16"),
        (False, {"bias": torch.zeros(64)}, r"bias is \[64\]; it must be \[1, 64\]"),
        (
            False,
            {"bias": torch.zeros(1, 64, dtype=torch.float16)},
            "bias is .*float16; it must be float32 or bfloat16",
        ),
        (False, {"q_gamma": torch.ones(1, 16)}, r"q_gamma is \[1, 16\]; it must be \[1, 32\]"),
        (False, {"k_gamma": torch.ones(1, 32)}, r"k_gamma is \[1, 32\]; it must be \[1, 16\]"),
        (False, {"q_gamma": torch.ones(1, 32, dtype=BF16)}, "q_gamma is .*bfloat16; it must be fl"),
        (False, {"k_gamma": None}, "k_gamma must be given exactly where q_gamma is and there is"),
        (
            False,
            {"options": Options(2, 1, 16, norm_per_head=True)},
            r"q_gamma is \[1, 32\]; it must be \[1, 16\]",
        ),
        (
            False,
            {
                "options": Options(2, 1, 16, replica_groups=((0, 1),)),
                "q_gamma": None,
                "k_gamma": None,
            },
            "replica_groups has 2 ranks, but without a norm over all heads",
        ),
        (False, {"q_gamma": None}, "k_gamma must be given exactly where q_gamma is"),
        (False, {"sin": None}, "cos and sin must be given together"),
        (False, {"cos": torch.ones(8, 8)}, r"cos is \[8, 8\]; it must be \[4, 8\]"),
        (False, {"sin": torch.ones(4, 8, dtype=BF16)}, "sin is .*bfloat16; it must be float32"),
        (False, {"bias": None}, "the plan is for .*; the call has .*"),
        (True, {"plan": best_plan(SIZES)}, "the plan is for .*packed=False.* has .*packed=True"),
    ],
)
def test_tensors(packed: bool, changed: dict[str, Any], text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        call(packed=packed, **changed)


def test_an_odd_head_cannot_be_rotated() -> None:
    changed: dict[str, Any] = {
        "weight": torch.zeros(128, 60, dtype=BF16),
        "bias": torch.zeros(1, 60, dtype=BF16),
        "q_gamma": torch.ones(1, 30),
        "k_gamma": torch.ones(1, 15),
    }
    with pytest.raises(AssertionError, match="head_dim is 15; with a rotation it must be even"):
        call(Options(2, 1, 15), **changed)


@pytest.mark.parametrize(
    ("sizes", "target", "text"),
    [
        (PACKED, NcVersion.gen4, None),
        (SIZES, NcVersion.gen3, None),
        (PACKED, NcVersion.gen3, "the target is gen3; packed rows need gen4 or later"),
        (SIZES, NcVersion.gen2, "the target is gen2; bf16 need gen3 or later"),
        (replace(SIZES, hidden=96), NcVersion.gen4, "H is 96; it must be a multiple of 128"),
        (replace(SIZES, head_dim=15), NcVersion.gen4, "head_dim is 15; with a rotation"),
        (replace(SIZES, hidden=1 << 17), NcVersion.gen4, "no plan for .* fits into SBUF of gen4"),
    ],
)
def test_refusals(sizes: Sizes, target: NcVersion, text: str | None) -> None:
    options = Options(sizes.heads, sizes.kv_heads, sizes.head_dim)
    found = refusal(sizes, options, target)
    assert found is None if text is None else re.match(text, found or "")
    assert "head_dim is 200" in (refusal(sizes, Options(2, 1, 200)) or "")


def test_a_plan_for_another_chip_is_refused() -> None:
    x, weight = torch.zeros(1, 512, 5120, dtype=BF16), torch.zeros(5120, 2048, dtype=BF16)
    plans = [c.plan for c in candidates(Sizes(512, 5120, 16, 0, 128))]
    plan = max(plans, key=lambda p: p.sbuf_bytes())
    with pytest.raises(AssertionError, match=r"the plan takes \d+ bytes; SBUF has 212984"):
        nkisim.simulate(qkv_cte, target="trn2")(x, weight, Options(16, 0, 128), plan)


def test_a_plan_for_other_cores_is_refused() -> None:
    x = torch.zeros(2, 400, 128, dtype=BF16)
    sizes = Sizes(800, 128, 2, 0, 16)
    weight = torch.zeros(128, 32, dtype=BF16)
    with pytest.raises(AssertionError, match="the plan is for 7 tiles; the call has 4"):
        nkisim.simulate(qkv_cte, target="trn3")[2](x, weight, Options(2, 0, 16), best_plan(sizes))
