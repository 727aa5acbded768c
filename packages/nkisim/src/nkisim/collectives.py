"""`nki.collectives`: data exchange between ranks.

A rank is a logical core. Where it has two physical cores, both issue each collective on shared HBM,
and it happens once; a collective on SBUF happens for the equally numbered cores of the ranks.

Signatures and constraints are those of the `nki.collectives` reference of NKI 0.6 and 0.7. Where a
rank has one core, sources may be in shared HBM as in NKI 0.6; 0.7 wants them in private HBM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nkisim import collective_math
from nkisim.collective_call import Call, begin
from nkisim.collective_meeting import Operands
from nkisim.collective_operands import channel_list, checked_channel
from nkisim.collectives_ragged import all_gather_v, all_to_all_v
from nkisim.core import Core, current
from nkisim.enums import Engine
from nkisim.errors import NkiValidationError
from nkisim.register import VirtualRegister
from nkisim.replica_group import ReplicaGroup, RgPartitionOp
from nkisim.tensor import NkiTensor
from nkisim.trace import Instruction

rg_partition_op = RgPartitionOp

__all__ = [
    "ReplicaGroup",
    "all_gather",
    "all_gather_v",
    "all_reduce",
    "all_to_all",
    "all_to_all_v",
    "collective_permute",
    "collective_permute_implicit",
    "collective_permute_implicit_current_processing_rank_id",
    "collective_permute_implicit_reduce",
    "rank_id",
    "reduce_scatter",
    "rg_partition_op",
]


def all_reduce(
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    replica_group: Any,
    op: Any,
    priority: int | None = None,
    name: str | None = None,
) -> Instruction:
    """`dst` = `src` of all ranks of the group, added (or the largest, or the smallest).

    Args:
        srcs, dsts: tensors of equal shape and dtype; one each in SBUF, several in HBM.
        replica_group: `ReplicaGroup`, or its lists of ranks.
        op: add, maximum or minimum.
        priority: 0, first, to 3; gen4.

    Raises:
        NkiValidationError: an operand breaks a constraint.
        NkiMismatchError: another rank of the group is at something else.
    """
    call = begin("all_reduce", srcs, dsts, replica_group, priority, name, reduce=op)
    call.same_shapes()

    def compute(sources: list[Any], call: Call, index: int) -> list[Any]:
        return collective_math.all_reduce(sources, call.reduction, call.srcs[index].dtype)

    return call.run(compute)


def all_gather(
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    replica_group: Any,
    collective_dim: int,
    priority: int | None = None,
    name: str | None = None,
) -> Instruction:
    """`dst` = `src` of all ranks, one after the other in the order of the group.

    Args:
        srcs, dsts, replica_group, priority: as in `all_reduce`.
        collective_dim: 0; in SBUF also 1, the free dimension.

    Raises:
        NkiValidationError: an operand breaks a constraint.
        NkiMismatchError: another rank of the group is at something else.
    """
    call = begin("all_gather", srcs, dsts, replica_group, priority, name, dim=collective_dim)
    call.check_dim(collective_dim, (0, 1) if call.in_sbuf else (0,))
    for src, dst in call.pairs():
        call.expect_shape(
            dst, collective_math.gathered_shape(src.shape, len(call.group), collective_dim)
        )

    def compute(sources: list[Any], call: Call, index: int) -> list[Any]:
        return collective_math.all_gather(sources, collective_dim)

    return call.run(compute)


def reduce_scatter(
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    replica_group: Any,
    collective_dim: int,
    op: Any,
    priority: int | None = None,
    name: str | None = None,
) -> Instruction:
    """`dst` = this rank's chunk, along `collective_dim`, of `src` reduced over the ranks.

    Args:
        srcs, dsts, replica_group, op, priority: as in `all_reduce`.
        collective_dim: 0; in SBUF also 1.

    Raises:
        NkiValidationError: an operand breaks a constraint.
        NkiMismatchError: another rank of the group is at something else.
    """
    call = begin(
        "reduce_scatter", srcs, dsts, replica_group, priority, name, reduce=op, dim=collective_dim
    )
    call.check_dim(collective_dim, (0, 1) if call.in_sbuf else (0,))
    for src, dst in call.pairs():
        call.expect_shape(
            dst, collective_math.scattered_shape(src.shape, len(call.group), collective_dim)
        )

    def compute(sources: list[Any], call: Call, index: int) -> list[Any]:
        return collective_math.reduce_scatter(
            sources, call.reduction, call.srcs[index].dtype, collective_dim
        )

    return call.run(compute)


def all_to_all(
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    replica_group: Any,
    collective_dim: int,
    priority: int | None = None,
    name: str | None = None,
) -> Instruction:
    """Chunk `j` of `src` goes to rank `j` of the group; chunk `i` of `dst` comes from rank `i`.

    Args:
        srcs, dsts, replica_group, priority: as in `all_reduce`; HBM only.
        collective_dim: 0.

    Raises:
        NkiValidationError: an operand breaks a constraint.
        NkiMismatchError: another rank of the group is at something else.
    """
    call = begin("all_to_all", srcs, dsts, replica_group, priority, name, dim=collective_dim)
    call.hbm_only()
    call.check_dim(collective_dim, (0,))
    call.same_shapes()
    for src in call.srcs:
        collective_math.scattered_shape(src.shape, len(call.group), 0)

    def compute(sources: list[Any], call: Call, index: int) -> list[Any]:
        return collective_math.all_to_all(sources, collective_dim)

    return call.run(compute)


def collective_permute(
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    source_target_pairs: Sequence[Sequence[int]],
    priority: int | None = None,
    name: str | None = None,
) -> Instruction:
    """For each pair (source, target), `src` of the source becomes `dst` of the target.

    `dst` of a rank that is no target stays as it is.

    Args:
        srcs, dsts: one HBM tensor each, of equal shape and dtype.
        source_target_pairs: ranks; each at most once a source and once a target.
        priority: 0, first, to 3; gen4.

    Raises:
        NkiValidationError: an operand breaks a constraint.
        NkiMismatchError: another rank is at something else.
    """
    call = begin("collective_permute", srcs, dsts, (), priority, name)
    call.hbm_only()
    src, dst = call.one_each()
    call.same_shapes()
    pairs = _checked_pairs(source_target_pairs)
    collective_math.check_pairs(pairs, call.core.run.ranks)
    call.fact(pairs=tuple(pairs))

    def compute(ranks: list[list[Any]]) -> list[list[Any]]:
        return [[one] for one in collective_math.permute([sent[0] for sent in ranks], pairs)]

    sources, targets = {pair[0] for pair in pairs}, {pair[1] for pair in pairs}
    rank = call.core.rank
    return call.meet(
        Operands([src], [dst]),
        compute,
        reads=(src,) if rank in sources else (),
        writes=(dst,) if rank in targets else (),
    )


def _checked_pairs(source_target_pairs: Any) -> list[tuple[int, int]]:
    pairs = []
    for pair in source_target_pairs:
        if not isinstance(pair, (list, tuple)) or [type(rank) for rank in pair] != [int, int]:
            raise NkiValidationError(
                f"collective_permute: source_target_pairs has {pair!r}; it must hold pairs of "
                "ranks, (source, target)"
            )
        pairs.append((pair[0], pair[1]))
    return pairs


def collective_permute_implicit(
    srcs_by_channel: Sequence[Sequence[NkiTensor]],
    dsts_by_channel: Sequence[Sequence[NkiTensor]],
    replica_group: Any,
    channel_ids: Sequence[int] = [0],
    priority: int | None = None,
    name: str | None = None,
) -> Instruction:
    """On each channel, send a tensor to the next rank of the group and receive the previous one's.

    Args:
        srcs_by_channel, dsts_by_channel: for each channel a list of one tensor, in HBM or SBUF.
        replica_group: as in `all_reduce`; its order is the ring.
        channel_ids: which channels; at most 4.
        priority: 0, first, to 3; gen4.

    Raises:
        NkiValidationError: an operand breaks a constraint.
        NkiMismatchError: another rank of the group is at something else.
    """
    op = "collective_permute_implicit"
    sources = channel_list(op, "srcs_by_channel", srcs_by_channel)
    targets = channel_list(op, "dsts_by_channel", dsts_by_channel)
    call = begin(op, sources, targets, replica_group, priority, name)
    call.same_shapes()
    call.check_channels(channel_ids, len(sources))

    def compute(arrays: list[Any], call: Call, index: int) -> list[Any]:
        return collective_math.permute_implicit(arrays)

    return call.run(compute)


def collective_permute_implicit_reduce(
    srcs0_by_channel: Sequence[Sequence[NkiTensor]],
    srcs1_by_channel: Sequence[Sequence[NkiTensor]],
    dsts_by_channel: Sequence[Sequence[NkiTensor]],
    replica_group: Any,
    op: Any,
    channel_ids: Sequence[int] = [0],
    priority: int | None = None,
    name: str | None = None,
) -> Instruction:
    """As `collective_permute_implicit`, sending `op(src0, src1)`.

    Args:
        srcs0_by_channel, srcs1_by_channel: for each channel a list of one tensor.
        op: add, maximum or minimum.

    Raises: as `collective_permute_implicit`.
    """
    what = "collective_permute_implicit_reduce"
    first = channel_list(what, "srcs0_by_channel", srcs0_by_channel)
    second = channel_list(what, "srcs1_by_channel", srcs1_by_channel)
    targets = channel_list(what, "dsts_by_channel", dsts_by_channel)
    call = begin(what, first, targets, replica_group, priority, name, reduce=op)
    call.same_shapes()
    call.check_channels(channel_ids, len(first))
    if len(second) != len(first):
        raise NkiValidationError(
            f"{what}: srcs1_by_channel has {len(second)} channels and srcs0_by_channel "
            f"{len(first)}; there must be as many"
        )
    for one, two in zip(first, second, strict=True):
        call.check_like("srcs1_by_channel", two, one)
        if two.buffer is not one.buffer:
            call.broken(f"srcs1_by_channel is {two!r}; it must be in the memory of {one!r}")
        if not call.in_sbuf:
            call.check_hbm("srcs1_by_channel", two)

    def compute(ranks: list[list[Any]]) -> list[list[Any]]:
        columns = []
        for index, src in enumerate(first):
            left = [sent[index] for sent in ranks]
            right = [sent[len(first) + index] for sent in ranks]
            columns.append(
                collective_math.permute_implicit_reduce(left, right, call.reduction, src.dtype)
            )
        return [list(row) for row in zip(*columns, strict=True)]

    # reads and writes of a channel stand at equal positions; the second sources come after
    sources = [*first, *second]
    return call.meet(Operands(sources, targets), compute, reads=sources, writes=targets)


def collective_permute_implicit_current_processing_rank_id(
    iteration_id: Any, replica_group: Any, channel_id: int = 0, name: str | None = None
) -> VirtualRegister:
    """Whose data this rank holds after `iteration_id` permutes of a ring: its own at first.

    Args:
        iteration_id: an integer of at least 0, or a register.
        replica_group: as in `all_reduce`; its order is the ring.
        channel_id: 0 to 3. All channels go round the ring in the same direction.

    Raises:
        NkiValidationError: a negative iteration, a register that nothing has set, no such channel,
            or a rank outside the group.
    """
    op = "collective_permute_implicit_current_processing_rank_id"
    core = current(f"ncc.{op}")
    checked_channel(op, "channel_id", channel_id)
    group = ReplicaGroup(replica_group).group_of(core.rank, core.run.ranks)
    iteration = _iteration(core, op, iteration_id)
    core.issue(op, Engine.sync, (), (), name)
    if iteration is None:
        return VirtualRegister()
    return VirtualRegister(collective_math.current_processing_rank(group, core.rank, iteration))


def _iteration(core: Core, op: str, iteration_id: Any) -> int | None:
    """The number of an iteration; None for a register without a value in a run without numerics."""
    value = iteration_id.value if isinstance(iteration_id, VirtualRegister) else iteration_id
    if value is None and isinstance(iteration_id, VirtualRegister):
        if core.numerics:
            raise NkiValidationError(f"{op}: iteration_id is a register that nothing has set")
        return None
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise NkiValidationError(
            f"{op}: iteration_id is {iteration_id!r}; it must be an integer or a register of one"
        )
    return int(value)


def rank_id(name: str | None = None) -> VirtualRegister:
    """The number of this rank in the world; the same on both cores of it."""
    core = current("ncc.rank_id")
    core.issue("rank_id", Engine.sync, (), (), name)
    return VirtualRegister(core.rank)
