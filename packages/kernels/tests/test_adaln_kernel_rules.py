"""What `adaln_modulate` does not run, what it loads and how much memory it takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nkisim import TensorSpec, lint, profile
from nkisim.enums import NcVersion
from wantrn.kernels.adaln import Options, Sizes, adaln_modulate, refusal, row_quantize
from wantrn.kernels.adaln.options import sizes_of
from wantrn.kernels.adaln.plan import best_plan
from wantrn.kernels.sbuf import end_of

SIZES = Sizes(batch=2, positions=12, hidden=64, mul=(1, 1), add=(2, 3))
ALL = Sizes(batch=1, positions=9450, hidden=5120, residual=True, gate=(1, 1), mul=(1, 1))


def test_what_it_runs_is_not_refused() -> None:
    assert refusal(SIZES, Options(), "bfloat16") is None
    assert refusal(replace(ALL, add=(1, 9450)), Options(limit=448.0), "bfloat16") is None
    assert refusal(replace(ALL, itemsize=4, add=(1, 7)), Options(), "float32") is None
    assert refusal(ALL, Options(limit=240.0), "bfloat16", NcVersion.gen3) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Options("batch"), "norm is 'batch'"),
        (Options(eps=0.0), "eps is 0.0"),
        (Options(eps=float("nan")), "eps is nan"),
        (Options(limit=100.0), "limit is 100.0"),
        (Options(limit=-448.0), "limit is -448.0"),
    ],
)
def test_options(options: Options, words: str) -> None:
    found = refusal(SIZES, options, "bfloat16")
    assert found is not None and words in found


@pytest.mark.parametrize(
    ("changed", "options", "words"),
    [
        ({"hidden": 66}, Options(limit=448.0), "H is 66"),
        ({"hidden": 0}, Options(), "every size must be at least 1"),
        ({"positions": 0}, Options(), "every size must be at least 1"),
        ({"gate": (1, 1)}, Options(), "a gate without a residual"),
        ({"mul": (3, 1)}, Options(), "mul is [3, 1, 64]"),
        ({"add": (1, 5)}, Options(), "add is [1, 5, 64]"),
        ({"mul": (), "add": ()}, Options("none"), "nothing to compute"),
        ({"hidden": 40_000}, Options(), "do not fit into SBUF"),
    ],
)
def test_sizes(changed: dict[str, Any], options: Options, words: str) -> None:
    found = refusal(replace(SIZES, **changed), options, "bfloat16")
    assert found is not None and words in found


def test_dtypes_and_targets() -> None:
    for found, words in (
        (refusal(SIZES, Options(), "float16"), "dtype is float16"),
        (refusal(SIZES, Options(), "float32"), "itemsize is 2"),
        (refusal(SIZES, Options(), "bfloat16", NcVersion.gen2), "target is gen2"),
        (refusal(SIZES, Options(limit=448.0), "bfloat16", NcVersion.gen3), "limit is 448.0"),
    ):
        assert found is not None and words in found


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"x": ((4, 8), "float32")}, "x is [4, 8]"),
        ({"x": ((1, 4, 8), "float16")}, "x is float16"),
        ({"residual": ((1, 4, 8), "float32")}, "residual is"),
        ({"mul": ((8,), "float32")}, "mul is [8]"),
        ({"add": ((1, 1, 8), "bfloat16")}, "add is bfloat16"),
        ({"gate": ((1, 1, 9), "float32")}, "gate is [1, 1, 9]"),
    ],
)
def test_tensors(changed: dict[str, Any], words: str) -> None:
    given = {
        "x": ((1, 4, 8), "bfloat16"),
        "mul": ((1, 1, 8), "float32"),
        "add": ((1, 1, 8), "float32"),
        "residual": ((1, 4, 8), "bfloat16"),
        "gate": ((1, 1, 8), "float32"),
        **changed,
    }
    spec: dict[str, Any] = {name: TensorSpec(*value) for name, value in given.items()}
    with pytest.raises(AssertionError) as error:
        profile(adaln_modulate, spec.pop("x"), Options(), **spec, target="trn3", numerics=False)
    assert words in str(error.value)


@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize("limit", [0.0, 240.0])
@pytest.mark.parametrize("groups", [1, 150])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_plan_is_what_is_used(target: str, limit: float, groups: int, dtype: str) -> None:
    x = TensorSpec((1, 600, 5120), dtype)
    row = TensorSpec((1, groups, 5120), "float32")
    options = Options(limit=limit)
    report = profile(
        adaln_modulate, x, options, row, row, x, row, target=target, numerics=False
    ).json()
    sizes = sizes_of(x, x, row, row, row, 2 if dtype == "bfloat16" else 4)
    plan = best_plan(sizes, options, report["sbuf_limit_bytes"], target == "trn3")
    # rows that are loaded ahead and packed rows of the last tiles are not there at the same time
    apart = sum(b.size for b in plan.buffers if b.name in ("x", "residual", "packed"))
    whole = end_of(plan.buffers)
    assert whole - apart <= report["sbuf_peak_bytes"] <= whole <= report["sbuf_limit_bytes"]
    assert report["psum_peak_bytes"] <= report["psum_limit_bytes"]


def test_a_modulation_of_all_tokens_is_loaded_once() -> None:
    x = TensorSpec((1, 1280, 512), "bfloat16")
    row = TensorSpec((1, 1, 512), "float32")
    report = profile(adaln_modulate, x, Options(), row, row, target="trn3", numerics=False).json()
    tiles = 10
    # rows in and out, and two modulations
    assert report["dma_transfers"] == 2 * tiles + 2


def test_a_plan_that_does_not_fit_cannot_be_made() -> None:
    plan = best_plan(SIZES, Options(), 100_000, True)
    with pytest.raises(ValueError, match="SBUF has 10"):
        replace(plan, sbuf_limit=10)


def test_the_compilers_front_ends_take_it() -> None:
    assert lint(adaln_modulate) == []
    assert lint(row_quantize) == []
