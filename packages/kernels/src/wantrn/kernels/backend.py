"""Who computes the operators: torch, or the NKI kernels, on a device or in the simulator.

    from wantrn.kernels.backend import Backend, Simulation, use_backend

    with use_backend(Backend.SIM, Simulation(target="trn2")):
        out = ops.attention(q, k, v)

Without it, the environment variable ``WANTRN_BACKEND`` decides: ``auto``, ``torch``, ``sim`` or
``neuron``. Without that it is ``auto``: the kernels where tensors are on a device, else torch. What
a kernel cannot run is computed by torch, and the reason is logged once.
"""

from __future__ import annotations

import enum
import functools
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

VARIABLE = "WANTRN_BACKEND"
TARGETS = ("trn2", "trn3")

_log = logging.getLogger(__name__)


class Backend(enum.Enum):
    """Who computes the operators.

    ``AUTO``: the kernels where tensors are on a device, else torch. ``TORCH``: torch, wherever they
    are. ``SIM``: the kernels in the simulator, on tensors of the CPU. ``NEURON``: the kernels on a
    device.
    """

    AUTO = "auto"
    TORCH = "torch"
    SIM = "sim"
    NEURON = "neuron"


@dataclass(frozen=True)
class Simulation:
    """What is simulated: the chip, and how many physical cores each rank has."""

    target: str = "trn3"
    lnc: int = 2

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise ValueError(f"target is {self.target!r}; it must be one of {TARGETS}")
        if self.lnc not in (1, 2):
            raise ValueError(f"lnc is {self.lnc!r}; a rank has 1 or 2 cores")


@dataclass(frozen=True)
class Setting:
    """The backend, and what it simulates if it does."""

    backend: Backend
    simulation: Simulation


_chosen: ContextVar[Setting | None] = ContextVar("wantrn_backend", default=None)


def setting() -> Setting:
    """What holds here and now.

    Raises:
        ValueError: the environment variable names no backend.
    """
    found = _chosen.get()
    return _of_environment(os.environ.get(VARIABLE, Backend.AUTO.value)) if found is None else found


@functools.lru_cache(maxsize=8)
def _of_environment(name: str) -> Setting:
    known = [backend.value for backend in Backend]
    if name not in known:
        raise ValueError(f"{VARIABLE} is {name!r}; it must be one of {known}")
    return Setting(Backend(name), Simulation())


@contextmanager
def use_backend(backend: Backend, simulation: Simulation | None = None) -> Iterator[None]:
    """Let ``backend`` compute the operators in this context.

    Raises:
        ValueError: ``simulation`` is given to another backend than the simulator.
    """
    if simulation is not None and backend is not Backend.SIM:
        raise ValueError(f"simulation is given, but the backend is {backend.value!r}")
    token = _chosen.set(Setting(backend, simulation or Simulation()))
    try:
        yield
    finally:
        _chosen.reset(token)


@functools.lru_cache(maxsize=256)
def log_fallback(operator: str, reason: str) -> None:
    """Say once that torch computes ``operator``, and why."""
    _log.warning("%s: computed by torch, since %s", operator, reason)
