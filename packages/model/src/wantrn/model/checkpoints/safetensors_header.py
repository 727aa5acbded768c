"""Reading and checking the header of one safetensors file, without its data.

Layout of the format: 8 bytes with the header's length (unsigned, little endian), the header as a
JSON object ``{name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {...}}``,
then the data. Offsets count from the end of the header; tensors fill the data without a gap.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import torch

from wantrn.model.errors import CheckpointError

# The dtypes of the format that torch can hold.
DTYPES: Mapping[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}

_MAX_HEADER = 100_000_000  # bytes; the limit of the safetensors library itself


@dataclass(frozen=True)
class FileStamp:
    """What tells that a file is no longer the one that it was; time in nanoseconds."""

    inode: int
    size: int
    modified: int

    @classmethod
    def of(cls, descriptor: int) -> FileStamp:
        """Of an open file."""
        status = os.fstat(descriptor)
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


@dataclass(frozen=True)
class TensorInfo:
    """What a header says about one tensor.

    Attributes:
        begin: where its data starts, in bytes from the start of the file
        stamp: of the file when its header was read
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    file: Path
    nbytes: int
    begin: int
    stamp: FileStamp


def read_header(file: Path) -> dict[str, TensorInfo]:
    """The tensors of ``file`` in the order of their data.

    Raises ``CheckpointError`` if the file is missing, truncated, padded at the end, or if its
    header is not a valid one; the text names the file and the key.
    """
    try:
        with open(file, "rb") as stream:
            stamp = FileStamp.of(stream.fileno())
            size = stamp.size
            prefix = stream.read(8)
            if len(prefix) < 8:
                raise CheckpointError(f"{file}: no safetensors file: {size} bytes long")
            length = int.from_bytes(prefix, "little")
            if length > _MAX_HEADER:
                raise CheckpointError(
                    f"{file}: no safetensors file: its first 8 bytes announce {length} bytes"
                )
            if length > size - 8:
                raise CheckpointError(
                    f"{file}: truncated: the header has {length} bytes, "
                    f"the file only {size - 8} after its length"
                )
            text = stream.read(length)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from error
    entries = parse_json_object(text, str(file))
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise CheckpointError(f"{file}: __metadata__ in the header is not an object")
    spans = {name: _parse_entry(file, name, entry) for name, entry in entries.items()}
    return {
        name: TensorInfo(
            span.dtype, span.shape, file, span.end - span.begin, 8 + length + span.begin, stamp
        )
        for name, span in _check_layout(file, spans, size - 8 - length)
    }


def parse_json_object(text: bytes, source: str) -> dict[str, Any]:
    """A JSON object without repeated keys; ``source`` names it in the ``CheckpointError``."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise CheckpointError(f"{source}: key {twice!r} occurs twice")
        return result

    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:  # bad UTF-8 and bad JSON are both ValueErrors
        raise CheckpointError(f"{source}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{source}: not a JSON object")
    return value


@dataclass(frozen=True)
class _Span:
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


def _parse_entry(file: Path, name: str, entry: Any) -> _Span:
    if not isinstance(entry, dict):
        raise CheckpointError(f"{file}: {name}: the header's entry is not an object")
    dtype_name, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype_name, str) or dtype_name not in DTYPES:
        raise CheckpointError(
            f"{file}: {name}: unknown dtype {dtype_name!r}; known are {', '.join(DTYPES)}"
        )
    if not _are_sizes(shape):
        raise CheckpointError(f"{file}: {name}: shape {shape!r} is no list of sizes")
    if not _are_sizes(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{file}: {name}: data_offsets {offsets!r} are not [begin, end]")
    dtype = DTYPES[dtype_name]
    nbytes = math.prod(shape) * dtype.itemsize
    begin, end = offsets
    if end - begin != nbytes:
        raise CheckpointError(
            f"{file}: {name}: {dtype_name} {shape} takes {nbytes} bytes, "
            f"but data_offsets {offsets} hold {end - begin}"
        )
    return _Span(dtype, tuple(shape), begin, end)


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_layout(
    file: Path, spans: Mapping[str, _Span], data_size: int
) -> list[tuple[str, _Span]]:
    """In the order of the data, of which every byte belongs to exactly one tensor."""
    ordered = sorted(spans.items(), key=lambda item: (item[1].begin, item[1].end))
    position = 0
    for name, span in ordered:
        if span.begin != position:
            fault = "overlaps the tensor before it" if span.begin < position else "follows a gap"
            raise CheckpointError(
                f"{file}: {name}: starts at byte {span.begin} of the data and {fault} "
                f"(expected {position})"
            )
        if span.end > data_size:
            raise CheckpointError(
                f"{file}: {name}: truncated: ends at byte {span.end} of the data, "
                f"the file has {data_size}"
            )
        position = span.end
    if position != data_size:
        raise CheckpointError(
            f"{file}: {data_size - position} bytes after the last tensor belong to none"
        )
    return ordered
