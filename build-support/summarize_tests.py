"""Print one closing line, as pytest words it, for all test files of a `./pants test ::`.

    python3.11 build-support/summarize_tests.py FOLDER

FOLDER holds the JUnit reports that Pants writes, one for each test file (dist/test/reports). The
reasons of skipped tests and the names of failed ones come before the closing line.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

ORDER = ("failed", "passed", "skipped", "errors")
OUTCOMES = {"failure": "failed", "skipped": "skipped", "error": "errors"}


def outcome(case: ElementTree.Element) -> tuple[str, str]:
    """How a test ended, and pytest's message about it."""
    for child in case:
        if child.tag in OUTCOMES:
            return OUTCOMES[child.tag], child.get("message", "")
    return "passed", ""


def main() -> None:
    reports = sorted(Path(sys.argv[1]).glob("*.xml"))
    if not reports:
        raise SystemExit(f"no test reports in {sys.argv[1]}")
    counts: Counter[str] = Counter()
    seconds = 0.0
    for report in reports:
        for case in ElementTree.parse(report).iter("testcase"):
            how, message = outcome(case)
            counts[how] += 1
            seconds += float(case.get("time", "0"))
            if how != "passed":
                first_line = message.partition("\n")[0]
                print(f"{how.upper()} {case.get('classname')}::{case.get('name')} - {first_line}")
    parts = ", ".join(f"{counts[how]} {how}" for how in ORDER if counts[how])
    print(f"===== {parts or 'no tests ran'} in {seconds:.2f}s =====")


if __name__ == "__main__":
    main()
