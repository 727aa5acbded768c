"""How long cores exchange data, once all of them are there.

Algorithms and their limits are those of the Neuron runtime's page on intra-node collective
communication: mesh below 1 MB (every rank to every other, one step a phase), recursive doubling and
halving up to 56 MB (log2 n steps), a ring above (n - 1 steps). Each phase, a reduce-scatter or an
all-gather, moves (n - 1) / n of the data through each rank's links; an all-reduce is one of each.
"""

from __future__ import annotations

from typing import NamedTuple

from nkisim.errors import NkiError
from nkisim.machine import Machine
from nkisim.trace import PERMUTES, Meeting

MESH_LIMIT = 1 << 20
RDH_LIMIT = 56 << 20

_ALL_TO_ALL = frozenset({"all_to_all", "all_to_all_v"})
_GATHERS = frozenset({"all_gather", "all_gather_v"})
# started by an engine, carried out by the collective cores and DMA engines
COLLECTIVES = PERMUTES | _ALL_TO_ALL | _GATHERS | frozenset({"all_reduce", "reduce_scatter"})
# everything that meets other cores
TRIGGERS = COLLECTIVES | frozenset({"core_barrier", "sendrecv"})


class Exchange(NamedTuple):
    """What a meeting takes.

    Attributes:
        latency_ns: steps, each with its latency
        moving_ns: how long each rank's links are busy; the next exchange of the rank waits for that
        moved: bytes that leave each rank
    """

    latency_ns: float
    moving_ns: float
    moved: int


def exchange(meeting: Meeting, lnc: int, machine: Machine, by_gpsimd: bool = False) -> Exchange:
    """The cost of `meeting`, from the moment that all cores are there.

    Args:
        lnc: physical cores of each rank
        by_gpsimd: a `sendrecv` is carried by the DMA of the GpSimd engine

    Raises:
        NkiError: a kind of meeting that has no cost.
    """
    kind, n, size = meeting.kind, meeting.ranks, meeting.bytes_per_rank
    if kind == "core_barrier":
        return Exchange(machine.chip_hop_ns, 0.0, 0)
    if kind == "sendrecv":
        if by_gpsimd:
            return Exchange(machine.chip_hop_ns, size / machine.gpsimd_dma_bytes_per_ns, size)
        return Exchange(machine.dma_start_ns, size / _dma_rate(1, machine), size)
    if kind not in COLLECTIVES:
        raise NkiError(f"no cost is known for a meeting of kind {kind!r}")
    hop_ns, rate = _link(meeting, lnc, machine)
    if n <= 1:
        return Exchange(machine.dma_start_ns, size / rate, size)
    if kind in PERMUTES:
        return Exchange(hop_ns, size / rate, size)
    if kind in _ALL_TO_ALL:
        moved = size * (n - 1) // n
        return Exchange(hop_ns, moved / rate, moved)
    whole = size * n if kind in _GATHERS else size
    phases = 2 if kind == "all_reduce" else 1
    moved = phases * (whole * (n - 1) // n)
    return Exchange(phases * _steps(whole, n) * hop_ns, moved / rate, moved)


def _steps(whole: int, n: int) -> int:
    """Steps of a phase over `n` ranks that holds `whole` bytes in the end."""
    if whole < MESH_LIMIT:
        return 1
    if whole <= RDH_LIMIT and n & (n - 1) == 0:
        return n.bit_length() - 1
    return n - 1


def _dma_rate(cores: int, machine: Machine) -> float:
    return cores * machine.dma_engines * machine.dma_bytes_per_ns


def _link(meeting: Meeting, lnc: int, machine: Machine) -> tuple[float, float]:
    """Latency of a step and bytes per ns of each rank over the widest gap between the cores.

    A rank gets its cores' share of the chip's links, and never more than its DMA engines move.
    """
    chips = {core // machine.cores_per_chip for core in meeting.cores}
    nodes = {chip // machine.chips_per_node for chip in chips}
    most = _dma_rate(lnc, machine)
    if len(nodes) > 1:
        # published for ranks of two cores
        return machine.efa_hop_ns, machine.efa_bytes_per_ns * lnc / 2
    if len(chips) > 1:
        return machine.hop_ns, min(most, machine.link_bytes_per_ns * lnc / machine.cores_per_chip)
    return machine.chip_hop_ns, most
