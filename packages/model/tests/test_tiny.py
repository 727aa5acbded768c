from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from wantrn.model.info import ModelKind, read_model_info
from wantrn.model.tiny import write_tiny_checkpoint


def digests(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


@pytest.mark.parametrize("kind", ModelKind)
def test_the_seed_decides_every_byte(kind: ModelKind, tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_tiny_checkpoint(tmp_path / name, kind, seed)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    differing = {
        file
        for file, digest in digests(tmp_path / "a").items()
        if digests(tmp_path / "c")[file] != digest
    }
    assert all(file.endswith(".safetensors") for file in differing)
    assert len(differing) == (3 if kind is ModelKind.TI2V else 4)


@pytest.mark.parametrize("kind", ModelKind)
def test_it_is_the_kind_it_says(kind: ModelKind, tmp_path: Path) -> None:
    info = read_model_info(write_tiny_checkpoint(tmp_path, kind))
    assert info.kind is kind
    assert len(info.experts) == (1 if kind is ModelKind.TI2V else 2)
    assert info.config.attention_head_dim == 128
    assert info.config.num_attention_heads == 2
