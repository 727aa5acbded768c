"""The parts of a checkpoint that stay as they are, copied so that the result stands alone.

Copies and not links: nothing that is done to the source later can change the result, which may also
be on another file system. For A14B they are 12 GB, beside 29 GB of FP8 transformers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from wantrn.model.info import DEFAULTS_FILE

COMPONENTS = ("vae", "text_encoder", "tokenizer", "scheduler")
INDEX_FILE = "model_index.json"

_CHUNK = 1 << 24  # bytes that are copied at once
_WHOLE = 1 << 24  # smaller files are compared byte for byte
_SAMPLE, _STRIDE = 1 << 12, 1 << 20  # of larger ones, so many bytes of so many


@dataclass(frozen=True)
class ComponentCopy:
    """What is to be copied from one checkpoint folder.

    Attributes:
        source: the folder
        sizes: bytes of each file, by its path from the folder; the index of the model comes last,
            since a folder without it is no checkpoint
    """

    source: Path
    sizes: dict[Path, int]

    @classmethod
    def plan(cls, source: Path) -> ComponentCopy:
        """All files of the components of ``source``, wherever symbolic links lead."""
        found = [file for name in COMPONENTS for file in sorted((source / name).rglob("*"))]
        found += [source / DEFAULTS_FILE, source / INDEX_FILE]
        files = (file for file in found if file.is_file())
        return cls(source, {file.relative_to(source): file.stat().st_size for file in files})

    @property
    def source_bytes(self) -> int:
        """What there is to read."""
        return sum(self.sizes.values())

    @property
    def top_names(self) -> frozenset[str]:
        """What a run may leave in the folder itself."""
        files = {file.name for file in self.sizes if len(file.parts) == 1}
        folders = {file.parts[0] for file in self.sizes if len(file.parts) > 1}
        return frozenset(folders | files | {_partial(Path(name)).name for name in files})

    def is_finished_in(self, folder: Path) -> bool:
        """Whether nothing is left to do in ``folder``."""
        return all(same_contents(self.source / file, folder / file) for file in self.sizes)

    def unexpected_in(self, folder: Path) -> list[Path]:
        """Files of the components in ``folder`` that no run of this work leaves there."""
        known = {folder / file for file in self.sizes}
        known |= {_partial(file) for file in known}
        found = (file for name in COMPONENTS for file in sorted((folder / name).rglob("*")))
        return [file for file in found if file.is_file() and file not in known]

    def run(self, folder: Path, progress: Callable[[int], None]) -> None:
        """Copy what is missing in ``folder`` or has other contents there. ``OSError`` comes out."""
        for file, size in self.sizes.items():
            target = folder / file
            if same_contents(self.source / file, target):
                progress(size)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy(self.source / file, target, progress)


def same_contents(one: Path, other: Path) -> bool:
    """Whether both are files of one size with equal bytes: all of them, or those of a sample."""
    if not (one.is_file() and other.is_file()):
        return False
    size = one.stat().st_size
    if other.stat().st_size != size:
        return False
    length, stride = (size, size or 1) if size <= _WHOLE else (_SAMPLE, _STRIDE)
    with open(one, "rb") as left, open(other, "rb") as right:
        for start in (*range(0, size, stride), max(0, size - length)):
            left.seek(start)
            right.seek(start)
            if left.read(length) != right.read(length):
                return False
    return True


def _copy(source: Path, target: Path, progress: Callable[[int], None]) -> None:
    """Under a temporary name, which becomes ``target`` when all of it is on the disk."""
    partial = _partial(target)
    with open(source, "rb") as reader, open(partial, "wb") as writer:
        while chunk := reader.read(_CHUNK):
            writer.write(chunk)
            progress(len(chunk))
        writer.flush()
        os.fsync(writer.fileno())
    os.replace(partial, target)


def _partial(file: Path) -> Path:
    return file.with_name(file.name + ".partial")
