"""AWS's Neuron Kernel Interface (NKI) on a CPU: numerics, hardware rules, collectives and time.

    import nkisim
    import nkisim.language as nl

    @nkisim.jit
    def doubled(x):
        y = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(y, nl.multiply(nl.load(x), 2.0))
        return y

    y = nkisim.simulate(doubled, target="gen4")(x)

`install()` lets kernels that `import nki` run unchanged where AWS's package is absent.
"""

from __future__ import annotations

from nkisim import collectives, dtype, errors, isa, language, typing
from nkisim.errors import (
    NkiCapacityError,
    NkiDeadlockError,
    NkiError,
    NkiMismatchError,
    NkiOutsideKernelError,
    NkiPeerError,
    NkiValidationError,
    NkiWarning,
)
from nkisim.host import TensorSpec
from nkisim.install import install, uninstall
from nkisim.kernel import Kernel, jit
from nkisim.language.objects import NKIObject
from nkisim.lint import Finding, lint
from nkisim.peers import Carrier
from nkisim.report import Report
from nkisim.settings import Rules, Settings
from nkisim.simulation import Rank, World, profile, simulate
from nkisim.tensor import NkiTensor

__version__ = "0.1.0"

__all__ = [
    "simulate",
    "profile",
    "World",
    "Rank",
    "Carrier",
    "Settings",
    "Rules",
    "TensorSpec",
    "Report",
    "lint",
    "Finding",
    "install",
    "uninstall",
    "jit",
    "Kernel",
    "NKIObject",
    "NkiTensor",
    "NkiError",
    "NkiValidationError",
    "NkiCapacityError",
    "NkiDeadlockError",
    "NkiMismatchError",
    "NkiPeerError",
    "NkiOutsideKernelError",
    "NkiWarning",
    "collectives",
    "dtype",
    "errors",
    "isa",
    "language",
    "typing",
]
