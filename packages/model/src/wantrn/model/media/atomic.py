"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """A path to write a file or folder to, which becomes ``path`` when the block ends well.

    The draft has the name of ``path`` in a hidden folder beside it, so that the last move stays on
    one file system. Whatever ends the block, the hidden folder goes away.
    """
    folder = Path(tempfile.mkdtemp(prefix=".wantrn-", dir=path.parent))
    try:
        draft = folder / path.name
        yield draft
        os.replace(draft, path)
    finally:
        shutil.rmtree(folder)
