"""`adaln_modulate`, `o_proj` and `mlp` where the operators of the same names stand."""

from __future__ import annotations

import pytest
import torch
from projection_cases import normal
from statements import ROUNDOFF

from wantrn.kernels import ops
from wantrn.kernels.adaln.options import Options
from wantrn.kernels.adaln.torch_call import Call
from wantrn.kernels.backend import Simulation
from wantrn.kernels.projections import torch_call
from wantrn.kernels.simulator import Simulator

BF16 = torch.bfloat16
MACHINES = [Simulator(Simulation("trn3", 2)), Simulator(Simulation("trn2", 1))]


def assert_alike(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Two roundings apart, the kernel's between two layers and the last one."""
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    size = float(wanted.float().abs().max())
    assert float((found.float() - wanted.float()).abs().max()) <= 4 * ROUNDOFF[BF16] * size


@pytest.mark.parametrize("machine", MACHINES)
def test_o_proj(machine: Simulator) -> None:
    x = normal((2, 70, 3, 64), 1).bfloat16()
    weight, bias = normal((256, 192), 2, 0.07).bfloat16(), normal((256,), 3).bfloat16()
    assert torch_call.o_proj_refusal_of(x, weight, machine) is None
    for added in (bias, None):
        found = torch_call.o_proj_computed(x, weight, added, machine)
        assert_alike(found, ops.o_proj(x, weight, added))


@pytest.mark.parametrize("machine", MACHINES)
def test_mlp(machine: Simulator) -> None:
    x = normal((2, 70, 128), 1).bfloat16()
    up, down = normal((256, 128), 2, 0.09).bfloat16(), normal((128, 256), 3, 0.06).bfloat16()
    up_bias, down_bias = normal((256,), 4).bfloat16(), normal((128,), 5).bfloat16()
    assert torch_call.mlp_refusal_of(x, up, down, machine) is None
    for biases in ((up_bias, down_bias), (None, None)):
        found = torch_call.mlp_computed(x, (up, down), biases, machine)
        assert_alike(found, ops.mlp(x, up, biases[0], down, biases[1]))


def test_fp32_is_refused() -> None:
    x, weight = normal((1, 5, 1, 128), 1), normal((128, 128), 2)
    found = torch_call.o_proj_refusal_of(x, weight, MACHINES[0])
    assert found is not None and "x is torch.float32" in found
    found = torch_call.mlp_refusal_of(x[:, :, 0], weight, weight, MACHINES[0])
    assert found is not None and "x is torch.float32" in found


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("norm", list(ops.Norm))
def test_adaln(machine: Simulator, norm: ops.Norm) -> None:
    x, residual = normal((2, 66, 96), 1).bfloat16(), normal((2, 66, 96), 2).bfloat16()
    mul, add, gate = (normal((2, groups, 96), 3) for groups in (1, 3, 66))
    options = Options(norm.value)
    call = Call(x, options, mul, add)
    assert call.refusal(machine) is None
    wanted = ops.adaln_modulate(x, mul, add, norm=norm)
    assert_alike(call.computed(machine), wanted)
    found = Call(x, options, mul, add, residual, gate).computed(machine)
    both = ops.gated_adaln_modulate(x, residual, gate, mul, add, norm=norm)
    for a, b in zip(found, both, strict=True):
        assert_alike(a, b)


def test_gated_add() -> None:
    x, residual, gate = (normal((1, 66, 96), seed) for seed in (1, 2, 3))
    call = Call(x, Options("none"), residual=residual, gate=gate)
    assert call.refusal(MACHINES[0]) is None
    # a fused product and sum, against two roundings
    wanted = ops.gated_add(x, residual, gate)
    found = call.computed(MACHINES[0])
    assert float((found - wanted).abs().max()) <= 4 * ROUNDOFF[torch.float32] * 10
    nothing = Call(x, Options("none")).refusal(MACHINES[0])
    assert nothing is not None and "nothing to compute" in nothing
