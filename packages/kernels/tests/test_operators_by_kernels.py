"""Every operator in the simulator, against itself by torch."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch
from statements import ROUNDOFF
from torch import Tensor

from wantrn.kernels import backend, ops
from wantrn.kernels.backend import Backend, Simulation, use_backend

BF16 = torch.bfloat16
Outputs = Tensor | tuple[Tensor, ...]


def normal(*shape: int, scale: float = 1.0, dtype: torch.dtype = BF16) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(shape, generator=generator) * scale).to(dtype)


def rows(groups: int) -> Tensor:
    return normal(2, groups, 128, dtype=torch.float32)


X, RESIDUAL = normal(2, 66, 128), normal(2, 66, 128, scale=0.5)
HEADS, OTHERS = X.view(2, 66, 4, 32), RESIDUAL.view(2, 66, 4, 32)
ANGLES = torch.linspace(0, 3, 66 * 16).reshape(66, 16)
NORM = ops.HeadNorm(rows(1)[0, 0, :64] + 2, rows(1)[1, 0, :32] + 2)


def projected(layout: ops.QKVLayout) -> Tensor:
    return ops.qkv_proj(
        X,
        normal(128, 128, scale=0.09),
        normal(128),
        head_dim=32,
        num_kv_heads=1,
        norm=NORM,
        rotary=ops.Rotary(ANGLES.cos(), ANGLES.sin()),
        layout=layout,
    )


CALLS: dict[str, Callable[[], Outputs]] = {
    "qkv_proj BSD": lambda: projected(ops.QKVLayout.BSD),
    "qkv_proj NBSd": lambda: projected(ops.QKVLayout.NBSD),
    "qkv_proj of one segment": lambda: ops.qkv_proj(
        X, normal(64, 128, scale=0.09), None, head_dim=32, num_kv_heads=0
    ),
    "attention": lambda: ops.attention(HEADS, OTHERS, HEADS),
    "ring_attention": lambda: ops.ring_attention(HEADS, OTHERS, HEADS, ((0,),)).out,
    "o_proj": lambda: ops.o_proj(HEADS, normal(256, 128, scale=0.09), normal(256)),
    "mlp": lambda: ops.mlp(
        X, normal(256, 128, scale=0.09), normal(256), normal(128, 256, scale=0.06), normal(128)
    ),
    "adaln_modulate": lambda: ops.adaln_modulate(X, rows(1), rows(3)),
    "gated_adaln_modulate": lambda: ops.gated_adaln_modulate(
        X, RESIDUAL, rows(66), rows(1), None, norm=ops.Norm.RMS
    ),
    "gated_adaln_modulate, the sum alone": lambda: ops.gated_adaln_modulate(
        X, RESIDUAL, rows(1), norm=ops.Norm.NONE
    ),
    "gated_add": lambda: ops.gated_add(X, RESIDUAL, rows(2)),
}


def as_list(outputs: Outputs) -> list[Tensor]:
    return [outputs] if isinstance(outputs, Tensor) else list(outputs)


@pytest.mark.parametrize("simulation", [Simulation("trn3", 2), Simulation("trn2", 1)])
@pytest.mark.parametrize("name", CALLS)
def test_as_by_torch(name: str, simulation: Simulation, caplog: pytest.LogCaptureFixture) -> None:
    wanted = as_list(CALLS[name]())
    backend.log_fallback.cache_clear()
    with caplog.at_level(logging.WARNING), use_backend(Backend.SIM, simulation):
        found = as_list(CALLS[name]())
    # nothing went to torch after all
    assert not caplog.records
    for one, other in zip(found, wanted, strict=True):
        assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())
        # each rounds a few times on the way, not at the same places
        bound = 4 * ROUNDOFF[BF16] * float(other.float().abs().max())
        assert float((one.float() - other.float()).abs().max()) <= bound


def test_every_operator_is_here() -> None:
    names = {name.split(" ")[0].rstrip(",") for name in CALLS}
    # those with FP8 weights are in test_row_mx_operators.py
    others = {name for name in ops.__all__ if name == "linear" or name.startswith("row_")}
    assert names == {name for name in ops.__all__ if name.islower()} - others
