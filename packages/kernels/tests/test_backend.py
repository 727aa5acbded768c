from __future__ import annotations

import logging

import pytest
import torch
from statements import softmax_attention

from wantrn.kernels import backend
from wantrn.kernels.backend import Backend, Simulation, use_backend
from wantrn.kernels.ops import attention


@pytest.mark.parametrize("simulation", [Simulation(), Simulation("trn2", 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_computes_attention(simulation: Simulation, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    q = torch.randn(2, 130, 4, 32).to(dtype)
    k, v = torch.randn(2, 2, 200, 2, 32).to(dtype)
    expected = softmax_attention(q, k, v, 32**-0.5)
    with use_backend(Backend.SIM, simulation):
        found = attention(q, k, v)
    assert found.is_contiguous() and found.dtype == dtype
    assert (found.double() - expected).abs().max() < (1e-5 if dtype == torch.float32 else 2e-2)
    # another way of adding up, so other last bits
    assert not torch.equal(found, attention(q, k, v))


def test_what_the_kernel_refuses_goes_to_torch(caplog: pytest.LogCaptureFixture) -> None:
    q, k, v = torch.randn(3, 1, 5, 1, 160)
    backend.log_fallback.cache_clear()
    with caplog.at_level(logging.WARNING), use_backend(Backend.SIM):
        found = attention(q, k, v)
        attention(q, k, v)
    assert torch.equal(found, attention(q, k, v))
    (record,) = caplog.records
    assert "attention: computed by torch, since D is 160" in record.getMessage()


def test_compiled_code_asks_when_it_runs() -> None:
    q, k, v = torch.randn(3, 1, 9, 2, 16)
    compiled = torch.compile(attention, fullgraph=True, backend="eager")
    plain = compiled(q, k, v)
    with use_backend(Backend.SIM):
        simulated = compiled(q, k, v)
    assert torch.equal(plain, attention(q, k, v))
    assert not torch.equal(simulated, plain)
    assert torch.allclose(simulated, plain, atol=1e-5)


def test_the_environment_decides_where_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend.setting().backend is Backend.AUTO
    monkeypatch.setenv(backend.VARIABLE, "sim")
    assert backend.setting() == backend.Setting(Backend.SIM, Simulation("trn3", 2))
    with use_backend(Backend.TORCH):
        assert backend.setting().backend is Backend.TORCH
    assert backend.setting().backend is Backend.SIM
    monkeypatch.setenv(backend.VARIABLE, "cuda")
    with pytest.raises(ValueError, match="WANTRN_BACKEND is 'cuda'; it must be one of"):
        backend.setting()


def test_contexts_end_with_an_error() -> None:
    with pytest.raises(RuntimeError), use_backend(Backend.SIM):
        raise RuntimeError
    assert backend.setting().backend is Backend.AUTO


def test_bad_settings_are_named() -> None:
    with pytest.raises(ValueError, match="target is 'gpu'"):
        Simulation("gpu")
    with pytest.raises(ValueError, match="lnc is 3"):
        Simulation(lnc=3)
    with (
        pytest.raises(ValueError, match="the backend is 'torch'"),
        use_backend(Backend.TORCH, Simulation()),
    ):
        pass
