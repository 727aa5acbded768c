"""The kernels in packages/nkisim/examples, which the documentation shows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import nkisim
from nkisim import TensorSpec
from nkisim.command_kernel import load_kernel
from nkisim.kernel import Kernel

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
BF16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture
def attention(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    yield load_kernel(f"{EXAMPLES / 'attention.py'}:attention")
    nkisim.uninstall()


@pytest.mark.parametrize("buffers", [1, 2, 3])
@pytest.mark.parametrize(("D", "Sq", "Sk"), [(128, 256, 1536), (64, 128, 512), (40, 128, 1024)])
@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_attention(attention: Kernel, D: int, Sq: int, Sk: int, buffers: int, target: str) -> None:
    generator = np.random.default_rng(0)
    # scores of both signs and of a size at which the largest matters
    q = (4 * generator.standard_normal((D, Sq))).astype(BF16)
    k = generator.standard_normal((D, Sk)).astype(BF16)
    v = generator.standard_normal((Sk, D)).astype(BF16)
    scale = D**-0.5
    found = nkisim.simulate(attention, target=target, rules=nkisim.Rules.all("error"))(
        q, k, v, scale=scale, buffers=buffers
    )
    scores = scale * (q.astype(np.float64).T @ k.astype(np.float64))
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected = weights @ v.astype(np.float64) / weights.sum(axis=1, keepdims=True)
    assert found.dtype == BF16
    # weights and results are rounded to bf16: relative steps of 2 ** -8
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=2**-7, atol=2**-7)


def test_attention_compiles_as_far_as_lint_can_tell(attention: Kernel) -> None:
    assert nkisim.lint(attention) == []


def test_a_second_buffer_hides_loads(attention: Kernel) -> None:
    q, k, v = (TensorSpec(s, "bfloat16") for s in ([128, 128], [128, 4096], [4096, 128]))
    times = [
        nkisim.profile(attention, q, k, v, 0.09, buffers=n, numerics=False).kernel_us
        for n in (1, 2)
    ]
    assert times[1] < 0.9 * times[0]
