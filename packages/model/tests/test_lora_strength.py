"""By what a file says its changes are multiplied: alpha over rank, wherever it is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import write_file, write_raw
from lora_files import LowRank, Made, diffusers_tensors, made, write_lora
from safetensors.torch import save_file
from test_lora_files import CONFIG, H, canonical, pair, read

from wantrn.model.errors import CheckpointError
from wantrn.model.lora import Lora


def scales(lora: Lora) -> set[float]:
    return {path.scale for paths in lora.paths.values() for path in paths}


def peft_folder(folder: Path, config: Mapping[str, Any]) -> Path:
    lora = made(canonical(), CONFIG, rank=4, alpha=None)
    write_file(folder / "adapter_model.safetensors", diffusers_tensors(lora, "base_model.model."))
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_alpha_beside_the_weights(tmp_path: Path) -> None:
    """As PEFT saves a folder: alpha over rank, or over its root, and layers with their own."""
    base = {"peft_type": "LORA", "r": 4, "lora_alpha": 8}
    assert scales(read(peft_folder(tmp_path / "a", base))) == {2.0}
    assert scales(read(tmp_path / "a" / "adapter_model.safetensors")) == {2.0}
    assert scales(read(peft_folder(tmp_path / "b", base | {"use_rslora": True}))) == {4.0}
    own = read(peft_folder(tmp_path / "c", base | {"alpha_pattern": {"attn2.to_q": 2}}))
    for layer, paths in own.paths.items():
        expected = 0.5 if layer.endswith("cross_attention.q") else 2.0
        assert {path.scale for path in paths} == {expected}, layer
    for change, fault in {
        "use_dora": "use_dora is True; it must be false",
        "fan_in_fan_out": "fan_in_fan_out is True; it must be false",
        "lora_alpha": "lora_alpha must be a finite number, is True",
    }.items():
        with pytest.raises(CheckpointError, match=fault):
            read(peft_folder(tmp_path / change, base | {change: True}))
    with pytest.raises(CheckpointError, match=r"alpha_pattern '\^blocks.*' must be the name"):
        read(peft_folder(tmp_path / "p", base | {"alpha_pattern": {"^blocks.*": 2}}))


def test_alpha_in_the_header(tmp_path: Path) -> None:
    """As diffusers saves a file, of one expert or of both."""
    high, low = (made(canonical(), CONFIG, rank=4, alpha=None, seed=seed) for seed in (1, 2))
    values = {"transformer.lora_alpha": 8, "transformer.r": 4, "transformer_2.lora_alpha": 2}
    file = tmp_path / "lora.safetensors"
    tensors = diffusers_tensors(high) | diffusers_tensors(low, "transformer_2.")
    save_file(tensors, file, {"lora_adapter_metadata": json.dumps(values)})
    for expert, (one, scale) in enumerate(((high, 2.0), (low, 0.5))):
        found = read(file, expert, experts=2)
        assert scales(found) == {scale}
        name = "blocks.0.feed_forward.up"
        (path,) = found.paths[name]
        assert path.down is not None
        assert torch.equal(path.down, one.layers["blocks.0.ffn.net.0.proj"].down)
    with pytest.raises(CheckpointError, match=r"of \d+ keys are unknown: transformer_2"):
        read(file)


def test_a_tensor_of_alpha_comes_first(tmp_path: Path) -> None:
    folder = peft_folder(tmp_path / "x", {"lora_alpha": 8})
    lora = made(canonical(), CONFIG, rank=4, alpha=None)
    tensors = diffusers_tensors(lora, "base_model.model.")
    tensors["base_model.model.proj_out.alpha"] = torch.tensor(1, dtype=torch.int64)
    write_file(folder / "adapter_model.safetensors", tensors)
    found = read(folder)
    assert found.paths["proj_out"][0].scale == 0.25
    assert found.paths["blocks.0.feed_forward.up"][0].scale == 2.0


def test_a_header_that_is_no_json_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "lora.safetensors"
    save_file(pair(), file, {"lora_adapter_metadata": "{"})
    with pytest.raises(CheckpointError, match="lora_adapter_metadata: not valid JSON"):
        read(file)
    with pytest.raises(CheckpointError, match="not valid JSON"):
        read(write_raw(tmp_path / "raw.safetensors", b"{"))


def test_rank_and_alpha_are_the_factor(tmp_path: Path) -> None:
    layer = LowRank(torch.ones(4, H), torch.ones(H, 4), alpha=6.0)
    file = write_lora(tmp_path / "x.safetensors", Made({"blocks.0.attn1.to_q": layer}), CONFIG)
    assert scales(read(file)) == {1.5}


def test_a_bias_of_b_has_the_factor_of_its_pair(tmp_path: Path) -> None:
    """As PEFT computes it: all that B gives is multiplied."""
    stem, bias = "transformer.blocks.1.attn2.to_v", torch.randn(H)
    tensors = {
        f"{stem}.lora_A.weight": torch.ones(4, H),
        f"{stem}.lora_B.weight": torch.ones(H, 4),
        f"{stem}.lora_B.bias": bias,
        f"{stem}.diff_b": torch.ones(H),
    }
    file = tmp_path / "x.safetensors"
    save_file(tensors, file, {"lora_adapter_metadata": json.dumps({"lora_alpha": 8})})
    (offset,) = read(file).offsets.values()
    torch.testing.assert_close(offset, 2 * bias + 1)
    del tensors[f"{stem}.lora_A.weight"], tensors[f"{stem}.lora_B.weight"]
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=r"lora_B\.bias: there is no up that goes with it"):
        read(file)
