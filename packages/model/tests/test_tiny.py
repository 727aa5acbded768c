from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from wantrn.model import tiny
from wantrn.model.info import ModelKind, read_model_info
from wantrn.model.tiny import cached_tiny_checkpoint, write_tiny_checkpoint


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
    write_tiny_checkpoint(tmp_path, kind)
    info = read_model_info(tmp_path)
    assert info.kind is kind
    assert len(info.experts) == (1 if kind is ModelKind.TI2V else 2)
    assert info.config.attention_head_dim == 128
    assert info.config.num_attention_heads == 2


def test_it_is_made_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "not" / "yet"
    with ThreadPoolExecutor(3) as pool:
        folders = set(pool.map(lambda _: cached_tiny_checkpoint(cache, ModelKind.T2V), range(3)))
    assert len(folders) == 1
    assert list(cache.iterdir()) == list(folders)  # nothing else was left
    monkeypatch.setattr(tiny, "write_tiny_checkpoint", None)  # a second making would fail
    assert {cached_tiny_checkpoint(cache, ModelKind.T2V)} == folders


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path, kind: ModelKind) -> None:
        (folder / "half").write_text("a part")
        raise OSError("disk full")

    monkeypatch.setattr(tiny, "write_tiny_checkpoint", fail)
    with pytest.raises(OSError, match="disk full"):
        cached_tiny_checkpoint(tmp_path, ModelKind.T2V)
    assert list(tmp_path.iterdir()) == []
