"""What `attention_cte` does not run, said before it runs and when it is called all the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import nkisim
from nkisim import TensorSpec
from nkisim.enums import NcVersion
from wantrn.kernels.attention import Options, Sizes, attention_cte, refusal

SIZES = Sizes(batch=4, kv_batch=2, s_q=512, s_k=512, d=64)
CAUSAL = Options(causal=True)


def test_what_it_runs_is_not_refused() -> None:
    assert refusal(SIZES, Options(scale=0.1), "bfloat16") is None
    assert refusal(replace(SIZES, s_q=36_864, s_k=131_072), CAUSAL, "float16", lnc=2) is None
    assert refusal(SIZES, Options(causal=True, window=7), "float32", NcVersion.gen3) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Options(scale=0.0), "scale is 0.0"),
        (Options(scale=-1.0), "scale is -1.0"),
        (Options(scale=float("nan")), "scale is nan"),
        (Options(scale=float("inf")), "scale is inf"),
        (Options(causal=True, window=-1), "window is -1"),
        (Options(window=5), "window is 5 without causal"),
        (Options(causal=True, cp="ring"), "cp is 'ring'"),
        (Options(cp="contiguous"), "cp is 'contiguous' without causal"),
        (Options(causal=True, cp_degree=2), "cp_degree is 2"),
        (Options(causal=True, cp="contiguous", cp_degree=2), "cp_degree is 2"),
        (Options(causal=True, cp="strided", cp_degree=0), "cp_degree is 0"),
    ],
)
def test_options(options: Options, words: str) -> None:
    found = refusal(SIZES, options, "bfloat16")
    assert found is not None and words in found


@pytest.mark.parametrize(
    ("changed", "options", "words"),
    [
        ({"d": 129}, Options(), "D is 129"),
        ({"d": 0}, Options(), "D is 0"),
        ({"s_q": 36_865}, Options(), "S_q is 36865"),
        ({"s_q": 0}, Options(), "S_q is 0"),
        ({"s_k": 0}, Options(), "S_k is 0"),
        ({"batch": 3}, Options(), "K's batch is 2"),
        ({"s_prior": 8}, Options(), "a prefix without causal"),
        ({"s_prior": 8, "packed": True}, CAUSAL, "neither with cp nor with bounds"),
        ({"s_prior": 8}, Options(causal=True, cp="contiguous"), "neither with cp nor"),
        ({"s_k": 511}, Options(causal=True, window=9), "S_k is 511 with a window"),
    ],
)
def test_sizes(changed: dict[str, Any], options: Options, words: str) -> None:
    found = refusal(replace(SIZES, **changed), options, "bfloat16")
    assert found is not None and words in found


@pytest.mark.parametrize(
    ("changed", "options"),
    [
        ({}, Options(causal=True, window=200)),
        ({}, Options(causal=True, window=20)),
        ({}, Options(causal=True, cp="contiguous")),
        ({}, Options(causal=True, cp="strided", cp_degree=2)),
        ({"packed": True}, Options()),
        ({"s_prior": 64}, CAUSAL),
    ],
)
def test_bounds_take_no_scale(changed: dict[str, Any], options: Options) -> None:
    sizes = replace(SIZES, s_k=2048, **changed)
    assert refusal(sizes, options, "bfloat16") is None
    found = refusal(sizes, replace(options, scale=0.5), "bfloat16")
    assert found is not None and "it must be 1.0" in found and "0.5" in found


def test_dtypes_and_targets() -> None:
    assert "dtype is int8" in str(refusal(SIZES, Options(), "int8"))
    assert "target is gen2" in str(refusal(SIZES, Options(), "bfloat16", NcVersion.gen2))


def spec(*shape: int, dtype: str = "bfloat16") -> TensorSpec:
    return TensorSpec(shape, dtype)


Q, KV = spec(2, 130, 64), spec(2, 256, 64)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((spec(130, 64), KV, KV, Options()), "q is [130, 64]"),
        ((spec(2, 130, 64, dtype="float32"), KV, KV, Options()), "they must agree"),
        ((Q, spec(2, 255, 64), KV, Options()), "k must be [2, 256, 64]"),
        ((Q, KV, KV, Options(tp_k=False)), "k must be [2, 64, 256]"),
        ((Q, KV, spec(2, 256, 32), Options()), "v [2, 256, 32]"),
        ((Q, KV, KV, CAUSAL, None, spec(1, 1, dtype="int32")), "cp_offset must be given exactly"),
        ((Q, KV, KV, Options(causal=True, cp="contiguous")), "cp_offset must be given exactly"),
        (
            (Q, KV, KV, CAUSAL, None, None, None, (spec(1, 9, 64), KV, spec(1, 1, dtype="int32"))),
            "k_prior is [1, 9, 64]",
        ),
        ((Q, KV, KV, Options(), spec(1, 1)), "sink is [1, 1]"),
        ((Q, KV, KV, Options(causal=True, cp="contiguous"), None, spec(1)), "cp_offset is [1]"),
        ((Q, KV, KV, Options(), None, None, (spec(2, 130), spec(130))), "bounds[1] is [130]"),
        ((Q, KV, KV, CAUSAL, None, None, None, (KV, KV, spec(2, 1))), "prior[2] is [2, 1]"),
        ((spec(3, 130, 64), KV, KV, Options()), "K's batch is 2"),
        ((Q, KV, KV, Options(scale=-2.0)), "scale is -2.0"),
    ],
)
def test_the_kernel_says_so_too(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises(AssertionError) as raised:
        nkisim.profile(attention_cte, *arguments, target="gen4", numerics=False)
    assert words in str(raised.value)
