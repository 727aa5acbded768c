"""Which core does what: heads in passes round the ring, units of work, heads loaded together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wantrn.kernels.nki import nl
from wantrn.kernels.ring.plan import LOADED_HEADS, RingPlan, passes


@dataclass(frozen=True)
class Unit(nl.NKIObject):
    """Queries of one head, for one core.

    Attributes:
        slot: the head's place among those of its pass.
        head: of all `B * N`, batch by batch.
        first, groups: groups of 128 queries.
        resident: where its groups begin among those of the core in this pass.
    """

    slot: int
    head: int
    first: int
    groups: int
    resident: int


@dataclass(frozen=True)
class Pass(nl.NKIObject):
    """One time round the ring.

    Attributes:
        number: from 0.
        heads: that go round together.
        prepared: (slot, head) whose keys and values this core makes ready.
        units: of this core.
    """

    number: int
    heads: tuple[int, ...]
    prepared: tuple[tuple[int, int], ...]
    units: tuple[Unit, ...]


@dataclass(frozen=True)
class Run(nl.NKIObject):
    """Heads side by side in one batch entry, loaded together.

    Attributes:
        batch, first, count: the heads `first .. first + count` of batch entry `batch`.
        slot: of the first, in its pass.
    """

    batch: int
    first: int
    count: int
    slot: int


def divide(plan: RingPlan, core: int) -> list[Pass]:
    """The passes of a core. Both cores of a rank have as many, over the same heads.

    Each core has half of the heads; of an odd one, each has half of the queries.
    """
    shape = plan.shape
    rounds = passes(plan)
    half = shape.heads // shape.cores
    shared = shape.heads - half * shape.cores
    # the odd head counts as one of each core's
    each = -(-(half + shared) // rounds)
    found = []
    for number in range(rounds):
        low, high = min(number * each, half), min((number + 1) * each, half)
        with_shared = shared > 0 and number == rounds - 1
        found.append(_pass(plan, core, number, (low, high), with_shared))
    return found


def _pass(plan: RingPlan, core: int, number: int, mine: tuple[int, int], with_shared: bool) -> Pass:
    shape = plan.shape
    half, groups = shape.heads // shape.cores, shape.query_groups()
    low, high = mine
    heads: list[int] = []
    units: list[Unit] = []
    prepared: list[tuple[int, int]] = []
    for owner in range(shape.cores):
        for head in range(owner * half + low, owner * half + high):
            if owner == core:
                prepared.append((len(heads), head))
                units.append(Unit(len(heads), head, 0, groups, len(units) * groups))
            heads.append(head)
    if with_shared:
        head = shape.heads - 1
        cut = groups - groups // 2
        first, count = (0, cut) if core == 0 else (cut, groups - cut)
        if core == shape.cores - 1:
            prepared.append((len(heads), head))
        if count > 0:
            units.append(Unit(len(heads), head, first, count, len(units) * groups))
        heads.append(head)
    return Pass(number, tuple(heads), tuple(prepared), tuple(units))


def runs(members: Sequence[tuple[int, int]], heads: int) -> list[Run]:
    """(slot, head) of one core as runs of neighbours.

    Args:
        members: in ascending order.
        heads: N, the heads of a batch entry.
    """
    found: list[Run] = []
    for slot, head in members:
        batch, number = head // heads, head % heads
        if len(found) > 0:
            last = found[-1]
            follows = last.batch == batch and last.first + last.count == number
            if follows and last.slot + last.count == slot and last.count < LOADED_HEADS:
                found[-1] = Run(batch, last.first, last.count + 1, last.slot)
                continue
        found.append(Run(batch, number, 1, slot))
    return found
