"""What the pages about nkisim show is what happens: their Python runs, their messages appear."""

from __future__ import annotations

import re
import runpy
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import nkisim
from nkisim import machine
from nkisim.enums import NcVersion

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "docs" / "nkisim-rules.md"
TIME = ROOT / "docs" / "time-model.md"
README = ROOT / "packages" / "nkisim" / "README.md"


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def sections() -> dict[str, tuple[str, str, str]]:
    """Of each kernel on the page of rules: what it is called, its section, itself, its message."""
    found = {}
    parts = re.split(r"^#+ (.+)$", RULES.read_text(), flags=re.MULTILINE)
    for title, section in zip(parts[1::2], parts[2::2], strict=True):
        shown = zip(blocks(section, "python"), blocks(section, "text"), strict=False)
        for number, (kernel, message) in enumerate(shown):
            found[f"{title} {number}"] = (section, kernel, message.strip())
    return found


SECTIONS = sections()


def what_happens(code: str) -> str:
    """The error or warning of a block, without the line of the kernel at its end."""
    (start, *_) = blocks(RULES.read_text(), "python")
    names: dict[str, Any] = {}
    exec(start, names)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            exec(compile(code, "kernel.py", "exec"), names)
        except nkisim.NkiError as error:
            assert not caught
            return re.sub(r" at kernel\.py:\d+$", "", str(error))
    (warning,) = caught
    assert warning.category is nkisim.NkiWarning
    return str(warning.message)


@pytest.mark.parametrize("name", SECTIONS)
def test_a_broken_rule_says_what_the_page_says(name: str) -> None:
    _, kernel, message = SECTIONS[name]
    assert what_happens(kernel) == message


def test_the_page_has_every_rule_at_its_level() -> None:
    levels = {"*Error.*": "error", "*Warning.*": "warn"}
    shown = {
        name.removesuffix(" 0"): levels[section.split()[0]]
        for name, (section, _, message) in SECTIONS.items()
        if message.endswith(f"[{name.removesuffix(' 0')}]")
    }
    rules = nkisim.Rules()
    assert shown == {rule.name: getattr(rules, rule.name) for rule in fields(rules)}


def test_the_readme_lists_every_rule_at_its_level() -> None:
    listed = re.findall(r"^\| `(\w+)` \| (error|warn) \|", README.read_text(), re.MULTILINE)
    rules = nkisim.Rules()
    assert dict(listed) == {rule.name: getattr(rules, rule.name) for rule in fields(rules)}


def test_the_readme_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "readme.py").write_text("\n".join(blocks(README.read_text(), "python")))
    try:
        runpy.run_path("readme.py")
    finally:
        nkisim.uninstall()
    printed = capsys.readouterr().out
    assert "on Trainium3, 1 core" in printed and "is-comparison" in printed


def constants() -> list[tuple[str, str, list[str]]]:
    """Of each row of the table of constants: name, kind if it has several, a cell a generation."""
    (section,) = re.findall(r"^## Constants\n(.*?)^## ", TIME.read_text(), re.MULTILINE | re.DOTALL)
    row = r"^\| `(\w+)`(?:, (\w+))? \| (.*?) \|[^|]*\|$"
    found = re.findall(row, section, re.MULTILINE)
    return [(name, kind, cells.split(" | ")) for name, kind, cells in found]


def test_the_constants_are_those_of_the_machines() -> None:
    for generation, target in enumerate((NcVersion.gen2, NcVersion.gen3, NcVersion.gen4)):
        chip = machine.of(target)
        for name, kind, cells in constants():
            value = getattr(chip, name)
            if kind:
                value = dict(value).get(kind)
            if value is None:
                assert cells[generation] == "none"
            else:
                assert float(cells[generation]) == pytest.approx(value, rel=1e-3), name


def test_every_time_is_in_the_table() -> None:
    """All numbers that the model's times are made of; sizes and dtypes are no times."""
    no_times = {
        "target", "chip", "sbuf_bytes", "sbuf_bytes_per_partition", "partitions",
        "psum_bytes_per_partition", "psum_banks", "psum_bank_bytes", "fast_dtypes", "fast_scalar",
        "shared_ports",
    }  # fmt: skip
    assert {name for name, _, _ in constants()} == {
        field.name for field in fields(machine.Machine)
    } - no_times
