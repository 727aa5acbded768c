"""Makes the official torchvision importable beside a CPU build of PyTorch.

It is built for CUDA, so its compiled operators cannot be loaded here, and it goes on without them;
but then it describes two of them by name, which must exist. They are declared, without an
implementation, just before torchvision is imported. What computes on pixels does not need them.
"""

from __future__ import annotations

import importlib.abc
import sys
from typing import Any

BOXES = "(Tensor boxes, Tensor scores, float threshold) -> Tensor"


class DeclareOperators(importlib.abc.MetaPathFinder):
    """Is asked for each module that is imported, and finds none."""

    def __init__(self) -> None:
        # declarations end with the object that made them
        self.library: Any = None

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "torchvision" and self.library is None:
            from torch.library import Library

            library: Any = Library
            self.library = library("torchvision", "FRAGMENT")
            for name in ("nms", "qnms"):
                self.library.define(name + BOXES)


sys.meta_path.insert(0, DeclareOperators())
