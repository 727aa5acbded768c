"""The simulator as a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import nkisim
from nkisim.enums import NcVersion
from nkisim.settings import target_of
from wantrn.kernels.backend import Simulation


@dataclass(frozen=True)
class Simulator:
    """Runs kernels in nkisim, on tensors of the CPU. Each rank simulates itself."""

    simulation: Simulation

    @property
    def target(self) -> NcVersion:
        """The generation of the chip."""
        return target_of(self.simulation.target)

    @property
    def lnc(self) -> int:
        """Cores of a rank."""
        return self.simulation.lnc

    def run(self, kernel: Any, *args: Any, group: str = "") -> Any:
        """As of `machine.Machine`.

        Raises:
            nkisim.NkiPeerError: another rank has failed, or nothing is heard of it.
        """
        if not group:
            return nkisim.simulate(kernel, target=self.target)[self.lnc](*args)
        from wantrn.kernels.process_carrier import ProcessCarrier

        rank = nkisim.Rank(ProcessCarrier(group), self.lnc, self.target)
        return rank.run(kernel, *args)
