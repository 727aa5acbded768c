"""`nki.typing`: annotations of kernel arguments.

They say what a kernel expects and have no effect when it runs.
"""

from __future__ import annotations

import types
from typing import Any

__all__ = ["mutable_tensor", "tensor"]


class Tensor:
    """A tensor; `nt.tensor[128, 512]` is one of that shape."""

    def __class_getitem__(cls, shape: Any) -> types.GenericAlias:
        return types.GenericAlias(cls, shape)


class MutableTensor(Tensor):
    """A tensor that the kernel writes to; `nt.mutable_tensor[128, 512]` likewise."""


tensor = Tensor
mutable_tensor = MutableTensor
