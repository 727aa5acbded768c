"""Writing transformer weights as diffusers and the original release lay them out."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from wantrn.model.checkpoints import diffusers, original
from wantrn.model.checkpoints.formats import CheckpointFormat
from wantrn.model.checkpoints.native import to_canonical
from wantrn.model.checkpoints.tensor_store import INDEX_SUFFIX, SAFETENSORS_SUFFIX
from wantrn.model.config import WanConfig

DIFFUSERS_STEM = "diffusion_pytorch_model"
MAX_SHARD_BYTES = 5_000_000_000


def export_state(
    state: Mapping[str, torch.Tensor], config: WanConfig, format: CheckpointFormat
) -> dict[str, torch.Tensor]:
    """Native parameters under the names and in the shapes of ``format``; values and dtypes stay.

    Raises ``ValueError`` unless ``state`` has the names and shapes of ``config``, and for FP8,
    which would need quantizing.
    """
    if format is CheckpointFormat.DIFFUSERS:
        keys = diffusers.key_map(config)
    elif format is CheckpointFormat.ORIGINAL:
        keys = original.key_map(config)
    else:
        raise ValueError(f"format is {format.value}; only diffusers and original can be written")
    return {keys[name]: tensor for name, tensor in to_canonical(state, config).items()}


def save_sharded(
    tensors: Mapping[str, torch.Tensor],
    directory: Path,
    stem: str = DIFFUSERS_STEM,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> tuple[Path, ...]:
    """Write one ``stem.safetensors``, or shards ``stem-00001-of-0000N.safetensors`` and an index.

    A shard holds at most ``max_shard_bytes`` of data unless a single tensor is larger.
    ``directory`` is made if need be. Everything is written under temporary names first and renamed
    when complete, the index last; after a failure none of the files is left. Returns the files of
    tensors.

    Raises ``FileExistsError`` if weights of this stem are there already, ``ValueError`` on an empty
    ``tensors`` or a ``max_shard_bytes`` below 1.
    """
    if not tensors:
        raise ValueError("tensors is empty; there is nothing to write")
    if max_shard_bytes < 1:
        raise ValueError(f"max_shard_bytes is {max_shard_bytes}; it must be at least 1")
    directory.mkdir(parents=True, exist_ok=True)
    _check_vacant(directory, stem)
    shards = _split(tensors, max_shard_bytes)
    names = [
        f"{stem}-{number:05}-of-{len(shards):05}{SAFETENSORS_SUFFIX}"
        for number in range(1, len(shards) + 1)
    ]
    if len(shards) == 1:
        names = [stem + SAFETENSORS_SUFFIX]
    finals = [directory / name for name in names]
    if len(shards) > 1:
        finals.append(directory / (stem + INDEX_SUFFIX))
    try:
        for final, shard in zip(finals, shards, strict=False):
            _write_shard({name: tensors[name] for name in shard}, _partial(final))
        if len(shards) > 1:
            _partial(finals[-1]).write_text(_index(tensors, shards, names), encoding="utf-8")
        for final in finals:
            os.replace(_partial(final), final)
    except BaseException:
        for final in finals:
            _partial(final).unlink(missing_ok=True)
            final.unlink(missing_ok=True)
        raise
    return tuple(directory / name for name in names)


def _check_vacant(directory: Path, stem: str) -> None:
    """Old shards beside new ones would make a folder that nobody can read with certainty."""
    pattern = re.compile(
        rf"{re.escape(stem)}(-\d{{5}}-of-\d{{5}})?\.safetensors(\.index\.json)?(\.partial)?"
    )
    for path in directory.iterdir():
        if pattern.fullmatch(path.name):
            raise FileExistsError(f"{path} exists; weights are written to a folder without any")


def _split(tensors: Mapping[str, torch.Tensor], max_bytes: int) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    used = 0
    for name, tensor in tensors.items():
        if shards[-1] and used + tensor.nbytes > max_bytes:
            shards.append([])
            used = 0
        shards[-1].append(name)
        used += tensor.nbytes
    return shards


def _partial(final: Path) -> Path:
    return final.with_name(final.name + ".partial")


def _write_shard(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """``metadata`` says what readers from the transformers library insist on."""
    # A view (of a fused weight, say) would make safetensors look at the storage behind it.
    plain = {
        name: tensor.detach().contiguous()
        if tensor.untyped_storage().nbytes() == tensor.nbytes
        else tensor.detach().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    save_file(plain, path, metadata={"format": "pt"})


def _index(tensors: Mapping[str, torch.Tensor], shards: list[list[str]], names: list[str]) -> str:
    weight_map = {
        tensor: name for shard, name in zip(shards, names, strict=True) for tensor in shard
    }
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    return json.dumps(index, indent=2) + "\n"
