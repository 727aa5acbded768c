"""Which of the platforms a machine has."""

from __future__ import annotations

import torch

from wantrn.model.device import DEVICES, find_device
from wantrn.model.errors import RequestError

CPU, NEURON = DEVICES


def find_platform() -> str | None:
    """``"neuron"`` where there is a Trainium device and all that it needs, ``"cpu"`` where there is
    no accelerator at all, and None elsewhere: another accelerator is not ours to take."""
    try:
        return find_device(NEURON).type
    except RequestError:
        return None if torch.accelerator.is_available() else CPU
