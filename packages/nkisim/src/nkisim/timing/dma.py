"""The DMA engines of one core while a trace is played."""

from __future__ import annotations

from nkisim.machine import Machine
from nkisim.timing.transfers import Transfer


class DmaEngines:
    """The DMA engines of one core and its share of HBM, each a queue of bytes. Times in ns.

    Attributes:
        busy: by engine
    """

    def __init__(self, machine: Machine) -> None:
        self._hbm_rate = machine.hbm_share_bytes_per_ns
        self._free = [0.0] * machine.dma_engines
        self._last = [-1] * machine.dma_engines
        self._hbm_free = 0.0
        self._generators = {"sync": 0.0, "scalar": 0.0}
        self.busy = [0.0] * machine.dma_engines

    def generate(self, engine: str | None, time: float, ns: float) -> float:
        """When the hardware DGE of `engine` (None: any) has written the descriptors."""
        free = self._generators
        which = min(free, key=free.__getitem__) if engine is None else engine
        free[which] = max(free[which], time) + ns
        return free[which]

    def move(self, k: int, moved: Transfer, begin: float) -> tuple[float, float, int]:
        """Queue the bytes of transfer number `k`, which can move from `begin` on.

        Returns:
            when its last engine starts on it, when its last byte has arrived, and the number of the
            transfer before it on that engine (-1: none)
        """
        engines = range(moved.first, moved.first + moved.engines)
        first, soonest, before = begin, None, -1
        for engine in engines:
            start = self._free[engine]
            if start > first:
                first, before = start, self._last[engine]
            start = max(start, begin)
            if soonest is None or start < soonest:
                soonest = start
            self._free[engine] = start + moved.engine_ns
            self._last[engine] = k
            self.busy[engine] += moved.engine_ns
        arrived = first + moved.engine_ns
        on_hbm = moved.read + moved.written
        if on_hbm and soonest is not None:
            self._hbm_free = max(self._hbm_free, soonest) + on_hbm / self._hbm_rate
            arrived = max(arrived, self._hbm_free)
        return first, arrived, before
