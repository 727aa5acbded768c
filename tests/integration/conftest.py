"""Gates for tests that need hardware."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked trn3 unless the runner says that it has one."""
    hardware = os.environ.get("WANTRN_HARDWARE", "")
    for item in items:
        if item.get_closest_marker("trn3") and hardware != "trn3":
            reason = f"needs a trn3 runner; WANTRN_HARDWARE is {hardware or 'not set'}"
            item.add_marker(pytest.mark.skip(reason=reason))
