"""Stands in for torchaudio, whose wheel needs CUDA.

vLLM-Omni imports it for models of speech. Any name of it can be imported; using one fails.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

__version__ = "0"


class Absent:
    """Whatever torchaudio would have under a name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.name}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"{self.name} is not here: this environment has no torchaudio")


class AbsentModule(ModuleType):
    """A module of torchaudio's."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}")


def __getattr__(name: str) -> Absent:
    if name.startswith("__"):
        raise AttributeError(name)
    return Absent(f"{__name__}.{name}")


for _name in ("functional", "transforms", "compliance", "compliance.kaldi", "models", "backend"):
    sys.modules[f"{__name__}.{_name}"] = AbsentModule(f"{__name__}.{_name}")
