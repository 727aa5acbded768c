"""Where this process finds modules, so that those that it starts find them too, as in a pex."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

# At import: entries may be relative to the folder that the process began in.
MODULES = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
"""For ``PYTHONPATH``."""


def source_roots() -> str:
    """Where our own packages are, and nothing else: for ``PYTHONPATH`` of an environment that has
    what they need."""
    roots = []
    for name in ("nkisim", "wantrn"):  # the second has no file of its own, but as many folders
        spec = find_spec(name)
        assert spec is not None and spec.submodule_search_locations is not None
        roots += [str(Path(place).resolve().parent) for place in spec.submodule_search_locations]
    return os.pathsep.join(dict.fromkeys(roots))
