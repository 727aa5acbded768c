"""A block of the transformer as one compiled graph."""

from __future__ import annotations

import shutil

import pytest
import torch

from wantrn.model.checkpoints.native import native_shapes
from wantrn.model.config import WanConfig
from wantrn.model.tiny import random_state
from wantrn.model.transformer import Block, VideoInputs, WanTransformer

CONFIG = WanConfig(num_attention_heads=2, num_layers=1, ffn_dim=192, text_dim=32, freq_dim=64)

BACKENDS = [
    "aot_eager",
    pytest.param(
        "inductor",
        marks=pytest.mark.skipif(
            shutil.which("c++") is None and shutil.which("g++") is None,
            reason="torch's default compiler needs a C++ compiler",
        ),
    ),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", BACKENDS)
def test_block_compiles_as_one_graph(backend: str, dtype: torch.dtype) -> None:
    torch.compiler.reset()
    model = WanTransformer(CONFIG).eval().requires_grad_(False)
    assert set(model.state_dict()) == set(native_shapes(CONFIG))
    state = random_state(CONFIG, 0)
    model.load_state_dict(
        {k: v.to(model.parameter_dtype(k, dtype)) for k, v in state.items()}, assign=True
    )
    block = model.blocks[0]
    assert isinstance(block, Block)
    latents = torch.randn(1, 16, 3, 4, 6)
    rotary = model.rotary(latents)
    text = model.text_context(torch.randn(1, 7, CONFIG.text_dim)).blocks[0]
    stream = torch.randn(1, 18, CONFIG.hidden_size, dtype=dtype)
    video = VideoInputs(torch.randn(1, 1, 6, CONFIG.hidden_size), rotary, stream.shape[1])
    compiled = torch.compile(block, fullgraph=True, backend=backend)
    with torch.inference_mode():
        expected = block(stream, video, text)
        actual = compiled(stream, video, text)
    roundoff = 2.0**-24 if dtype == torch.float32 else 2.0**-8
    error = (actual.double() - expected.double()).abs().max()
    assert error <= 8 * roundoff * expected.abs().max()
