"""How ./pants finds the CPython that Pants runs on, and what it says where there is none."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What the script runs before it looks for Python.
TOOLS = ("bash", "cat", "cut", "dirname", "env", "mkdir", "mktemp", "rm", "sha256sum", "shasum")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder with bin/ and home/: a machine that has the script's tools and no Python."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "home").mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        if found:
            (tmp_path / "bin" / tool).symlink_to(found)
    return tmp_path


def run(machine: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(machine / "bin"), "HOME": str(machine / "home"), **variables}
    return subprocess.run(
        [ROOT / "pants", "--version"], env=environment, capture_output=True, text=True
    )


def fake_python(path: Path) -> str:
    """A program that passes for CPython 3.9 until it is asked to make an environment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/usr/bin/env bash\n[[ "$1" == -c ]] && echo "{path}" || exit 7\n')
    path.chmod(0o755)
    return str(path)


def test_no_python_is_one_line_that_says_how_to_get_it(machine: Path) -> None:
    result = run(machine)
    assert result.returncode == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    for word in ("CPython 3.9", "uv python install 3.9", "pyenv install 3.9", "PANTS_PYTHON="):
        assert word in line
    assert list((machine / "home").iterdir()) == []


@pytest.mark.parametrize(
    "place",
    [
        "bin/python3.9",
        "home/.pyenv/versions/3.9.18/bin/python",
        "home/.local/share/uv/python/cpython-3.9.20-linux-x86_64-gnu/bin/python3.9",
    ],
)
def test_python_is_found_in_the_usual_places(machine: Path, place: str) -> None:
    python = fake_python(machine / place)
    result = run(machine)
    assert result.returncode == 7
    assert f"setting up Pants with {python} in {machine}/home/.cache/wantrn-pants/" in result.stderr
    # what could not be set up is not left behind
    assert list((machine / "home" / ".cache" / "wantrn-pants").iterdir()) == []


def test_the_named_python_is_used_or_refused(machine: Path) -> None:
    fake_python(machine / "bin" / "python3.9")
    named = fake_python(machine / "elsewhere" / "python")
    assert f"setting up Pants with {named} in" in run(machine, PANTS_PYTHON=named).stderr
    result = run(machine, PANTS_PYTHON=sys.executable)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert f"PANTS_PYTHON={sys.executable}" in line
    assert "CPython 3.9" in line
