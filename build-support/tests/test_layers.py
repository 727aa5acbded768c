"""The layers that the BUILD files draw, tried on a copy of the repository with the real Pants."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = (
    ".gitignore",
    "3rdparty",
    "BUILD",
    "build-support",
    "packages",
    "pants",
    "pants-plugins",
    "pants.toml",
    "tests",
    "tools",
)
# What the rules need. Pants takes 10 to 30 seconds to start, less with fewer backends.
# That of mypy has a field that BUILD files use.
BACKENDS = (
    "pants.backend.experimental.visibility",
    "pants.backend.python",
    "pants.backend.python.typecheck.mypy",
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the repository, committed to a git of its own, with a Pants daemon while in use."""
    copy = tmp_path_factory.mktemp("copy") / "repository"
    copy.mkdir()
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, copy / part)
    identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.invalid"]
    for command in (["init", "--quiet"], ["add", "."], [*identity, "commit", "-qm", "copy"]):
        subprocess.run(["git", *command], cwd=copy, check=True)
    yield copy
    for file in copy.glob(".pids/*/pantsd/pid"):
        os.kill(int(file.read_text()), signal.SIGKILL)


@contextmanager
def appended(path: Path, line: str) -> Iterator[None]:
    """The file with one more line, for a while."""
    before = path.read_text()
    path.write_text(before + line + "\n")
    try:
        yield
    finally:
        path.write_text(before)


def pants(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Configuration files for this repository's own run, such as CI's, are not in the copy.
    environment = {k: v for k, v in os.environ.items() if k != "PANTS_CONFIG_FILES"}
    options = ["--pantsd", "--no-verify-config", f"--backend-packages={list(BACKENDS)}"]
    return subprocess.run(
        [repository / "pants", *options, *arguments],
        cwd=repository,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def test_imports_down_the_layers_are_allowed(repository: Path) -> None:
    files = [
        f"packages/serving/src/wantrn/serving/{name}.py" for name in ("generate", "model_folder")
    ]
    result = pants(repository, "dependencies", *files)
    assert result.returncode == 0, result.stderr
    found = result.stdout.splitlines()
    assert "packages/model/src/wantrn/model/pipeline.py" in found
    assert "packages/tiny/src/wantrn/tiny/__init__.py" in found


def test_a_change_in_model_reaches_what_stands_on_it(repository: Path) -> None:
    with appended(repository / "packages/model/src/wantrn/model/config.py", "# changed"):
        result = pants(
            repository, "--changed-since=HEAD", "--changed-dependents=transitive", "list"
        )
    assert result.returncode == 0, result.stderr
    changed = result.stdout.splitlines()
    assert "packages/model/src/wantrn/model/config.py" in changed
    for reached in ("packages/model", "packages/serving", "tests/integration"):
        assert any(re.match(rf"{reached}[/:]", address) for address in changed), reached
    assert "tests/integration/test_versions.py:tests" in changed
    for below in ("packages/kernels", "packages/parallel", "packages/tiny"):
        assert not [address for address in changed if address.startswith(below)]


@pytest.mark.parametrize("package", ["model", "serving"])
def test_model_and_serving_may_import_parallel(repository: Path, package: str) -> None:
    module = f"packages/{package}/src/wantrn/{package}/__init__.py"
    with appended(repository / module, "import wantrn.parallel.degrees"):
        result = pants(repository, "dependencies", module)
    assert result.returncode == 0, result.stderr
    assert "packages/parallel/src/wantrn/parallel/degrees.py" in result.stdout.splitlines()


@pytest.mark.parametrize(
    ("package", "imported"),
    [
        ("kernels", "wantrn/model"),
        ("serving", "wantrn/kernels"),
        ("parallel", "wantrn/kernels"),
        ("parallel", "nkisim"),
        ("kernels", "wantrn/parallel"),
        ("model", "wantrn/tiny"),
        ("tiny", "wantrn/model"),
    ],
)
def test_an_import_across_the_layers_is_denied(
    repository: Path, package: str, imported: str
) -> None:
    """Upward, past a layer, or from one of two that stand side by side."""
    module = f"packages/{package}/src/wantrn/{package}/__init__.py"
    with appended(repository / module, f"import {imported.replace('/', '.')}"):
        result = pants(repository, "dependencies", module)
    assert result.returncode != 0
    assert "DependencyRuleActionDeniedError" in result.stderr
    assert module in result.stderr
    assert f"packages/{Path(imported).name}/src/{imported}/__init__.py" in result.stderr
