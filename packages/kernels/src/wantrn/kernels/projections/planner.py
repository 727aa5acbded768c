"""Which plan is taken: all that fit are priced, and the cheapest wins.

Not for use in a kernel: a plan is an argument of one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from nkisim import machine as machines
from nkisim.enums import NcVersion
from wantrn.kernels.projections.options import MlpSizes, OProjSizes
from wantrn.kernels.projections.plan import (
    Choice,
    Plan,
    block_count,
    mlp_plan,
    o_proj_plan,
)
from wantrn.kernels.projections.price import Candidate, price_of
from wantrn.kernels.projections.rules import broken_by_mlp_sizes, broken_by_o_proj_sizes
from wantrn.kernels.projections.tiles import TILE, passes_of, tiles_of

# Plans whose predicted times are as close as this are taken for equal; of them the one that leaves
# most of the transfers' time to others is the best.
NEAR = 1.03
# columns of a block
WIDTHS = (1024, 512, 256, 128)
# tiles of a pass that are tried
PASS_TILES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)


@lru_cache(maxsize=64)
def best_o_proj_plan(sizes: OProjSizes, lnc: int = 1, target: NcVersion = NcVersion.gen4) -> Plan:
    """The cheapest plan of `o_proj` that fits.

    Args:
        lnc: cores that share the tokens.
        target: the generation of the chip.

    Raises:
        ValueError: the kernel does not run this, and why.
    """
    problem: str | None = broken_by_o_proj_sizes(sizes, target >= NcVersion.gen4)
    if problem is not None:
        raise ValueError(problem)
    return _cheapest(o_proj_candidates(sizes, lnc, target), sizes, target)


@lru_cache(maxsize=64)
def best_mlp_plan(sizes: MlpSizes, lnc: int = 1, target: NcVersion = NcVersion.gen4) -> Plan:
    """The cheapest plan of `mlp` that fits; as `best_o_proj_plan`."""
    problem: str | None = broken_by_mlp_sizes(sizes, target >= NcVersion.gen4)
    if problem is not None:
        raise ValueError(problem)
    return _cheapest(mlp_candidates(sizes, lnc, target), sizes, target)


def o_proj_candidates(sizes: OProjSizes, lnc: int, target: NcVersion) -> list[Candidate]:
    """All plans of `o_proj` that fit, the cheapest first; arguments as of `best_o_proj_plan`."""
    weights = [(sizes.depth, sizes.width)]
    found: list[Choice] = []
    for pass_tiles, width in itertools.product(PASS_TILES, WIDTHS):
        found += _choices(sizes, pass_tiles, 0, width)
    return _priced(sizes, weights, (sizes.batch, sizes.tokens), found, o_proj_plan, lnc, target)


def mlp_candidates(sizes: MlpSizes, lnc: int, target: NcVersion) -> list[Candidate]:
    """All plans of `mlp` that fit, the cheapest first; arguments as of `best_mlp_plan`."""
    weights = [(sizes.hidden, sizes.inner), (sizes.inner, sizes.width)]
    found: list[Choice] = []
    # four interleaved tiles of channels make one of MX
    up_widths = [width for width in WIDTHS if width % (4 * TILE) == 0 or not sizes.packed]
    for pass_tiles, up, down in itertools.product(PASS_TILES, up_widths, WIDTHS):
        found += _choices(sizes, pass_tiles, up, down)
    return _priced(sizes, weights, (1, sizes.tokens), found, mlp_plan, lnc, target)


def _choices(sizes: Any, pass_tiles: int, up: int, down: int) -> list[Choice]:
    """All blocks in SBUF, or two in turns."""
    count = block_count(sizes, Choice(pass_tiles, up, down, 1))
    return [Choice(pass_tiles, up, down, slots) for slots in (count, 2) if slots <= count]


def _cheapest(found: list[Candidate], sizes: Any, target: NcVersion) -> Plan:
    if not found:
        raise ValueError(f"the buffers for {sizes} do not fit into SBUF of {target.name}")
    return found[0].plan


def _priced(
    sizes: Any,
    weights: list[tuple[int, int]],
    tokens: tuple[int, int],
    choices: list[Choice],
    plan_of: Callable[[Any, Choice, int], Plan],
    lnc: int,
    target: NcVersion,
) -> list[Candidate]:
    """`weights` are `(contracted, columns)`, `tokens` is `(sequences, tokens of each)`."""
    machine = machines.of(target)
    tiles = tiles_of(*tokens, 0, lnc)
    found = []
    for choice in choices:
        try:
            plan = plan_of(sizes, choice, machine.sbuf_bytes_per_partition)
        except ValueError:
            continue
        passes = len(passes_of(tiles, choice.pass_tiles, sizes.packed))
        loads = 1 if choice.weight_slots == block_count(sizes, choice) else passes
        found.append(price_of(plan, weights, len(tiles), loads, machine))
    if not found:
        return []
    near = NEAR * min([candidate.total_ns for candidate in found])
    return sorted(
        found,
        key=lambda c: (c.total_ns > near, c.dma_ns if c.total_ns <= near else c.total_ns),
    )
