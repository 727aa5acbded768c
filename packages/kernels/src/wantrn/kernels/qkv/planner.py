"""Which plan is taken: all that fit are priced, and the cheapest wins.

Not for use in a kernel: a plan is an argument of one.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache

from nkisim import machine as machines
from nkisim.enums import NcVersion
from wantrn.kernels.qkv.buffers import plan_of
from wantrn.kernels.qkv.options import Sizes
from wantrn.kernels.qkv.plan import AHEAD, Choice, Plan, columns_of
from wantrn.kernels.qkv.price import Price, price_of
from wantrn.kernels.qkv.slabs import slabs_of, tile_count

# tokens of a head that are stored as one run at most: 2 KB with 128 channels
MAX_STRIDE = 8


@dataclass(frozen=True)
class Candidate:
    """A plan that fits, and its price."""

    plan: Plan
    price: Price


def candidates(sizes: Sizes, lnc: int = 1, target: NcVersion = NcVersion.gen4) -> list[Candidate]:
    """All plans that fit, the cheapest first.

    Args:
        lnc: cores that share the tokens.
        target: the generation of the chip.
    """
    machine = machines.of(target)
    tiles = tile_count(sizes.tokens, lnc)
    later = sizes.norm or sizes.per_head or sizes.rope
    found = []
    token_slots = [slots for slots in (2, 3, 4, 6) if slots < tiles] + [tiles]
    for choice in itertools.product(
        range(1, len(slabs_of(sizes)) + 1),
        token_slots,
        (True, False) if later else (False,),
        (1, 2) if later else (1,),
        range(1, min(tiles, MAX_STRIDE) + 1) if sizes.heads_first else (1,),
    ):
        try:
            plan = plan_of(sizes, Choice(*choice), tiles, machine.sbuf_bytes_per_partition)
        except ValueError:
            continue
        found.append(Candidate(plan, price_of(plan, machine)))
    return sorted(found, key=_order)


def _order(candidate: Candidate) -> tuple[int, int, int, int]:
    """The price first, in us; of equal ones what moves least, then what loads more tokens ahead,
    then the smaller."""
    work = candidate.price.work
    ahead = min(candidate.plan.choice.token_slots, AHEAD + 1)
    return (
        round(candidate.price.total_ns / 1000),
        round(work.dma + work.stored),
        -ahead,
        candidate.plan.sbuf_bytes(),
    )


@lru_cache(maxsize=64)
def best_plan(sizes: Sizes, lnc: int = 1, target: NcVersion = NcVersion.gen4) -> Plan:
    """The cheapest plan that fits; arguments as of `candidates`.

    Raises:
        ValueError: none fits.
    """
    found = candidates(sizes, lnc, target)
    if not found:
        raise ValueError(f"no plan for {sizes} fits into SBUF of {target.name}")
    return found[0].plan


def described(found: list[Candidate], count: int = 5) -> str:
    """A text of the cheapest candidates and why they are: busy times in us, buffers in KB."""
    slabs = slabs_of(found[0].plan.sizes)
    lines = []
    for place, candidate in enumerate(found[:count], 1):
        plan, price = candidate.plan, candidate.price
        widths = [columns_of(slabs, group) for group in plan.groups]
        where = "SBUF" if plan.choice.held else "HBM"
        rows = f", Q and K wait in {where}" if plan.later_groups else ""
        stay = "stay" if plan.tokens_stay() else f"in {plan.choice.token_slots} buffers"
        w = price.work
        lines += [
            f"{place}. {price.total_ns / 1e3:.1f} us, {price.total_ns / price.bound_ns:.2f} of the "
            f"bound: columns {' + '.join(str(width) for width in widths)}, tokens {stay}{rows}, "
            f"{price.weight_loads:g} weight tiles",
            f"   tensor {w.tensor / 1e3:.1f}  vector {w.vector / 1e3:.1f}  scalar "
            f"{w.scalar / 1e3:.1f}  gpsimd {w.gpsimd / 1e3:.1f}  dma "
            f"{(w.dma + w.stored) / 1e3:.1f} us; SBUF {plan.sbuf_bytes() / 1024:.0f} of "
            f"{plan.sbuf_limit / 1024:.0f} KB",
        ]
    best = found[0].plan
    lines.append("buffers of the first:")
    for b in best.buffers:
        lines.append(
            f"   {b.name:15} {b.slots:3} x {b.size / 1024:8.2f} KB at {b.address:6}, groups "
            f"{b.first} to {b.last}"
        )
    return "\n".join(lines)
