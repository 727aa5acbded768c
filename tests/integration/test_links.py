"""Every link from one page of the repository to another, or to a file, leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    page for pattern in ("*.md", "docs/*.md", "packages/*/*.md") for page in ROOT.glob(pattern)
)


def anchors(page: Path) -> set[str]:
    """The anchors that the headings of a page make."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_pages_are_here() -> None:
    names = {str(page.relative_to(ROOT)) for page in PAGES}
    assert {"README.md", "docs/pipeline.md", "packages/model/README.md"} <= names


def prose(page: Path) -> str:
    """A page without its code, in which `kernel[2](x)` is no link."""
    without_blocks = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`]*`", "", without_blocks)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", prose(page)):
        if link.startswith("https://"):  # nothing is asked of others
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link
