"""Reading a part of a tensor by the bytes that it has in the file, and no others.

A mapped file would be read by whole pages and ahead of them: of a column slice, all of the matrix.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import torch

from wantrn.model.checkpoints.safetensors_header import FileStamp, TensorInfo
from wantrn.model.errors import CheckpointError
from wantrn.model.slices import Slice

_AHEAD = 64  # runs that the system may fetch before they are read


@dataclass(frozen=True)
class _Pieces:
    """Equal runs of bytes at equal distances in a file."""

    first: int
    length: int
    stride: int
    count: int

    @classmethod
    def of(cls, info: TensorInfo, part: Slice | None) -> _Pieces:
        if part is None or part.width == part.size:  # runs without a gap are one
            return cls(info.begin, info.nbytes, info.nbytes, 1)
        unit = math.prod(info.shape[part.axis + 1 :]) * info.dtype.itemsize
        count = math.prod(info.shape[: part.axis])
        return cls(info.begin + part.begin * unit, part.width * unit, part.size * unit, count)

    def offset(self, index: int) -> int:
        """Where in the file run ``index`` starts."""
        return self.first + index * self.stride


def read_tensor(name: str, info: TensorInfo, part: Slice | None = None) -> torch.Tensor:
    """The tensor that ``info`` tells of, or the ``part`` of it, in memory of its own.

    Args:
        name: for errors.

    Raises:
        CheckpointError: naming file and ``name``, if the file cannot be read or is no longer the
            one whose header was read.
        ValueError: the tensor has no such part.
    """
    shape = info.shape if part is None else part.part_shape(info.shape)
    tensor = torch.empty(shape, dtype=info.dtype)
    if not tensor.numel():
        return tensor
    pieces = _Pieces.of(info, part)
    into = tensor.view(-1).view(torch.uint8).numpy().data
    try:
        with open(info.file, "rb", buffering=0) as stream:
            changed = FileStamp.of(stream.fileno()) != info.stamp or not _fill(
                into, stream.fileno(), pieces
            )
    except OSError as error:
        raise CheckpointError(f"{info.file}: {name}: cannot be read: {error}") from error
    if changed:
        raise CheckpointError(f"{info.file}: {name}: the file has changed since it was opened")
    return tensor


def _fill(into: memoryview, descriptor: int, pieces: _Pieces) -> bool:
    """Whether the file had all the bytes."""
    for index in range(pieces.count):
        if index % _AHEAD == 0:
            _announce(descriptor, pieces, range(index + _AHEAD, index + 2 * _AHEAD))
        done, offset = index * pieces.length, pieces.offset(index)
        end = done + pieces.length
        while done < end:  # the system may give less than asked
            got = os.preadv(descriptor, [into[done:end]], offset)
            if not got:
                return False
            done, offset = done + got, offset + got
    return True


def _announce(descriptor: int, pieces: _Pieces, indices: range) -> None:
    """Tell the system what comes next: it cannot guess it, and storage is slow one by one."""
    if hasattr(os, "posix_fadvise"):
        for index in indices[: max(0, pieces.count - indices.start)]:
            offset = pieces.offset(index)
            os.posix_fadvise(descriptor, offset, pieces.length, os.POSIX_FADV_WILLNEED)
