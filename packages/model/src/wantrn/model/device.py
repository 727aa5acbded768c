"""Where transformers can compute."""

from __future__ import annotations

import torch

from wantrn.kernels import neuron
from wantrn.kernels.machine import DEVICE_TYPE
from wantrn.model.errors import RequestError

DEVICES = ("cpu", DEVICE_TYPE)


def find_device(name: str) -> torch.device:
    """The device called ``name``, one of ``DEVICES``.

    Raises:
        RequestError: there is no such device, or packages that it needs are missing.
    """
    if name not in DEVICES:
        raise RequestError("device", f"got {name!r}; allowed are {', '.join(DEVICES)}")
    if name == DEVICE_TYPE:
        try:
            neuron.device()
        except (ImportError, ValueError) as error:
            raise RequestError("device", f"got {name}, but {error}") from error
    return torch.device(name)
