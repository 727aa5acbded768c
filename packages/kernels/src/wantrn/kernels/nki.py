"""NKI for the kernels: AWS's package where it is installed, else the simulator.

The only place that chooses between them. Kernels take from here:

* ``nl``, ``nisa``, ``ncc``: the language, the instructions and the collectives
* ``jit``: what makes a kernel of a function; ``kernel[2]`` runs on both cores of a rank
* ``SIMULATED``: whether these are nkisim's
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING


def _is_installed() -> bool:
    """Whether AWS's ``nki`` can be imported; the package of that name on the public index is empty.

    What ``nkisim.install()`` puts into its place is none.
    """
    if importlib.util.find_spec("nki") is None:
        return False
    return importlib.util.find_spec("nki.language") is not None


if TYPE_CHECKING or not _is_installed():
    import nkisim.collectives as ncc
    import nkisim.isa as nisa
    import nkisim.language as nl
    from nkisim import jit
else:
    import nki.collectives as ncc  # pants: no-infer-dep
    import nki.isa as nisa  # pants: no-infer-dep
    import nki.language as nl  # pants: no-infer-dep
    from nki import jit  # pants: no-infer-dep

SIMULATED: bool = jit.__module__.partition(".")[0] == "nkisim"

__all__ = ["SIMULATED", "jit", "ncc", "nisa", "nl"]
