"""Rewrite the lock files of 3rdparty/python from the requirement files beside them.

    python3.11 -m venv ENV && ENV/bin/pip install uv==0.13.9 packaging==26.4
    PATH=ENV/bin:$PATH python build-support/lock.py [NAME ...]

Each lock is a pip requirements file: every package that CPython 3.11 needs on one of the platforms
below, pinned and hashed, with no index, URL or path in it. uv resolves against the public index
alone, so the result does not depend on how this machine's pip is configured.

torch is special: the locks take only CPU builds. For macOS the public index has one. For Linux its
wheels, aarch64 included, need several GB of CUDA packages; the wanted ones have the local version
+cpu and come from PyTorch's own CPU index or wherever pip is told to look. torch.hashes.txt lists
them as sha256sum does: write the new lines there when pins.txt gets another torch.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parent.parent / "3rdparty" / "python"
PYTHON = (3, 11)
# CUDA packages that torch's metadata names for Linux; the CPU builds do not need them.
CUDA = ("cuda-", "nvidia-", "triton")


@dataclass(frozen=True)
class Platform:
    sys_platform: str
    system: str
    machine: str
    wheels: str  # matches the platform tags of wheels that may run there

    def accepts(self, marker: str | None) -> bool:
        """Whether a requirement with this environment marker is needed here."""
        if marker is None:
            return True
        environment = {
            "sys_platform": self.sys_platform,
            "platform_system": self.system,
            "platform_machine": self.machine,
            "python_version": "3.11",
            "python_full_version": "3.11.7",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "os_name": "posix",
            "extra": "",
        }
        return Marker(marker).evaluate(environment)

    def fits(self, wheel: str) -> bool:
        """Whether the wheel of this file name can be installed here."""
        for tag in parse_wheel_filename(wheel)[3]:
            if tag.platform != "any" and not re.fullmatch(self.wheels, tag.platform):
                continue
            if tag in cpython_tags(PYTHON, platforms=[tag.platform]):
                return True
            if tag in compatible_tags(PYTHON, "cp311", platforms=[tag.platform]):
                return True
        return False

    @property
    def marker(self) -> str:
        return f"sys_platform == '{self.sys_platform}' and platform_machine == '{self.machine}'"


PLATFORMS = (
    Platform("linux", "Linux", "x86_64", r"(manylinux\w+|linux)_x86_64"),
    Platform("linux", "Linux", "aarch64", r"(manylinux\w+|linux)_aarch64"),
    Platform("darwin", "Darwin", "arm64", r"macosx_\w+_(arm64|universal2)"),
)


def resolve(source: Path, constraints: str) -> list[dict[str, Any]]:
    """The packages of a universal resolution, as pylock.toml lists them."""
    with tempfile.TemporaryDirectory() as tmp:
        pins = Path(tmp) / "pins.txt"
        pins.write_text(constraints)
        out = Path(tmp) / "pylock.toml"
        command = ["uv", "pip", "compile", "--quiet", "--no-config", "--universal"]
        command += ["--python-version", "3.11", "--format", "pylock.toml"]
        command += ["--constraints", str(pins), "--output-file", str(out), str(source)]
        subprocess.run(command, check=True)
        packages: list[dict[str, Any]] = tomllib.loads(out.read_text())["packages"]
    return packages


def wheel_hashes(package: dict[str, Any]) -> dict[str, str]:
    """File name to sha256 of every wheel."""
    return {
        wheel.get("name") or wheel["url"].rsplit("/", 1)[-1]: wheel["hashes"]["sha256"]
        for wheel in package.get("wheels", ())
    }


def entry(requirement: str, hashes: set[str]) -> str:
    if not hashes:
        raise SystemExit(f"no wheel for {requirement}")
    return " \\\n    --hash=sha256:".join([requirement, *sorted(hashes)]) + "\n"


def torch_entries(package: dict[str, Any]) -> list[str]:
    """One entry for each platform: +cpu where the public index has only a CUDA build."""
    lines = (ROOT / "torch.hashes.txt").read_text().splitlines()
    cpu_wheels = {name: sha for sha, name in map(str.split, lines)}
    entries = []
    for platform in PLATFORMS:
        linux = platform.sys_platform == "linux"
        version = package["version"] + ("+cpu" if linux else "")
        wheels = cpu_wheels if linux else wheel_hashes(package)
        hashes = {
            sha
            for name, sha in wheels.items()
            if name.startswith(f"torch-{version}-") and platform.fits(name)
        }
        entries.append(entry(f"torch=={version} ; {platform.marker}", hashes))
    return entries


def entries_of(package: dict[str, Any]) -> list[str]:
    """The lock's entries for one package; none where no platform needs it."""
    marker = package.get("marker")
    needed = [platform for platform in PLATFORMS if platform.accepts(marker)]
    if not needed or package["name"].startswith(CUDA):
        return []
    if package["name"] == "torch":
        return torch_entries(package)
    wheels = wheel_hashes(package)
    for platform in needed:
        if not any(platform.fits(name) for name in wheels):
            raise SystemExit(f"{package['name']} has no wheel for {platform.marker}")
    hashes = {sha for name, sha in wheels.items() if any(p.fits(name) for p in needed)}
    requirement = f"{package['name']}=={package['version']}"
    if len(needed) < len(PLATFORMS):
        requirement += f" ; {marker}"
    return [entry(requirement, hashes)]


def lock(source: Path, target: Path, constraints: str) -> None:
    lines = [f"# Made by build-support/lock.py from {source.name}; do not edit.\n"]
    for package in resolve(source, constraints):
        lines += entries_of(package)
    target.write_text("".join(lines))
    print(target.relative_to(ROOT))


def main() -> None:
    default = ROOT / "default.lock.txt"
    sources = {"default": ROOT / "requirements.txt"}
    sources |= {path.stem: path for path in sorted((ROOT / "tools").glob("*.in"))}
    names = sys.argv[1:] or list(sources)
    for name in sorted(names, key=list(sources).index):
        constraints = (ROOT / "pins.txt").read_text()
        if name == "pytest":  # a test gets both locks, so they must agree
            constraints = "\n".join(re.findall(r"^[a-z0-9-]+==[^\s;+]+", default.read_text(), re.M))
        lock(sources[name], sources[name].parent / f"{name}.lock.txt", constraints)


if __name__ == "__main__":
    main()
