"""Each package says one version: in its BUILD file, its CHANGELOG.md and its __version__."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import nkisim
import wantrn.kernels
import wantrn.model
import wantrn.parallel
import wantrn.serving
import wantrn.tiny

PACKAGES = Path(__file__).resolve().parents[2] / "packages"
VERSIONS = {
    "kernels": wantrn.kernels.__version__,
    "model": wantrn.model.__version__,
    "nkisim": nkisim.__version__,
    "parallel": wantrn.parallel.__version__,
    "serving": wantrn.serving.__version__,
    "tiny": wantrn.tiny.__version__,
}


def test_every_package_is_listed() -> None:
    assert {build.parent.name for build in PACKAGES.glob("*/BUILD")} == VERSIONS.keys()


@pytest.mark.parametrize("package", VERSIONS)
def test_versions_agree(package: str) -> None:
    folder = PACKAGES / package
    built = re.findall(r'\bversion="([^"]+)"', (folder / "BUILD").read_text())
    changes = re.findall(r"^## (\S+)$", (folder / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert built == [VERSIONS[package]]
    assert changes[0] == VERSIONS[package]
