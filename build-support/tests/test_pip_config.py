"""What build-support/pip_config.py exports under the pip configurations people have."""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINKS = "PANTS_PYTHON_REPOS_FIND_LINKS"
INDEXES = "PANTS_PYTHON_REPOS_INDEXES"
CERT = "PANTS_CA_CERTS_PATH"
KEYS = ("cert", "extra-index-url", "find-links", "index-url")


@pytest.fixture(scope="module")
def committed() -> list[str]:
    """The indexes that pants.toml adds."""
    config = tomllib.loads((ROOT / "pants.toml").read_text())
    indexes: list[str] = config["python-repos"]["indexes"]["add"]
    assert len(indexes) == 1
    return indexes


def exports(config: Path, **variables: str) -> dict[str, str]:
    """The variables that pip_config.py exports with this pip configuration file."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(config.parent), **variables}
    environment["PIP_CONFIG_FILE"] = str(config)
    out = subprocess.run(
        [sys.executable, ROOT / "build-support" / "pip_config.py"],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found = {}
    for line in out.splitlines():
        word, assignment = shlex.split(line)
        assert word == "export"
        name, _, value = assignment.partition("=")
        found[name] = value
    return found


def write_config(folder: Path, **settings: str) -> Path:
    """A pip configuration with these settings only; it empties what a system-wide one may set."""
    given = {name.replace("_", "-"): value for name, value in settings.items()}
    lines = [f"{key} = {given.pop(key, '')}" for key in KEYS]
    assert not given
    config = folder / "pip.conf"
    config.write_text("\n".join(["[global]", *lines, ""]))
    return config


def test_empty_configuration_exports_nothing(tmp_path: Path) -> None:
    assert exports(Path(os.devnull)) == {}
    assert exports(write_config(tmp_path)) == {}


def test_find_links_replace_the_committed_index(tmp_path: Path, committed: list[str]) -> None:
    found = exports(write_config(tmp_path, find_links="/some/wheels /more/wheels"))
    assert found.keys() == {LINKS, INDEXES}
    assert ast.literal_eval(found[LINKS]) == ["/some/wheels", "/more/wheels"]
    assert found[INDEXES].startswith("-")
    assert ast.literal_eval(found[INDEXES][1:]) == committed


def test_extra_index_replaces_the_committed_index(tmp_path: Path, committed: list[str]) -> None:
    found = exports(write_config(tmp_path, extra_index_url="https://one.test/s https://two.test/s"))
    assert found.keys() == {INDEXES}
    added, removed = found[INDEXES].split(",-")
    assert added.startswith("+")
    assert ast.literal_eval(added[1:]) == ["https://one.test/s", "https://two.test/s"]
    assert ast.literal_eval(removed) == committed


def test_index_url_replaces_the_default_index_only(tmp_path: Path, committed: list[str]) -> None:
    found = exports(write_config(tmp_path, index_url="https://mirror.test/s"))
    assert found.keys() == {INDEXES}
    assert ast.literal_eval(found[INDEXES]) == ["https://mirror.test/s", *committed]


def test_index_url_and_extra_index_are_all_there_is(tmp_path: Path) -> None:
    config = write_config(
        tmp_path, index_url="https://mirror.test/s", extra_index_url="https://one.test/s"
    )
    found = exports(config)
    assert found.keys() == {INDEXES}
    assert ast.literal_eval(found[INDEXES]) == ["https://mirror.test/s", "https://one.test/s"]


def test_variables_of_pip_win_over_its_file(tmp_path: Path) -> None:
    config = write_config(tmp_path, find_links="/from/file")
    found = exports(config, PIP_FIND_LINKS="/from/variable")
    assert ast.literal_eval(found[LINKS]) == ["/from/variable"]


def test_variables_of_pants_that_are_set_win(tmp_path: Path) -> None:
    config = write_config(
        tmp_path, cert="/some/ca.pem", extra_index_url="https://one.test/s", find_links="/links"
    )
    assert exports(config, **{INDEXES: "['https://mine.test/s']"}).keys() == {LINKS, CERT}
    assert exports(config, **{LINKS: "[]", CERT: "", INDEXES: "[]"}) == {}


def test_cert_is_handed_over(tmp_path: Path) -> None:
    assert exports(write_config(tmp_path, cert="/a folder/it's.pem")) == {
        CERT: "/a folder/it's.pem"
    }
