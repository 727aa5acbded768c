"""The transformer with every operator computed by its kernel, in the simulator."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from test_transformer import BASE, CONFIGS, forward, pair
from torch import Tensor

from wantrn.kernels import backend
from wantrn.kernels.backend import Backend, Simulation, use_backend

BF16 = torch.bfloat16
# all widths are multiples of 128, as the matmul kernels ask
CONFIG = replace(BASE, ffn_dim=256, text_dim=128)


@pytest.mark.parametrize("simulation", [Simulation("trn3", 2), Simulation("trn2", 1)])
@pytest.mark.parametrize("kind", CONFIGS)
def test_errors_are_those_of_torch(
    kind: str, simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    """Against fp32, by kernels in bf16 and by torch in bf16."""
    config = replace(CONFIG, in_channels=CONFIGS[kind].in_channels)
    _, model = pair(config)
    torch.manual_seed(1)
    inputs = (
        torch.randn(1, config.in_channels, 3, 6, 10),
        torch.tensor([731.0]),
        torch.randn(1, 19, config.text_dim),
    )
    exact = forward(model, *inputs)
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.to(model.parameter_dtype(name, BF16))
    by_torch = forward(model, *inputs)
    backend.log_fallback.cache_clear()
    with caplog.at_level(logging.WARNING), use_backend(Backend.SIM, simulation):
        by_kernels = forward(model, *inputs)
    assert not caplog.records
    assert error(by_kernels, exact) <= 1.5 * error(by_torch, exact)


def error(found: Tensor, exact: Tensor) -> float:
    """Root mean square, relative."""
    difference = (found.double() - exact.double()).square().mean().sqrt()
    return float(difference / exact.double().square().mean().sqrt())
