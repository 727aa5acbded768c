"""Named tensors on disk: one safetensors file, or several with an index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors import SafetensorError, safe_open

from wantrn.model.checkpoints.ranged_read import read_tensor
from wantrn.model.checkpoints.safetensors_header import TensorInfo, parse_json_object, read_header
from wantrn.model.errors import CheckpointError
from wantrn.model.slices import Slice

SAFETENSORS_SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True)
class TensorStore:
    """The tensors of one model component, described by headers and read one at a time.

    ``source`` is the path that was opened (for errors), ``tensors`` a read-only view by name. No
    file stays open between reads.
    """

    source: Path
    tensors: Mapping[str, TensorInfo]

    @classmethod
    def open(cls, path: Path) -> TensorStore:
        """Open a ``.safetensors`` file, an ``*.safetensors.index.json``, or a folder with either.

        Reads and checks all headers but no data. Raises ``CheckpointError`` naming file and key on
        anything that is not a complete and unambiguous set of tensors, and on a pickle.
        """
        if path.is_dir():
            chosen = _choose(path)
        elif path.is_file():
            chosen = path
        else:
            raise CheckpointError(f"{path}: no such file or folder")
        if chosen.suffix in PICKLE_SUFFIXES:
            raise CheckpointError(_pickle_text(chosen))
        if chosen.name.endswith(INDEX_SUFFIX):
            tensors = _read_sharded(chosen)
        elif chosen.suffix == SAFETENSORS_SUFFIX:
            tensors = read_header(chosen)
        else:
            raise CheckpointError(f"{chosen}: neither {SAFETENSORS_SUFFIX} nor {INDEX_SUFFIX}")
        if not tensors:
            raise CheckpointError(f"{chosen}: holds no tensor")
        return cls(path, MappingProxyType(tensors))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.tensors)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that hold the tensors, each once, in order of first use."""
        return tuple(dict.fromkeys(info.file for info in self.tensors.values()))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: info.shape for name, info in self.tensors.items()}

    def info(self, name: str) -> TensorInfo:
        """What the header says about ``name``; ``CheckpointError`` if there is no such tensor."""
        try:
            return self.tensors[name]
        except KeyError:
            raise CheckpointError(f"{self.source}: has no tensor {name!r}") from None

    def read(self, name: str) -> torch.Tensor:
        """The tensor ``name``, as stored.

        The result may be a view of the mapped file: clone it before keeping it for long. Raises
        ``CheckpointError`` if the file no longer is what its header said when the store was opened.
        """
        info = self.info(name)
        try:
            with safe_open(info.file, framework="pt", device="cpu") as handle:
                tensor: torch.Tensor = handle.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{info.file}: {name}: cannot be read: {error}") from error
        if tensor.dtype != info.dtype or tuple(tensor.shape) != info.shape:
            raise CheckpointError(f"{info.file}: {name}: the file has changed since it was opened")
        return tensor

    def load(self, name: str, part: Slice | None = None) -> torch.Tensor:
        """The tensor ``name``, or the ``part`` of it, as stored and in memory of its own.

        Only the bytes of the part are read. Raises ``CheckpointError`` as ``read`` does, and
        ``ValueError`` if the tensor has no such part.
        """
        return read_tensor(name, self.info(name), part)


def _pickle_text(file: Path) -> str:
    return (
        f"{file}: is a pickle, and reading a pickle runs any code that is in it; "
        f"convert it to {SAFETENSORS_SUFFIX} where you trust it"
    )


def _choose(folder: Path) -> Path:
    """The one index or safetensors file of a folder."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    indices = [path for path in files if path.name.endswith(INDEX_SUFFIX)]
    singles = [path for path in files if path.suffix == SAFETENSORS_SUFFIX]
    if len(indices) > 1:
        raise CheckpointError(f"{folder}: more than one index: {_names(indices)}")
    if indices:
        return _only_its_shards(indices[0], singles)
    if len(singles) > 1:
        raise CheckpointError(
            f"{folder}: several files and no *{INDEX_SUFFIX} that joins them: {_names(singles)}"
        )
    if singles:
        return singles[0]
    pickles = [path for path in files if path.suffix in PICKLE_SUFFIXES]
    if pickles:
        raise CheckpointError(_pickle_text(pickles[0]))
    raise CheckpointError(f"{folder}: holds no {SAFETENSORS_SUFFIX} file")


def _only_its_shards(index: Path, files: Iterable[Path]) -> Path:
    """Refuse a folder in which a safetensors file stands beside an index that does not name it."""
    listed = set(_weight_map(index).values())
    for file in files:
        if file.name not in listed:
            raise CheckpointError(
                f"{file}: is not in {index.name}, so it is unclear which of the two is meant; "
                "give the path of the file or of the index"
            )
    return index


def _names(files: Iterable[Path]) -> str:
    return ", ".join(file.name for file in files)


def _weight_map(index: Path) -> dict[str, str]:
    """Tensor name to bare file name, from an index."""
    try:
        text = index.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{index}: cannot be read: {error.strerror}") from error
    weight_map = parse_json_object(text, str(index)).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{index}: has no weight_map object")
    for name, file in weight_map.items():
        # Only a bare name surely stays in the folder; both separators count on every system.
        if (
            not isinstance(file, str)
            or "/" in file
            or "\\" in file
            or not file.endswith(SAFETENSORS_SUFFIX)
        ):
            raise CheckpointError(
                f"{index}: {name}: {file!r} is not the name of a {SAFETENSORS_SUFFIX} file "
                "in the same folder"
            )
    return weight_map


def _read_sharded(index: Path) -> dict[str, TensorInfo]:
    weight_map = _weight_map(index)
    headers: dict[str, dict[str, TensorInfo]] = {}
    first_file: dict[str, str] = {}
    for file in dict.fromkeys(weight_map.values()):
        if not (index.parent / file).is_file():
            key = next(name for name, target in weight_map.items() if target == file)
            raise CheckpointError(f"{index}: names {file} (for {key}), which is not in the folder")
        headers[file] = read_header(index.parent / file)
        for name in headers[file]:
            if name in first_file:
                raise CheckpointError(f"{index}: {name} is in both {first_file[name]} and {file}")
            first_file[name] = file
    for name, file in weight_map.items():
        if name not in headers[file]:
            raise CheckpointError(f"{index}: {name} is not in {file}, where the index puts it")
    for name, file in first_file.items():
        if name not in weight_map:
            raise CheckpointError(f"{index}: {name} is in {file}, but the index does not list it")
    return {name: headers[file][name] for name, file in weight_map.items()}
