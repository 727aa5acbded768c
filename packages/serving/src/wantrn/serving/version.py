"""``wantrn version``: what a report of a problem should name."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

import wantrn.model
import wantrn.serving
import wantrn.tiny
from wantrn.serving.table import aligned

_OTHERS = ("torch", "diffusers", "transformers", "safetensors", "av")


def version() -> int:
    """Print the versions of wantrn's packages, of the libraries that matter, and of Python."""
    rows = {
        "wantrn-serving": wantrn.serving.__version__,
        "wantrn-model": wantrn.model.__version__,
        "wantrn-kernels": wantrn.model.kernels_version,
        "wantrn-tiny": wantrn.tiny.__version__,
        **{name: _installed(name) for name in _OTHERS},
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
    }
    print(aligned(rows))
    return 0


def _installed(distribution: str) -> str:
    try:
        return installed_version(distribution)
    except PackageNotFoundError:
        return "not installed as a package (sources of a repository)"
