"""What the pages about wantrn.parallel show is what happens: their pictures, and their program."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from wantrn.parallel.__main__ import main
from wantrn.parallel.launch import run_local

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "parallelism.md").read_text()
README = (ROOT / "packages" / "parallel" / "README.md").read_text()

SHOWN = re.findall(
    r"^```sh\npython -m wantrn\.parallel ([^\n]+)\n```\n\n```text\n(.*?)^```$",
    PAGE,
    re.MULTILINE | re.DOTALL,
)


def test_the_page_has_pictures() -> None:
    assert len(SHOWN) == 2


@pytest.mark.parametrize(("arguments", "picture"), SHOWN)
def test_a_picture_is_what_the_command_prints(
    arguments: str, picture: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of it, or a part between empty lines."""
    assert main(arguments.split()) == 0
    assert f"\n\n{picture}\n" in f"\n\n{capsys.readouterr().out}\n"


def test_the_program_of_the_readme_runs_on_its_ranks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, program = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    (file := tmp_path / "program.py").write_text(program)
    modules = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
    environment = {"PYTHONPATH": modules}  # where this process finds them
    status = run_local(4, [sys.executable, str(file)], environment=environment)
    output = capfd.readouterr()
    assert status == 0, output.err
    (said,) = re.findall(r"print\(.*\)  # (.+)", program)
    assert output.out == said + "\n"
