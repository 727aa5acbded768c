"""That a trn3 runner gives its tests the device it promises."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

pytestmark = pytest.mark.trn3

DEVICE = Path("/dev/neuron0")  # the Neuron driver makes /dev/neuron<N>, one for each chip


def test_the_first_neuron_device_can_be_opened() -> None:
    assert stat.S_ISCHR(DEVICE.stat().st_mode)
    os.close(os.open(DEVICE, os.O_RDWR))
