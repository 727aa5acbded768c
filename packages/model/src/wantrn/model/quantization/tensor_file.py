"""Writing one safetensors file a tensor at a time, so that only one is ever in memory."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from wantrn.model.checkpoints.key_maps import Shape
from wantrn.model.checkpoints.safetensors_header import DTYPES

TensorSpec = tuple[torch.dtype, Shape]

_DTYPE_NAMES: Mapping[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}
_ALIGNMENT = 8  # of the data's first byte, so that every tensor of the file is aligned


def write_tensors(
    file: Path, specs: Mapping[str, TensorSpec], tensors: Iterable[tuple[str, Tensor]]
) -> None:
    """Write ``file``, replacing it, whose header is known before its data.

    The bytes depend on ``specs`` and the values alone, not on the order of ``tensors``. All is on
    the disk when this returns; if it raises, ``file`` may be there and incomplete.

    Args:
        specs: dtype and shape of each tensor by name.
        tensors: each of them once, in any order.

    Raises:
        ValueError: a tensor that is not in ``specs``, departs from it, comes twice or never.
        OSError: what the system says.
    """
    header, offsets = _layout(specs)
    missing = set(specs)
    with open(file, "wb") as stream:
        stream.write(header)
        for name, tensor in tensors:
            if name not in missing:
                raise ValueError(f"{name} is not expected, or comes twice")
            found = (tensor.dtype, tuple(tensor.shape))
            if found != specs[name]:
                raise ValueError(f"{name} is {found}, expected {specs[name]}")
            stream.seek(len(header) + offsets[name])
            stream.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
            missing.remove(name)
        if missing:
            raise ValueError(f"{file}: {', '.join(sorted(missing))} did not come")
        stream.flush()
        os.fsync(stream.fileno())


def _layout(specs: Mapping[str, TensorSpec]) -> tuple[bytes, dict[str, int]]:
    """The first bytes of the file, and where in the data each tensor begins."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offsets: dict[str, int] = {}
    position = 0
    # wide dtypes first, as the safetensors library does it: each tensor is then aligned
    for name in sorted(specs, key=lambda name: (-specs[name][0].itemsize, name)):
        dtype, shape = specs[name]
        end = position + math.prod(shape) * dtype.itemsize
        entries[name] = {
            "dtype": _DTYPE_NAMES[dtype],
            "shape": list(shape),
            "data_offsets": [position, end],
        }
        offsets[name] = position
        position = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text, offsets
