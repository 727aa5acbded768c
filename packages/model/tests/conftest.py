from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from wantrn.model.info import ModelKind


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[ModelKind, Path]:
    """A tiny checkpoint's folder for each kind of model; not to be written to."""
    from wantrn.model.info import ModelKind
    from wantrn.model.tiny import write_tiny_checkpoint

    root = tmp_path_factory.mktemp("checkpoints")
    return {kind: write_tiny_checkpoint(root / kind.value, kind) for kind in ModelKind}
