"""The backend `neuron`: what torch-neuronx's wrapper of kernels is handed, and what comes back."""

from __future__ import annotations

import importlib.abc
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import run_ranks
from neuron_double import Double, installed
from torch import Tensor

from wantrn.kernels import backend, ops
from wantrn.kernels.backend import Backend, Simulation, use_backend
from wantrn.kernels.machine import runs_on_device
from wantrn.kernels.row_mx import ChannelWeight

Outputs = Tensor | tuple[Tensor, ...]


def sample(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + len(shape)))


X = sample(1, 20, 128)
ROW = sample(1, 1, 128, seed=7)
HEADS = sample(1, 20, 2, 64)
ANGLES = sample(20, 16)
NORM = ops.HeadNorm(sample(64, seed=1), sample(32, seed=2))
WEIGHT, BIAS = (sample(128, 128) / 11).bfloat16(), sample(128).bfloat16()
FP8 = ChannelWeight.of(sample(128, 128) / 11)


def qkv(x: Tensor, packed: bool) -> Tensor:
    arguments: dict[str, Any] = {
        "head_dim": 32,
        "num_kv_heads": 1,
        "norm": NORM,
        "rotary": ops.Rotary(ANGLES.cos(), ANGLES.sin()),
        "layout": ops.QKVLayout.NBSD,
    }
    if packed:
        return ops.row_mx_qkv_proj(ops.row_quantize(x), FP8, BIAS, **arguments)
    return ops.qkv_proj(x.bfloat16(), WEIGHT, BIAS, **arguments)


def ring(x: Tensor) -> tuple[Tensor, ...]:
    found = ops.ring_attention(x, x, x, ((0,),), total=17, lse=True)
    assert found.lse is not None
    return found.out[:, :17], found.lse[..., :17]


def mlp(x: Tensor) -> Tensor:
    return ops.mlp(x.bfloat16(), WEIGHT, None, WEIGHT, BIAS)


# an operator, its first argument, and its kernel
CALLS: dict[str, tuple[Callable[[Tensor], Outputs], Tensor, str]] = {
    "attention": (lambda q: ops.attention(q, q, q), HEADS, "attention_cte"),
    "ring_attention": (ring, HEADS, "ring_attention"),
    "qkv_proj": (lambda x: qkv(x, False), X, "qkv_cte"),
    "row_mx_qkv_proj": (lambda x: qkv(x, True), X, "qkv_cte"),
    "o_proj": (
        lambda x: ops.o_proj(x.bfloat16(), WEIGHT, None),
        HEADS,
        "o_proj",
    ),
    "row_mx_o_proj": (
        lambda x: ops.row_mx_o_proj(x.bfloat16(), FP8, ROW[0, 0]),
        HEADS,
        "o_proj",
    ),
    "mlp": (mlp, X, "mlp"),
    "row_mx_mlp": (
        lambda x: ops.row_mx_mlp(ops.row_quantize(x), FP8, None, FP8, None),
        X,
        "mlp",
    ),
    "adaln_modulate": (lambda x: ops.adaln_modulate(x, ROW, ROW), X, "adaln_modulate"),
    "adaln_modulate packed": (
        lambda x: ops.adaln_modulate(x.bfloat16(), ROW, packed=True),
        X,
        "adaln_modulate",
    ),
    "gated_adaln_modulate": (
        lambda x: ops.gated_adaln_modulate(x, 2 * x, ROW, ROW),
        X,
        "adaln_modulate",
    ),
    "gated_add": (lambda x: ops.gated_add(x, 2 * x, ROW), X, "adaln_modulate"),
}


def as_list(outputs: Outputs) -> list[Tensor]:
    return [outputs] if isinstance(outputs, Tensor) else list(outputs)


def assert_same(found: Outputs, wanted: Outputs) -> None:
    for one, other in zip(as_list(found), as_list(wanted), strict=True):
        assert (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize("name", CALLS)
def test_the_wrapper_gets_what_the_simulator_gets(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    call, first, kernel = CALLS[name]
    with use_backend(Backend.SIM, Simulation("trn3", 2)):
        wanted = call(first)
    with installed(Double()) as double, caplog.at_level(logging.WARNING):
        with use_backend(Backend.NEURON):
            found = call(first)
        recorded = double.last()
    assert_same(found, wanted)
    assert not caplog.records
    assert (recorded.kernel, recorded.lnc) == (kernel, 2)
    tensors = [arg for arg in recorded.args if isinstance(arg, Tensor)]
    assert tensors and all(tensor.is_contiguous() for tensor in tensors)
    assert {tensor.dtype for tensor in tensors} <= {
        torch.bfloat16,
        torch.float32,
        torch.float8_e4m3fn,
    }


@pytest.mark.parametrize("name", [name for name in CALLS if name != "ring_attention"])
def test_one_node_of_a_graph_becomes_the_kernel(name: str) -> None:
    call, first, _ = CALLS[name]
    captured: list[torch.fx.GraphModule] = []
    lowered: list[torch.fx.GraphModule] = []

    def compiler(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        from torch._dynamo.backends.common import aot_autograd

        def lower(lower_graph: torch.fx.GraphModule, _: Any) -> Any:
            lowered.append(lower_graph)
            return lower_graph.forward

        captured.append(graph)
        return aot_autograd(fw_compiler=lower)(graph, inputs)

    torch.compiler.reset()
    with installed(Double()), use_backend(Backend.NEURON), torch.no_grad():
        wanted = call(first)
        found = torch.compile(call, fullgraph=True, backend=compiler)(first)
    assert_same(found, wanted)
    own, kernels = (
        [str(node.target) for graph in graphs for node in graph.graph.nodes]
        for graphs in (captured, lowered)
    )
    operator = name.partition(" ")[0]
    assert sum(f"wantrn.{operator}" in target for target in own) == 1
    assert not any("wantrn." in target for target in kernels)
    expected = 2 if operator in ("row_mx_qkv_proj", "row_mx_mlp") else 1  # with row_quantize
    assert sum("neuron_double.kernel" in target for target in kernels) == expected


def test_what_a_kernel_refuses_goes_to_torch_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    backend.log_fallback.cache_clear()
    wide = sample(1, 5, 1, 160)
    with installed(Double()) as double, caplog.at_level(logging.WARNING):
        with use_backend(Backend.NEURON):
            found = ops.attention(wide, wide, wide)
        assert not double.calls
    with use_backend(Backend.TORCH):
        assert torch.equal(found, ops.attention(wide, wide, wide))
    (record,) = caplog.records
    assert "attention: computed by torch, since D is 160" in record.getMessage()


def test_the_generation_is_that_of_the_device(caplog: pytest.LogCaptureFixture) -> None:
    """Trainium2 has no MX matmul."""
    backend.log_fallback.cache_clear()
    call, first, _ = CALLS["row_mx_mlp"]
    with (
        installed(Double(), lambda: "trn2") as double,
        caplog.at_level(logging.WARNING),
        use_backend(Backend.NEURON),
    ):
        call(first)
    assert not [made for made in double.calls if made.kernel == "mlp"]
    assert any("row_mx_mlp: computed by torch" in record.getMessage() for record in caplog.records)


class Missing(importlib.abc.MetaPathFinder):
    """torch-neuronx is there, but a package that it imports is not."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname.partition(".")[0] == "torch_neuronx":
            raise ModuleNotFoundError(f"No module named {self.name!r}", name=self.name)


@pytest.mark.parametrize(
    ("module", "wheel"),
    [("torch_neuronx", "torch-neuronx"), ("nki", "nki"), ("neuronxcc.driver", "neuronx-cc")],
)
def test_a_missing_wheel_is_named(module: str, wheel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [Missing(module), *sys.meta_path])
    words = (
        rf"needs {wheel}, which is not installed: pip install 'wantrn-kernels\[neuron\]' --extra"
    )
    with use_backend(Backend.NEURON), pytest.raises(ImportError, match=words):
        ops.attention(HEADS, HEADS, HEADS)


class OnDevice(Tensor):
    """A tensor of the CPU that says it is elsewhere."""

    device = type("Device", (), {"type": "neuron"})()


def test_auto_takes_the_device_where_tensors_are_on_one() -> None:
    elsewhere = HEADS.as_subclass(OnDevice)
    for chosen, on_cpu, on_device in (
        (Backend.AUTO, False, True),
        (Backend.TORCH, False, False),
        (Backend.SIM, False, False),
        (Backend.NEURON, True, True),
    ):
        with use_backend(chosen):
            assert (runs_on_device(HEADS), runs_on_device(elsewhere)) == (on_cpu, on_device)
    assert not runs_on_device(HEADS)
    assert runs_on_device(elsewhere)


# Several ranks


def rank_of_two(rank: int) -> None:
    # the other order, so that positions are not numbers
    groups = ((1, 0),)
    group = dist.group.WORLD
    assert group is not None
    position = groups[0].index(rank)
    q = sample(1, 60, 2, 16, seed=rank)
    norm = ops.HeadNorm(NORM.q_weight, NORM.k_weight, 1e-6, groups, group)

    def project() -> Tensor:
        weight = (sample(128, 128, seed=rank) / 11).bfloat16()
        return ops.qkv_proj(X.bfloat16(), weight, None, head_dim=32, num_kv_heads=1, norm=norm)

    def attend() -> Tensor:
        return ops.ring_attention(q, q, q, groups, group=group, total=100).out[
            :, : 40 + 20 * (1 - position)
        ]

    for call, kernel, options in ((project, "qkv_cte", 2), (attend, "ring_attention", 3)):
        with use_backend(Backend.SIM, Simulation("trn3", 2)):
            wanted = call()
        with installed(Double(group.group_name)) as double, use_backend(Backend.NEURON):
            assert torch.equal(call(), wanted)
            recorded = double.last()
        assert (recorded.kernel, recorded.lnc) == (kernel, 2)
        found = recorded.args[options]
        assert getattr(found, "groups", getattr(found, "replica_groups", None)) == groups
    assert recorded.args[3].valid == (60, 40)[position]


def test_replica_groups_are_those_of_the_world(tmp_path: Path) -> None:
    run_ranks(2, tmp_path, rank_of_two)
