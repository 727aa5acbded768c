from __future__ import annotations

import attention_errors
import pytest
import torch
from torch import Tensor


def test_torch_is_as_good_as_torch() -> None:
    assert attention_errors.ratios(attention_errors._by_torch, 40, 0) == (1.0, 1.0)


def test_an_error_shows() -> None:
    """One that is twice torch's everywhere."""

    def doubled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        exact = attention_errors._by_torch(q.double(), k.double(), v.double())
        return exact + 2 * (attention_errors._by_torch(q, k, v).double() - exact)

    mean, largest = attention_errors.ratios(doubled, 40, 1)
    assert mean == pytest.approx(2.0) and largest == pytest.approx(2.0)


def test_figures_of_all_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    found = attention_errors.figures(2, 130)
    assert len(found) == 4 * len(attention_errors.KERNELS)
    assert all(0.5 < value < 2.5 for value in found.values())
    for kernel in attention_errors.KERNELS:
        for kind in ("rms", "largest"):
            assert found[f"{kernel}.{kind}.median"] <= found[f"{kernel}.{kind}.worst"]
    assert set(attention_errors.KERNELS) <= set(capsys.readouterr().out.split())


def test_kernels_are_of_the_same_attention() -> None:
    generator = torch.Generator().manual_seed(5)
    inputs = [torch.randn(1, 70, 2, 128, generator=generator).bfloat16() for _ in range(3)]
    wanted = attention_errors._by_torch(*inputs).float()
    for kernel in attention_errors.KERNELS.values():
        assert (kernel(*inputs).float() - wanted).abs().max() < 0.02
