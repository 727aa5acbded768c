"""What ranks are forks of has imported: this module is for multiprocessing's server of forks alone.

Importing vLLM-Omni takes more than ten seconds, and taking it down again takes as long, while the
server has nothing to clean up: it ends at once.
"""

from __future__ import annotations

import atexit
import os
from importlib import import_module

PRELOADED = (
    "vllm_omni.diffusion.worker.diffusion_worker",
    "wantrn.serving.engines.omni.worker",
    "wantrn.serving.engines.omni.pipeline",
)

for _name in PRELOADED:
    import_module(_name)

# of such calls, the last that was asked for comes first
atexit.register(os._exit, 0)
