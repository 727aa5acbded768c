"""Where this process finds its modules, so that those that it starts find them too, as in a pex."""

from __future__ import annotations

import os
import sys

# At import: entries may be relative to the folder that the process began in.
MODULES = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
"""For ``PYTHONPATH``."""
