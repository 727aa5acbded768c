"""Before any test changes the folder: paths to modules may be relative to that of the start."""

from __future__ import annotations

from wantrn.serving.modules import MODULES

assert MODULES
