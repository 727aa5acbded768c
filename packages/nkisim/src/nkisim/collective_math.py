"""What each collective computes, on one array per rank.

Every function takes the operands of the ranks of one group in the order of the group, and returns
what each of them receives, in the same order. Results share no memory with operands; where all
ranks receive the same, it is one read-only array. Ranks in error texts are positions in the group.
Semantics: `nki.collectives` of NKI 0.6 and 0.7; what these do not say is marked [inferred].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nkisim.dtypes import DType, bool_, cast
from nkisim.errors import NkiValidationError

Array = npt.NDArray[Any]

_REDUCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "minimum": np.minimum,
    "maximum": np.maximum,
}


def reduce(operands: Sequence[Array], op: str, dtype: DType) -> Array:
    """The element-wise `op` of all operands, in their order.

    Floating-point types narrower than 32 bits are added in float32 and rounded once, at the end;
    float32 is added in float32. Integers are added exactly and saturate. NaN wins in minimum and
    maximum. [inferred: NKI leaves the order and the accumulation open]

    Args:
        op: "add", "minimum" or "maximum"
        dtype: the type of the tensors, whose NumPy type the operands have

    Raises:
        NkiValidationError: another `op`, a packed type, booleans to add, or operands that differ in
            shape or type.
    """
    check_reduction(op, dtype)
    _same("srcs", operands, dtype.numpy)
    function = _REDUCTIONS[op]
    wide = np.dtype(np.float32 if dtype.is_float else np.int64)
    if dtype is bool_:
        wide = np.dtype(np.bool_)
    total = operands[0].astype(wide)
    with np.errstate(over="ignore", invalid="ignore"):
        for operand in operands[1:]:
            total = function(total, operand.astype(wide, copy=False))
    return cast(total, dtype)


def check_reduction(op: str, dtype: DType) -> None:
    """Raise NkiValidationError unless a collective can reduce `dtype` by `op`."""
    if op not in _REDUCTIONS:
        raise NkiValidationError(f"op is {op!r}; collectives reduce by {', '.join(_REDUCTIONS)}")
    if dtype.packed is not None or (dtype is bool_ and op == "add"):
        raise NkiValidationError(
            f"srcs are {dtype}; a collective reduces floating-point types and integers by {op}"
        )


def all_reduce(srcs: Sequence[Array], op: str, dtype: DType) -> list[Array]:
    """Every rank receives `op` over the ranks of `src`, in the shape of `src`.

    Raises: as `reduce`.
    """
    return _for_all(reduce(srcs, op, dtype), len(srcs))


def all_gather(srcs: Sequence[Array], dim: int) -> list[Array]:
    """Every rank receives the sources of all, one after the other along `dim`.

    Raises:
        NkiValidationError: the sources differ in shape or type, or have no dimension `dim`.
    """
    _same("srcs", srcs)
    gathered_shape(srcs[0].shape, len(srcs), dim)
    return _for_all(np.concatenate(srcs, axis=dim), len(srcs))


def reduce_scatter(srcs: Sequence[Array], op: str, dtype: DType, dim: int = 0) -> list[Array]:
    """Rank i receives chunk i, along `dim`, of `op` over the ranks of `src`.

    Raises:
        NkiValidationError: as `reduce`, or `dim` does not split into equal chunks.
    """
    scattered_shape(srcs[0].shape, len(srcs), dim)
    total = reduce(srcs, op, dtype)
    return [chunk.copy() for chunk in np.split(total, len(srcs), axis=dim)]


def all_to_all(srcs: Sequence[Array], dim: int = 0) -> list[Array]:
    """Rank i receives chunk i, along `dim`, of every rank's source, in the order of the ranks.

    Raises:
        NkiValidationError: the sources differ, or `dim` does not split into equal chunks.
    """
    _same("srcs", srcs)
    scattered_shape(srcs[0].shape, len(srcs), dim)
    chunks = [np.split(src, len(srcs), axis=dim) for src in srcs]
    return [np.concatenate([sent[rank] for sent in chunks], axis=dim) for rank in range(len(srcs))]


def _for_all(result: Array, ranks: int) -> list[Array]:
    result.flags.writeable = False
    return [result] * ranks


def gathered_shape(shape: tuple[int, ...], ranks: int, dim: int) -> tuple[int, ...]:
    """The shape of `dst` of an all_gather of `shape` over `ranks`."""
    _check_dim(shape, dim)
    return (*shape[:dim], shape[dim] * ranks, *shape[dim + 1 :])


def scattered_shape(shape: tuple[int, ...], ranks: int, dim: int) -> tuple[int, ...]:
    """The shape of one chunk of `shape` over `ranks`: of `dst` of a reduce_scatter."""
    _check_dim(shape, dim)
    if shape[dim] % ranks:
        raise NkiValidationError(
            f"dimension {dim} of srcs, {list(shape)}, is {shape[dim]}; it must be a multiple of "
            f"the {ranks} ranks of the group"
        )
    return (*shape[:dim], shape[dim] // ranks, *shape[dim + 1 :])


def _check_dim(shape: tuple[int, ...], dim: int) -> None:
    if not 0 <= dim < len(shape):
        raise NkiValidationError(
            f"collective_dim is {dim}; srcs, {list(shape)}, have dimensions 0 to {len(shape) - 1}"
        )


def permute(srcs: Sequence[Array], pairs: Sequence[tuple[int, int]]) -> list[Array | None]:
    """Rank `target` receives the source of rank `source`, for each (source, target) of `pairs`.

    Args:
        srcs: of all ranks of the run

    Returns:
        None for a rank that is no target: its `dst` stays as it is. [inferred]

    Raises:
        NkiValidationError: the sources differ, or a rank does not exist or is twice on one side.
    """
    _same("srcs", srcs)
    check_pairs(pairs, len(srcs))
    received: list[Array | None] = [None] * len(srcs)
    for source, target in pairs:
        received[target] = srcs[source].copy()
    return received


def check_pairs(pairs: Sequence[tuple[int, int]], ranks: int) -> None:
    """Raise NkiValidationError unless `pairs` name ranks, each at most once on either side."""
    for side, name in enumerate(("source", "target")):
        seen: set[int] = set()
        for pair in pairs:
            if len(pair) != 2:
                raise NkiValidationError(
                    f"source_target_pairs has {pair}; it must hold (source, target) pairs"
                )
            rank = pair[side]
            if not 0 <= rank < ranks:
                raise NkiValidationError(
                    f"source_target_pairs has {tuple(pair)}; ranks are 0 to {ranks - 1}"
                )
            if rank in seen:
                raise NkiValidationError(
                    f"source_target_pairs has rank {rank} as a {name} twice; once is allowed"
                )
            seen.add(rank)


def permute_implicit(srcs: Sequence[Array]) -> list[Array]:
    """Each rank receives the source of its predecessor in the group; the first, the last one's.

    Raises:
        NkiValidationError: the sources differ in shape or type.
    """
    _same("srcs", srcs)
    return [srcs[rank - 1].copy() for rank in range(len(srcs))]


def permute_implicit_reduce(
    srcs0: Sequence[Array], srcs1: Sequence[Array], op: str, dtype: DType
) -> list[Array]:
    """Each rank receives `op(src0, src1)` of its predecessor in the group.

    Raises:
        NkiValidationError: as `reduce`, or the sources of two ranks differ.
    """
    if len(srcs0) != len(srcs1):
        raise NkiValidationError(
            f"srcs0 has {len(srcs0)} ranks and srcs1 {len(srcs1)}; they must be as many"
        )
    _same("srcs0", srcs0)
    return permute_implicit([reduce(pair, op, dtype) for pair in zip(srcs0, srcs1, strict=True)])


def current_processing_rank(group: Sequence[int], rank: int, iteration: int) -> int:
    """Whose data `rank` holds after `iteration` implicit permutes: its own at first.

    Raises:
        NkiValidationError: `rank` is not in `group`, or `iteration` is negative.
    """
    if rank not in group:
        raise NkiValidationError(f"rank {rank} is not in the replica group {tuple(group)}")
    if iteration < 0:
        raise NkiValidationError(f"iteration_id is {iteration}; it must be at least 0")
    return group[(list(group).index(rank) - iteration) % len(group)]


@dataclass(frozen=True)
class Ragged:
    """The flags of a collective with a count per rank.

    Attributes:
        recv_counts_known: row 2 of the metadata says what is expected; otherwise it is written
        has_rdispls: row 3 says where each rank's elements go; otherwise block r begins at
            `dst.size // ranks * r`
    """

    recv_counts_known: bool = False
    has_rdispls: bool = False

    @property
    def rows(self) -> int:
        return 4 if self.has_rdispls else 3


def all_gather_v(
    srcs: Sequence[Array], dsts: Sequence[Array], metadata: Sequence[Array], ragged: Ragged
) -> list[tuple[Array, Array]]:
    """Every rank receives from each rank as many elements as that one sends.

    Args:
        srcs, dsts: the buffers, taken as flat; `dsts` as they were before
        metadata: uint32 [rows, ranks] or [1, rows, ranks]. Column 0 of row 0: how many elements the
            rank sends to all, of row 1: from which of its source on. Row 2: how many it receives
            from each; row 3 as in `Ragged`.

    Returns:
        `dst` and `metadata` of each rank as they are afterwards; elements of `dst` that nothing is
        received into stay as they were.

    Raises:
        NkiValidationError: a shape or type is wrong, a block lies outside its buffer, blocks of
            `dst` overlap, or an expected count is not what is sent.
    """
    return _ragged(srcs, dsts, metadata, ragged, lambda target: 0)


def all_to_all_v(
    srcs: Sequence[Array], dsts: Sequence[Array], metadata: Sequence[Array], ragged: Ragged
) -> list[tuple[Array, Array]]:
    """Every rank receives from each rank what that one sends to it.

    Args, Returns, Raises: as `all_gather_v`, but column j of rows 0 and 1 is about what the rank
    sends to rank j.
    """
    return _ragged(srcs, dsts, metadata, ragged, lambda target: target)


def _ragged(
    srcs: Sequence[Array],
    dsts: Sequence[Array],
    metadata: Sequence[Array],
    ragged: Ragged,
    column: Callable[[int], int],
) -> list[tuple[Array, Array]]:
    """`column`: where a sender's metadata says what goes to a target."""
    ranks = len(srcs)
    _same("srcs", srcs)
    _same("dsts", dsts, srcs[0].dtype)
    if not ranks == len(dsts) == len(metadata):
        raise NkiValidationError(
            f"{ranks} srcs, {len(dsts)} dsts and {len(metadata)} metadata tensors; each rank has "
            "one of each"
        )
    tables = [_table(rank, table, ragged.rows, ranks) for rank, table in enumerate(metadata)]
    results = []
    for rank in range(ranks):
        blocks = [
            _sent(sender, srcs[sender], tables[sender], column(rank)) for sender in range(ranks)
        ]
        dst = dsts[rank].copy()
        _place(rank, dst.reshape(-1), tables[rank], blocks, ragged)
        after = metadata[rank].copy()
        after.reshape(ragged.rows, ranks)[2] = [block.size for block in blocks]
        results.append((dst, after))
    return results


def _table(rank: int, table: Array, rows: int, ranks: int) -> Array:
    """The metadata of a rank as [rows, ranks] of int64."""
    check_metadata(table.shape, rows, ranks)
    if table.dtype != np.uint32:
        raise NkiValidationError(f"metadata_tensor of rank {rank} is {table.dtype}, not uint32")
    return table.reshape(rows, ranks).astype(np.int64)


def check_metadata(shape: tuple[int, ...], rows: int, ranks: int) -> None:
    """Raise NkiValidationError unless `shape` is that of the metadata for `ranks` ranks."""
    if shape not in ((rows, ranks), (1, rows, ranks)):
        raise NkiValidationError(
            f"metadata_tensor is {list(shape)}; it must be [{rows}, {ranks}], in SBUF "
            f"[1, {rows}, {ranks}]: a row each of send counts, send displacements, receive counts"
            f"{' and receive displacements' if rows == 4 else ''}, a column for each rank"
        )


def _sent(rank: int, src: Array, table: Array, column: int) -> Array:
    count, start = int(table[0, column]), int(table[1, column])
    if start + count > src.size:
        raise NkiValidationError(
            f"metadata_tensor of rank {rank}, column {column}: {count} elements from {start} on; "
            f"srcs have {src.size}"
        )
    return src.reshape(-1)[start : start + count]


def _place(rank: int, dst: Array, table: Array, blocks: list[Array], ragged: Ragged) -> None:
    """Copy the blocks that `rank` receives to where its metadata wants them."""
    ranks = len(blocks)
    end = 0
    starts = [
        int(table[3, sender]) if ragged.has_rdispls else dst.size // ranks * sender
        for sender in range(ranks)
    ]
    for sender in sorted(range(ranks), key=lambda index: (starts[index], blocks[index].size)):
        start, count = starts[sender], blocks[sender].size
        expected = int(table[2, sender])
        if ragged.recv_counts_known and expected != count:
            raise NkiValidationError(
                f"metadata_tensor of rank {rank} expects {expected} elements from rank {sender}, "
                f"which sends {count}"
            )
        room = dst.size if ragged.has_rdispls else start + dst.size // ranks
        if count and (start + count > room or start < end):
            raise NkiValidationError(
                f"dsts of rank {rank}: {count} elements from rank {sender} at {start} do not fit; "
                f"{max(end, start)} to {room} is free there"
            )
        dst[start : start + count] = blocks[sender]
        end = max(end, start + count) if count else end


def _same(name: str, arrays: Sequence[Array], dtype: np.dtype[Any] | None = None) -> None:
    """Raise NkiValidationError unless all arrays have one shape and one type, `dtype` if given."""
    if not arrays:
        raise NkiValidationError(f"{name} is empty; a group has at least one rank")
    first = arrays[0]
    wanted = first.dtype if dtype is None else dtype
    for rank, array in enumerate(arrays):
        if array.shape != first.shape:
            raise NkiValidationError(
                f"{name} of rank {rank} is {list(array.shape)}, of rank 0 {list(first.shape)}; "
                "they must have the same shape"
            )
        if array.dtype != wanted:
            raise NkiValidationError(f"{name} of rank {rank} is {array.dtype}; it must be {wanted}")
