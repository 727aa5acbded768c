"""The operators as torch sees them: schema, fake implementations, compilation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from wantrn.kernels.ops import (
    HeadNorm,
    QKVLayout,
    Rotary,
    adaln_modulate,
    attention,
    gated_adaln_modulate,
    gated_add,
    mlp,
    o_proj,
    qkv_proj,
    ring_attention,
)
from wantrn.kernels.row_mx import ChannelWeight, quantize_rows

Outputs = Tensor | tuple[Tensor, Tensor]


def _qkv(x: Tensor, layout: QKVLayout) -> Tensor:
    new = x.new_ones
    table = x.new_ones((x.shape[1], 4), dtype=torch.float32)
    q_weight, k_weight = (x.new_ones(n, dtype=torch.float32) for n in (16, 8))
    return qkv_proj(
        x,
        new((32, 16)),
        new((32,)),
        head_dim=8,
        num_kv_heads=1,
        norm=HeadNorm(q_weight, k_weight),
        rotary=Rotary(table, table),
        layout=layout,
    )


def _ring(x: Tensor) -> tuple[Tensor, Tensor]:
    heads = x.view(2, -1, 2, 8)
    found = ring_attention(heads, heads, heads, ((0,),), total=5, lse=True)
    assert found.lse is not None
    return found.out, found.lse


def _adaln(x: Tensor) -> Tensor:
    return adaln_modulate(x, x.new_ones((1, 1, 16), dtype=torch.float32))


CALLS: dict[str, Callable[[Tensor], Outputs]] = {
    "qkv_proj BSD": lambda x: _qkv(x, QKVLayout.BSD),
    "qkv_proj NBSd": lambda x: _qkv(x, QKVLayout.NBSD),
    "attention": lambda x: attention(*(x.view(2, -1, 2, 8) for _ in range(3))),
    "ring_attention": lambda x: _ring(x),
    "o_proj": lambda x: o_proj(x.view(2, -1, 2, 8), x.new_ones((5, 16)), None),
    "mlp": lambda x: mlp(x, x.new_ones((7, 16)), None, x.new_ones((3, 7)), None),
    "adaln_modulate": _adaln,
    "gated_adaln_modulate": lambda x: gated_adaln_modulate(x, x),
    "gated_add": lambda x: gated_add(x, x),
}


def as_list(outputs: Outputs) -> list[Tensor]:
    return [outputs] if isinstance(outputs, Tensor) else list(outputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CALLS)
def test_fake_results_have_the_real_layout(name: str, dtype: torch.dtype) -> None:
    real = as_list(CALLS[name](torch.ones(2, 6, 16, dtype=dtype)))
    with FakeTensorMode():
        fake = as_list(CALLS[name](torch.ones(2, 6, 16, dtype=dtype)))
    for r, f in zip(real, fake, strict=True):
        assert (r.shape, r.dtype, r.stride()) == (f.shape, f.dtype, f.stride())


@pytest.mark.parametrize("name", CALLS)
def test_captured_as_one_graph(name: str) -> None:
    torch.compiler.reset()
    x = torch.randn(2, 6, 16)
    compiled = torch.compile(CALLS[name], fullgraph=True, backend="aot_eager")
    for eager, traced in zip(as_list(CALLS[name](x)), as_list(compiled(x)), strict=True):
        assert torch.equal(eager, traced)


def _channels(width: int, depth: int) -> tuple[Tensor, Tensor]:
    weight = ChannelWeight.of(torch.randn(width, depth))
    return weight.codes, weight.scales


OPERATORS = {
    "qkv_proj": (
        torch.randn(1, 3, 8),
        torch.randn(24, 8),
        torch.randn(24),
        4,
        2,
        torch.ones(8),
        torch.ones(8),
        1e-6,
        torch.randn(3, 2),
        torch.randn(3, 2),
        True,
        [],
        1,
        "",
    ),
    "attention": (*(torch.randn(1, 3, 2, 4) for _ in range(3)), 0.5),
    "ring_attention": (
        *(torch.randn(1, 3, 2, 4) for _ in range(3)),
        [0],
        [0],
        0,
        "",
        2,
        0.5,
        2,
        False,
        True,
    ),
    "o_proj": (torch.randn(1, 3, 2, 4), torch.randn(6, 8), torch.randn(6)),
    "mlp": (
        torch.randn(1, 3, 8),
        torch.randn(6, 8),
        torch.randn(6),
        torch.randn(5, 6),
        torch.randn(5),
    ),
    "adaln_modulate": (torch.randn(1, 4, 8), torch.randn(1, 2, 8), None, "layer", 1e-6, False),
    "gated_adaln_modulate": (
        torch.randn(1, 4, 8),
        torch.randn(1, 4, 8),
        torch.randn(1, 1, 8),
        None,
        torch.randn(1, 4, 8),
        "rms",
        1e-6,
        True,
    ),
    "gated_add": (torch.randn(1, 4, 8), torch.randn(1, 4, 8), torch.randn(1, 1, 8)),
    "row_mx_qkv_proj": (
        quantize_rows(torch.randn(1, 3, 8)),
        *_channels(24, 8),
        torch.randn(24),
        4,
        2,
        torch.ones(8),
        torch.ones(8),
        1e-6,
        torch.randn(3, 2),
        torch.randn(3, 2),
        True,
        [],
        1,
        "",
    ),
    "row_mx_o_proj": (
        torch.randn(1, 3, 2, 16).bfloat16(),
        *_channels(6, 32),
        torch.randn(6).bfloat16(),
    ),
    "row_mx_mlp": (
        quantize_rows(torch.randn(1, 3, 8)),
        *_channels(32, 8),
        torch.randn(32),
        *_channels(5, 32),
        None,
    ),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_torch_accepts_the_registration(name: str) -> None:
    """Schema (no mutation, no aliasing), fake implementation, and tracing with dynamic shapes."""
    operator = getattr(torch.ops.wantrn, name).default
    if not name.startswith("row_mx_"):
        torch.library.opcheck(operator, OPERATORS[name])
        return
    # torch's check of the schema multiplies what it is given, which it cannot with float8
    checks = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(operator, OPERATORS[name], test_utils=checks)
    given = [value for value in OPERATORS[name] if isinstance(value, Tensor)]
    before = [tensor.view(torch.uint8).clone() for tensor in given]
    out = operator(*OPERATORS[name])
    for tensor, bytes_before in zip(given, before, strict=True):
        assert torch.equal(tensor.view(torch.uint8), bytes_before)
        assert out.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()


def test_every_operator_is_tried() -> None:
    registered = {
        schema.name.removeprefix("wantrn::")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("wantrn::")
    }
    assert registered == set(OPERATORS)


def test_gradients_are_refused() -> None:
    x = torch.randn(1, 2, 4, requires_grad=True)
    out = gated_add(x, x)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        torch.autograd.grad(out.sum(), x)
