"""Print `export PANTS_...` lines that give Pants the package locations pip is configured with.

Run by ./pants with the interpreter that Pants runs on. Pants runs pip isolated from pip.conf and
PIP_* variables, so these would be lost otherwise. A variable that is already set wins.

pants.toml adds an index with CPU builds of torch. Where pip's configuration has find-links or an
extra index, that is where such builds come from, and the committed index is taken out again. With
neither of them it stays: `index-url` alone only says where the default index is.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:  # what Pants runs on; Pants itself depends on toml
    import toml as tomllib  # pants: no-infer-dep

PANTS_TOML = Path(__file__).resolve().parent.parent / "pants.toml"


def pip_settings() -> dict[str, str]:
    """The merged [global], [install] and PIP_* settings, later ones winning, as pip does."""
    out = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    found: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in out.splitlines():
        match = re.match(r"(global|install|:env:)\.([a-z-]+)=(.*)$", line)
        if match:
            found[match.group(1)][match.group(2)] = ast.literal_eval(match.group(3))
    return {**found["global"], **found["install"], **found[":env:"]}


def committed_indexes() -> list[str]:
    """The indexes that pants.toml adds to the default one."""
    added: list[str] = tomllib.loads(PANTS_TOML.read_text())["python-repos"]["indexes"]["add"]
    return added


def names_other_places(settings: dict[str, str]) -> bool:
    """Whether pip is configured to look in more places than one index."""
    return bool(settings.get("find-links") or settings.get("extra-index-url"))


def pants_variables(settings: dict[str, str], committed: list[str]) -> dict[str, str]:
    """PANTS_* names and values that say the same as these settings of pip.

    Pants reads a list "[a]" as the whole value, and "+[a],-[b]" as a change to what its default
    and pants.toml give together. So the default index need not be named here.
    """
    find_links = settings.get("find-links", "").split()
    extra = settings.get("extra-index-url", "").split()
    index = settings.get("index-url", "")
    replaced = names_other_places(settings)
    variables = {}
    if find_links:
        variables["PANTS_PYTHON_REPOS_FIND_LINKS"] = repr(find_links)
    if index:
        variables["PANTS_PYTHON_REPOS_INDEXES"] = repr([index, *(extra if replaced else committed)])
    elif replaced:
        added = f"+{extra!r}," if extra else ""
        variables["PANTS_PYTHON_REPOS_INDEXES"] = f"{added}-{committed!r}"
    if settings.get("cert"):
        variables["PANTS_CA_CERTS_PATH"] = settings["cert"]
    return variables


def main() -> None:
    for name, value in pants_variables(pip_settings(), committed_indexes()).items():
        if name not in os.environ:
            print(f"export {name}={shlex.quote(value)}")


if __name__ == "__main__":
    main()
