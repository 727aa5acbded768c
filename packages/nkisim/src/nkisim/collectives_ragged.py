"""Collectives in which each rank sends as much as it likes: `all_gather_v` and `all_to_all_v`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nkisim import collective_math
from nkisim.collective_call import Call, begin
from nkisim.collective_math import Ragged
from nkisim.collective_meeting import Operands
from nkisim.dtypes import uint32
from nkisim.enums import MemoryRegion
from nkisim.tensor import NkiTensor
from nkisim.trace import Instruction


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
    return _ragged(call, metadata_tensor, Ragged(recv_counts_known, has_rdispls), gathers=True)


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
    return _ragged(call, metadata_tensor, Ragged(recv_counts_known, has_rdispls), gathers=False)


def _ragged(call: Call, metadata: NkiTensor, ragged: Ragged, gathers: bool) -> Instruction:
    call.hbm_only()
    src, dst = call.one_each()
    _check_metadata(call, metadata, ragged)
    call.fact(recv_counts_known=ragged.recv_counts_known, has_rdispls=ragged.has_rdispls)
    function = collective_math.all_gather_v if gathers else collective_math.all_to_all_v
    given = _given_rows(metadata, ragged, gathers)

    def compute(ranks: list[list[Any]]) -> list[list[Any]]:
        srcs, dsts, tables = (list(column) for column in zip(*ranks, strict=True))
        return [list(received) for received in function(srcs, dsts, tables, ragged)]

    # how much of dst is filled is known only on the device, and what is there may stay
    received = [] if ragged.recv_counts_known else [_rows(metadata, 2, 3)]
    operands = Operands([src, dst, metadata], [dst, metadata], given)
    return call.meet(operands, compute, (src, *given), (dst, *received))


def _check_metadata(call: Call, metadata: NkiTensor, ragged: Ragged) -> None:
    if type(metadata) is not NkiTensor:
        raise TypeError(f"{call.op}: metadata_tensor is {metadata!r}; it must be a tensor")
    if metadata.buffer is MemoryRegion.psum:
        call.broken(f"metadata_tensor is {metadata!r}; it must be in HBM or SBUF")
    if metadata.dtype is not uint32:
        call.broken(f"metadata_tensor is {metadata!r}; it must be uint32")
    collective_math.check_metadata(metadata.shape, ragged.rows, len(call.group))
    if metadata.on_chip != (metadata.ndim == 3):
        call.broken(
            f"metadata_tensor is {metadata!r}; it must have 3 dimensions in SBUF, the first of 1, "
            "and 2 in HBM"
        )
    if not metadata.on_chip:
        call.check_hbm("metadata_tensor", metadata)


def _rows(metadata: NkiTensor, first: int, end: int) -> NkiTensor:
    return metadata.slice(metadata.ndim - 2, first, end)


def _given_rows(metadata: NkiTensor, ragged: Ragged, gathers: bool) -> tuple[NkiTensor, ...]:
    """What of the metadata the kernel has to have written."""
    sent = _rows(metadata, 0, 2)
    # what a rank sends to all stands in the first column
    given = [sent.slice(sent.ndim - 1, 0, 1) if gathers else sent]
    if ragged.recv_counts_known:
        given.append(_rows(metadata, 2, 3))
    if ragged.has_rdispls:
        given.append(_rows(metadata, 3, 4))
    return tuple(given)
