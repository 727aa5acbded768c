"""Each kernel on a Trainium 3 against torch on the CPU, which computes in fp32."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from wantrn.kernels import backend, ops
from wantrn.kernels.backend import Backend, use_backend
from wantrn.kernels.row_mx import ChannelWeight

pytestmark = pytest.mark.trn3

DEVICE = "neuron"
TOKENS, HIDDEN, HEADS, D = 300, 512, 4, 128

Outputs = Tensor | tuple[Tensor, ...]
# what an operator is called with, by name
Inputs = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def device() -> None:
    """Importing torch-neuronx makes torch know the device; without it, these tests fail."""
    importlib.import_module("torch_neuronx")


def sample(*shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def bf16(*shape: int, scale: float = 1.0) -> Tensor:
    return sample(*shape, scale=scale).bfloat16()


def fp8(width: int, depth: int) -> ChannelWeight:
    return ChannelWeight.of(sample(width, depth, scale=depth**-0.5))


def heads() -> Inputs:
    angles = sample(TOKENS, D // 2, scale=3.0)
    return {
        "x": bf16(1, TOKENS, HIDDEN),
        "bias": bf16(3 * HEADS * D),
        "norms": (sample(HEADS * D).abs(), sample(HEADS * D).abs()),
        "angles": (angles.cos(), angles.sin()),
    }


def qkv(given: Inputs) -> Tensor:
    arguments: dict[str, Any] = {
        "head_dim": D,
        "num_kv_heads": HEADS,
        "norm": ops.HeadNorm(*given["norms"]),
        "rotary": ops.Rotary(*given["angles"]),
    }
    weight = given["weight"]
    if isinstance(weight, ChannelWeight):
        packed = ops.row_quantize(given["x"])
        return ops.row_mx_qkv_proj(packed, weight, given["bias"], **arguments)
    return ops.qkv_proj(given["x"], weight, given["bias"], **arguments)


def ring(given: Inputs) -> Tensor:
    found = ops.ring_attention(given["q"], given["k"], given["v"], ((0,),), total=TOKENS - 9)
    assert found.path_names() == ("const_max",) * HEADS or given["q"].device.type == "cpu"
    return found.out[:, : TOKENS - 9]


def qkv_inputs() -> Inputs:
    return {name: bf16(1, TOKENS + i, HEADS, D) for i, name in enumerate("qkv")} | {
        "k": bf16(1, 512, HEADS, D),
        "v": bf16(1, 512, HEADS, D),
    }


def modulated() -> Inputs:
    rows = {name: sample(1, 1, HIDDEN) for name in ("gate", "mul", "add")}
    return {"x": bf16(1, TOKENS, HIDDEN), "residual": 2 * bf16(1, TOKENS, HIDDEN), **rows}


CALLS: dict[str, tuple[Callable[[Inputs], Outputs], Callable[[], Inputs]]] = {
    "attention": (lambda given: ops.attention(**given), qkv_inputs),
    "ring_attention": (
        ring,
        lambda: {name: bf16(1, TOKENS, HEADS, D, scale=1 + i) for i, name in enumerate("qkv")},
    ),
    "qkv_proj": (
        qkv,
        lambda: heads() | {"weight": bf16(3 * HEADS * D, HIDDEN, scale=HIDDEN**-0.5)},
    ),
    "row_mx_qkv_proj": (qkv, lambda: heads() | {"weight": fp8(3 * HEADS * D, HIDDEN)}),
    "o_proj": (
        lambda given: ops.o_proj(**given),
        lambda: {
            "x": bf16(1, TOKENS, HEADS, D),
            "weight": bf16(HIDDEN, HEADS * D, scale=(HEADS * D) ** -0.5),
            "bias": bf16(HIDDEN),
        },
    ),
    "row_mx_o_proj": (
        lambda given: ops.row_mx_o_proj(**given),
        lambda: {
            "x": bf16(1, TOKENS, HEADS, D),
            "weight": fp8(HIDDEN, HEADS * D),
            "bias": bf16(HIDDEN),
        },
    ),
    "mlp": (
        lambda given: ops.mlp(**given),
        lambda: {
            "x": bf16(1, TOKENS, HIDDEN),
            "up": bf16(2 * HIDDEN, HIDDEN, scale=HIDDEN**-0.5),
            "up_bias": bf16(2 * HIDDEN),
            "down": bf16(HIDDEN, 2 * HIDDEN, scale=(2 * HIDDEN) ** -0.5),
            "down_bias": bf16(HIDDEN),
        },
    ),
    "row_mx_mlp": (
        lambda given: ops.row_mx_mlp(
            ops.row_quantize(given["x"]), given["up"], None, given["down"], None
        ),
        lambda: {
            "x": bf16(1, TOKENS, HIDDEN),
            "up": fp8(2 * HIDDEN, HIDDEN),
            "down": fp8(HIDDEN, 2 * HIDDEN),
        },
    ),
    "adaln_modulate": (
        lambda given: ops.adaln_modulate(given["x"], given["mul"], given["add"]),
        modulated,
    ),
    "gated_adaln_modulate": (lambda given: ops.gated_adaln_modulate(**given), modulated),
    "gated_add": (
        lambda given: ops.gated_add(given["x"], given["residual"], given["gate"]),
        modulated,
    ),
}


def on_device(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(DEVICE)
    if isinstance(value, ChannelWeight):
        return ChannelWeight(value.codes.to(DEVICE), value.scales.to(DEVICE))
    return tuple(on_device(item) for item in value)


def as_list(outputs: Outputs) -> list[Tensor]:
    return [outputs] if isinstance(outputs, Tensor) else list(outputs)


# in a graph the ring stays a node that runs by itself, as it chooses its kernels by values
COMPILED = [name for name in CALLS if name != "ring_attention"]


@pytest.mark.parametrize(
    ("name", "compiled"),
    [*((name, False) for name in CALLS), *((name, True) for name in COMPILED)],
)
def test_as_torch_computes_it(name: str, compiled: bool, caplog: pytest.LogCaptureFixture) -> None:
    call, inputs = CALLS[name]
    given = inputs()
    with use_backend(Backend.TORCH):
        wanted = as_list(call(given))
    backend.log_fallback.cache_clear()
    run = torch.compile(call, fullgraph=True, backend="neuron") if compiled else call
    with caplog.at_level(logging.WARNING), torch.no_grad():
        found = as_list(run({name: on_device(value) for name, value in given.items()}))
    assert not [record for record in caplog.records if "computed by torch" in record.getMessage()]
    for one, other in zip(found, wanted, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        error = (one.cpu().double() - other.double()).abs()
        # some roundings of bf16 apart, of the largest; on average, one
        size = float(other.double().abs().max())
        assert float(error.max()) <= 2.0**-6 * size
        assert float(error.mean()) <= 2.0**-8 * size


def test_packed_rows_are_those_of_torch() -> None:
    x = bf16(1, TOKENS, HIDDEN)
    wanted = ops.row_quantize(x).view(torch.uint8)
    found = ops.row_quantize(x.to(DEVICE)).cpu().view(torch.uint8)
    assert float((found != wanted).double().mean()) < 1e-3
