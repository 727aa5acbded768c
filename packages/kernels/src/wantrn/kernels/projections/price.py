"""What a plan costs: the busiest of the engines, and what nothing overlaps.

Costs are those of `nkisim.timing`. Not for use in a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from nkisim.machine import Machine
from wantrn.kernels.projections.plan import Plan
from wantrn.kernels.projections.tiles import GROUP, TILE
from wantrn.kernels.row_mx import SCALE_BYTES, VALUES
from wantrn.kernels.words import word_bytes, words


@dataclass(frozen=True)
class Candidate:
    """A plan that fits, and what it costs on the busier core.

    Attributes:
        weight_loads: how many times each tile of a weight is loaded
        total_ns: predicted time
        tensor_ns, vector_ns, dma_ns: how long each is busy
    """

    plan: Plan
    weight_loads: int
    total_ns: float
    tensor_ns: float
    vector_ns: float
    dma_ns: float


def price_of(
    plan: Plan, weights: list[tuple[int, int]], tiles: int, loads: int, machine: Machine
) -> Candidate:
    """The price of a plan.

    Args:
        weights: what each contracts, and its columns.
        tiles: of tokens.
        loads: of each weight.
    """
    choice, packed = plan.choice, plan.sizes.packed
    each = word_bytes(packed)
    tensor = tiles * _tensor_cycles(plan, weights) / machine.tensor_ghz
    dma, first = rows_ns(plan, weights, tiles, machine)
    widths = [choice.up_block, choice.down_block][-len(weights) :]
    for index, (depth, columns) in enumerate(weights):
        width = min(widths[index], columns)
        row = words(depth, packed) * each
        dma += loads * transfer_ns(row * columns, width * each, machine)
        if index == 0:
            first += transfer_ns(row * width, width * each, machine)
    columns = weights[-1][1]
    instructions = -(-columns // min(choice.down_block, GROUP))
    cycles = columns + machine.access_cycles * instructions
    # a third of the biases of scaled columns is Vector's, see `Rows`
    vector = tiles * cycles * (4 / 3 if packed else 1) / machine.vector_ghz
    total = max(tensor, vector, dma) + first
    return Candidate(plan, loads, total, tensor, vector, dma)


def _tensor_cycles(plan: Plan, weights: list[tuple[int, int]]) -> int:
    """For one tile of tokens: one for each column of a matmul, see `nkisim.timing.matmul`; tiles
    that are not full take as long."""
    packed = plan.sizes.packed
    depths = [-(-words(depth, packed) // TILE) for depth, _ in weights]
    cycles = depths[-1] * weights[-1][1]
    if plan.choice.up_block:
        per = VALUES if packed else 1
        channels = -(-weights[0][1] // (TILE * per)) * per
        cycles += channels * depths[0] * TILE
    return cycles


def rows_ns(
    plan: Plan, weights: list[tuple[int, int]], tiles: int, machine: Machine
) -> tuple[float, float]:
    """Transfers of all tokens in and out, and of those that the first product waits for."""
    choice, depth = plan.choice, weights[0][0]
    tokens = tiles * TILE
    if choice.up_block:
        row = depth + SCALE_BYTES if plan.sizes.packed else 2 * depth
        run = row
    else:
        # channels come one by one, with a value for each token
        row, run = 2 * depth, 2 * TILE * choice.pass_tiles
    out = transfer_ns(2 * tokens * weights[-1][1], 2 * choice.down_block, machine)
    first = transfer_ns(min(choice.pass_tiles, tiles) * TILE * row, run, machine)
    return transfer_ns(tokens * row, run, machine) + out, first


def transfer_ns(total: int, run: int, machine: Machine) -> float:
    """Bytes in contiguous runs, over all DMA engines; see `nkisim.timing.transfers`."""
    each = run / machine.dma_peak_bytes_per_ns + machine.dma_descriptor_ns
    engine = total / run * max(each, run / machine.dma_bytes_per_ns) / machine.dma_engines
    return max(engine, total / machine.hbm_share_bytes_per_ns)
