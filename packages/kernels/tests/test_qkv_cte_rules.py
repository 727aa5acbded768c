"""What `qkv_cte` refuses, and what it says."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

import nkisim
from nkisim.enums import NcVersion
from wantrn.kernels.qkv import (
    LAYER_PER_HEAD,
    RMS_PER_HEAD,
    Options,
    best_plan,
    candidates,
    qkv_cte,
    refusal,
)
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
            Options(2, 1, 16, norm="layer"),
            "norm is 'layer'; it must be rms_all_heads, rms_per_head or layer_per_head",
        ),
        (
            Options(2, 1, 16, cache_starts=(1, 2)),
            r"cache_starts is \(1, 2\); without k_cache and v_cache it must be \(\)",
        ),
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
            {"options": Options(2, 1, 16, norm=RMS_PER_HEAD)},
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


def layered(kv_heads: int = 1, norm: str = LAYER_PER_HEAD, **changed: Any) -> None:
    """A correct call with a LayerNorm, but for what is changed."""
    vectors = dict.fromkeys(("q_gamma", "k_gamma", "q_beta", "k_beta"), torch.ones(1, 16))
    sizes = replace(SIZES, norm=False, per_head=True, centred=True, shifted=True)
    call(Options(2, kv_heads, 16, norm=norm), **{**vectors, "plan": best_plan(sizes), **changed})


def test_the_layer_norm_that_is_changed_is_correct() -> None:
    layered()


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"norm": RMS_PER_HEAD}, "q_beta and k_beta are for a norm 'layer_per_head'; there is"),
        ({"k_beta": None}, "k_beta must be given exactly where q_beta is and there is a K"),
        ({"q_beta": None}, "k_beta must be given exactly where q_beta is and there is a K"),
        ({"q_beta": torch.ones(1, 32)}, r"q_beta is \[1, 32\]; it must be \[1, 16\]"),
        ({"k_beta": torch.ones(16)}, r"k_beta is \[16\]; it must be \[1, 16\]"),
        ({"k_beta": torch.ones(1, 16, dtype=BF16)}, "k_beta is .*bfloat16; it must be float32"),
        ({"k_gamma": torch.ones(1, 32)}, r"k_gamma is \[1, 32\]; it must be \[1, 16\]"),
        ({"q_beta": None, "k_beta": None}, "the plan is for .*shifted=True.*has .*shifted=False"),
        (
            {"q_gamma": None, "k_gamma": None},
            "q_beta and k_beta are for a norm 'layer_per_head'; there is another one, or none",
        ),
    ],
)
def test_layer_norms(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        layered(**changed)


def cached(starts: Any = (), slots: Any = None, plan: Any = None, **changed: Any) -> None:
    """A correct call with caches, but for what is changed."""
    caches = {name: torch.zeros(2, 6, 16, dtype=BF16) for name in ("k_cache", "v_cache")}
    sizes = replace(SIZES, cached=True, mapped=slots is not None)
    call(
        Options(2, 1, 16, cache_starts=starts),
        **{"plan": best_plan(sizes), "slot_mapping": slots, **caches, **changed},
    )


SLOTS = torch.arange(8, dtype=torch.int32).view(2, 4)


def test_the_caches_that_are_changed_are_correct() -> None:
    cached()
    cached((2, 0))
    cached(slots=SLOTS)
    cached(slots=SLOTS, **dict.fromkeys(("k_cache", "v_cache"), torch.zeros(5, 2, 16).to(BF16)))


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"k_cache": None}, "k_cache and v_cache must be given together"),
        ({"v_cache": None}, "k_cache and v_cache must be given together"),
        (
            {"k_cache": None, "v_cache": None, "slots": SLOTS},
            "slot_mapping must be given with k_cache and v_cache only",
        ),
        (
            {"k_cache": torch.zeros(2, 6, 32, dtype=BF16)},
            r"k_cache is \[2, 6, 32\]; it must be \[., ., 16\]",
        ),
        (
            {"v_cache": torch.zeros(2, 96, dtype=BF16)},
            r"v_cache is \[2, 96\]; it must be \[., ., 1",
        ),
        ({"v_cache": torch.zeros(2, 6, 16)}, "v_cache is .*float32; it must be bfloat16"),
        (
            {"v_cache": torch.zeros(2, 7, 16, dtype=BF16)},
            r"v_cache is \[2, 7, 16\]; it must be as k_cache, \[2, 6, 16\]",
        ),
        (
            dict.fromkeys(("k_cache", "v_cache"), torch.zeros(3, 6, 16, dtype=BF16)),
            r"k_cache is \[3, 6, 16\]; it must be of 2 sequences, as x",
        ),
        (
            dict.fromkeys(("k_cache", "v_cache"), torch.zeros(2, 3, 16, dtype=BF16)),
            r"k_cache is \[2, 3, 16\]; it must have a row for each of 4 tokens",
        ),
        ({"starts": (0,)}, r"cache_starts is \(0,\); it must have a start for each of 2 sequences"),
        ({"starts": (0, 3)}, r"cache_starts is \(0, 3\); each must be 0 to 2 for rows to be in"),
        ({"starts": (-1, 0)}, r"cache_starts is \(-1, 0\); each must be 0 to 2"),
        ({"starts": (0.5, 0)}, r"cache_starts is \(0.5, 0\); it must be a tuple of integers"),
        (
            {"starts": (1, 1), "slots": SLOTS},
            r"cache_starts is \(1, 1\); with slot_mapping",
        ),
        ({"slots": SLOTS[:1]}, r"slot_mapping is \[1, 4\]; it must be \[2, 4\]"),
        ({"slots": SLOTS.float()}, "slot_mapping is .*float32; it must be int32"),
    ],
)
def test_caches(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        cached(**changed)


def test_caches_without_a_k() -> None:
    changed: dict[str, Any] = dict.fromkeys(("k_cache", "v_cache"), torch.zeros(2, 6, 16).to(BF16))
    with pytest.raises(AssertionError, match="kv_heads is 0; with k_cache and v_cache it must be"):
        call(Options(4, 0, 16), q_gamma=torch.ones(1, 64), k_gamma=None, **changed)


@pytest.mark.parametrize("slot", [-1, 12])
def test_a_slot_out_of_range(slot: int) -> None:
    slots = SLOTS.clone()
    slots[1, 2] = slot
    with pytest.raises(nkisim.NkiValidationError, match=f"is {slot}; it must be in 0..11"):
        cached(slots=slots)


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
