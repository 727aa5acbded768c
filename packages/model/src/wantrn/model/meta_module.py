"""Modules of other libraries, built without data from a checkpoint's ``config.json``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from wantrn.model.errors import CheckpointError
from wantrn.model.json_file import read_json

ModuleT = TypeVar("ModuleT", bound=torch.nn.Module)


def meta_module(folder: Path, make: Callable[[dict[str, Any]], ModuleT]) -> ModuleT:
    """The module that ``make`` builds from the config in ``folder``, on the meta device.

    Raises ``CheckpointError`` naming the file if the config is missing or ``make`` refuses it.
    """
    file = folder / "config.json"
    config = read_json(file)
    try:
        with torch.device("meta"):
            return make(config)
    except Exception as error:  # whatever the library's own checks raise on a bad value
        raise CheckpointError(f"{file}: no module can be built from it: {error}") from error
