"""`nki.collectives`: data exchange between ranks.

A rank is a logical core. Where it has two physical cores, both issue each collective on shared HBM,
and it happens once; a collective on SBUF happens for the equally numbered cores of the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nkisim import collective_math
from nkisim.collective_call import Call, begin, single, tensors
from nkisim.collective_math import Ragged
from nkisim.core import current
from nkisim.dtypes import uint32
from nkisim.enums import MemoryRegion
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
        priority: 0 to 3.

    Raises:
        NkiValidationError: an operand breaks a constraint.
        NkiMismatchError: another rank of the group is at something else.
    """
    call = begin("all_reduce", srcs, dsts, replica_group, priority, name, op=op)
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
        "reduce_scatter", srcs, dsts, replica_group, priority, name, op=op, dim=collective_dim
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


def all_gather_v(
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    replica_group: Any,
    metadata_tensor: NkiTensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
    name: str | None = None,
) -> Instruction:
    """As `all_gather`, where each rank sends as many elements as it likes.

    Args:
        srcs, dsts: one flat buffer each, in HBM.
        replica_group: 4 ranks, of two cores each.
        metadata_tensor: uint32 [rows, ranks], rows 3 or, with `has_rdispls`, 4; in HBM, or
            [1, rows, ranks] in SBUF. Rows: how many elements are sent, from where on, how many are
            received (an output unless `recv_counts_known`), and to where.

    Raises:
        NkiValidationError: an operand breaks a constraint, or counts do not fit the buffers.
        NkiMismatchError: another rank of the group is at something else.
    """
    call = begin("all_gather_v", srcs, dsts, replica_group, priority, name)
    if call.core.run.lnc != 2 or len(call.group) != 4:
        call.broken(
            f"the group is {call.group} at LNC{call.core.run.lnc}; it must be 4 ranks at LNC2"
        )
    return _ragged(
        call, metadata_tensor, Ragged(recv_counts_known, has_rdispls), collective_math.all_gather_v
    )


def all_to_all_v(
    srcs: Sequence[NkiTensor],
    dsts: Sequence[NkiTensor],
    replica_group: Any,
    metadata_tensor: NkiTensor,
    recv_counts_known: bool = False,
    has_rdispls: bool = False,
    priority: int | None = None,
    name: str | None = None,
) -> Instruction:
    """As `all_to_all`, where each rank sends as many elements as it likes to each.

    Arguments and errors: as `all_gather_v`; any group.
    """
    call = begin("all_to_all_v", srcs, dsts, replica_group, priority, name)
    return _ragged(
        call, metadata_tensor, Ragged(recv_counts_known, has_rdispls), collective_math.all_to_all_v
    )


def _ragged(call: Call, metadata: NkiTensor, ragged: Ragged, function: Any) -> Instruction:
    call.hbm_only()
    src, dst = call.one_each()
    if type(metadata) is not NkiTensor or metadata.buffer is MemoryRegion.psum:
        call.broken(f"metadata_tensor is {metadata!r}; it must be a tensor in HBM or SBUF")
    if metadata.dtype is not uint32:
        call.broken(f"metadata_tensor is {metadata.dtype}; it must be uint32")
    collective_math.check_metadata(metadata.shape, ragged.rows, len(call.group))
    call.fact(recv_counts_known=ragged.recv_counts_known, has_rdispls=ragged.has_rdispls)
    operands = (src, dst, metadata)

    def action(ranks: list[Any]) -> None:
        arrays = [[np.array(tensor.values()) for tensor in entry] for entry in ranks]
        results = function(
            [a[0] for a in arrays], [a[1] for a in arrays], [a[2] for a in arrays], ragged
        )
        for entry, (new, counts) in zip(ranks, results, strict=True):
            entry[1].assign(new)
            entry[2].assign(counts)

    # how much of dst is filled is known only on the device, and what is there may stay
    return call.meet(operands, action, reads=(src, metadata), writes=(dst, metadata))


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
        priority: 0 to 3.

    Raises:
        NkiValidationError: an operand breaks a constraint.
        NkiMismatchError: another rank is at something else.
    """
    call = begin("collective_permute", srcs, dsts, (), priority, name)
    call.hbm_only()
    src, dst = call.one_each()
    call.same_shapes()
    pairs = [(int(source), int(target)) for source, target in source_target_pairs]
    collective_math.check_pairs(pairs, call.core.run.ranks)
    call.fact(pairs=tuple(pairs))

    def action(ranks: list[Any]) -> None:
        sources = [np.array(entry[0].values()) for entry in ranks]
        for entry, result in zip(ranks, collective_math.permute(sources, pairs), strict=True):
            if result is not None:
                entry[1].assign(result)

    targets = {target for _, target in pairs}
    writes = (dst,) if call.core.rank in targets else ()
    return call.meet((src, dst), action, reads=(src,), writes=writes)


def collective_permute_implicit(
    srcs_by_channel: Sequence[Sequence[NkiTensor]],
    dsts_by_channel: Sequence[Sequence[NkiTensor]],
    replica_group: Any,
    channel_ids: Sequence[int] = [0],  # noqa: B006 - the signature of NKI; never changed
    priority: int | None = None,
    name: str | None = None,
) -> Instruction:
    """On each channel, send a tensor to the next rank of the group and receive the previous one's.

    Args:
        srcs_by_channel, dsts_by_channel: for each channel a list of one tensor, in HBM or SBUF.
        replica_group: as in `all_reduce`; its order is the ring.
        channel_ids: which channels; at most 4.
        priority: 0 to 3.

    Raises:
        NkiValidationError: an operand breaks a constraint.
        NkiMismatchError: another rank of the group is at something else.
    """
    op = "collective_permute_implicit"
    sources = [single(op, "srcs_by_channel", entry) for entry in tensors(srcs_by_channel)]
    targets = [single(op, "dsts_by_channel", entry) for entry in tensors(dsts_by_channel)]
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
    channel_ids: Sequence[int] = [0],  # noqa: B006 - the signature of NKI; never changed
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
    first = [single(what, "srcs0_by_channel", entry) for entry in tensors(srcs0_by_channel)]
    second = [single(what, "srcs1_by_channel", entry) for entry in tensors(srcs1_by_channel)]
    targets = [single(what, "dsts_by_channel", entry) for entry in tensors(dsts_by_channel)]
    call = begin(what, first, targets, replica_group, priority, name, op=op)
    call.same_shapes()
    call.check_channels(channel_ids, len(first))
    if len(second) != len(first):
        call.broken(f"srcs1_by_channel has {len(second)} channels, srcs0_by_channel {len(first)}")
    for one, two in zip(first, second, strict=False):
        call.check_like("srcs1_by_channel", two, one)

    def action(ranks: list[Any]) -> None:
        for index in range(len(first)):
            pairs = [
                [np.array(entry[part][index].values()) for part in (0, 1)] for entry in ranks
            ]
            results = collective_math.permute_implicit_reduce(
                [pair[0] for pair in pairs],
                [pair[1] for pair in pairs],
                call.reduction,
                first[index].dtype,
            )
            for entry, result in zip(ranks, results, strict=True):
                entry[2][index].assign(result)

    # reads and writes of a channel stand at equal positions; the second sources come after
    return call.meet(
        (first, second, targets), action, reads=(*first, *second), writes=tuple(targets)
    )


def collective_permute_implicit_current_processing_rank_id(
    iteration_id: Any, replica_group: Any, channel_id: int = 0, name: str | None = None
) -> VirtualRegister:
    """Whose data this rank holds after `iteration_id` permutes of a ring: its own at first."""
    core = current("ncc.collective_permute_implicit_current_processing_rank_id")
    del channel_id, name
    group = ReplicaGroup(replica_group).group_of(core.rank, core.run.ranks)
    iteration = iteration_id.value if isinstance(iteration_id, VirtualRegister) else iteration_id
    return VirtualRegister(
        collective_math.current_processing_rank(group, core.rank, int(iteration))
    )


def rank_id(name: str | None = None) -> VirtualRegister:
    """The number of this rank; the same on both cores of it."""
    del name
    return VirtualRegister(current("ncc.rank_id").rank)
