"""Matmul results in PSUM: overwrite or accumulate, and the products still to be added up.

A chain of matmuls that accumulate into the same elements is one product of a longer contraction.
It is computed when someone looks: one large product takes about half the time of sixteen small
ones on a CPU. The operands are copied when the instruction is issued, so what happens to them
afterwards makes no difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nkisim import dtypes
from nkisim.coverage import Band, Coverage, interval
from nkisim.extents import overlap
from nkisim.tensor import NkiTensor
from nkisim.views import Shape

if TYPE_CHECKING:
    from nkisim.core import Core
    from nkisim.storage import Storage
    from nkisim.trace import Place

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]
Bits = npt.NDArray[np.bool_]

# offset, shape and strides of an fp32 view
View = tuple[int, Shape, Shape]

# rows of contraction that are gathered before they are multiplied, and bytes of one operand
_MAX_ROWS = 2048
_MAX_BYTES = 8 << 20
# of one instruction: 128 partitions of four values each (MX)
_MIN_ROWS = 512


class BufferPool:
    """Buffers for gathered operands, by their number of columns; fresh pages are slow.

    It also knows the tensors at given addresses whose products are still to be computed, and holds
    on to them: a kernel may write to the same bytes through another tensor, or drop such a tensor
    and read its bytes through another one.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[Float32]] = {}
        self._pending: set[Storage] = set()

    def take(self, columns: int) -> Float32:
        free = self._free.get(columns)
        if free:
            return free.pop()
        rows = max(_MIN_ROWS, min(_MAX_ROWS, _MAX_BYTES // (4 * columns)))
        return np.empty((rows, columns), np.float32)

    def give_back(self, buffer: Float32) -> None:
        self._free.setdefault(buffer.shape[1], []).append(buffer)

    def hold(self, storage: Storage) -> None:
        self._pending.add(storage)

    def release(self, storage: Storage) -> None:
        self._pending.discard(storage)

    def pending_at(self, place: Place) -> list[Storage]:
        """Those that have a byte in common with `place`."""
        return [other for other in self._pending if other.place.meets(place)]


class Plan(NamedTuple):
    """What a matmul does with the values in its destination.

    Attributes:
        adds: whether the product is added: for all of it, or for each byte `[P, bytes]` of the
            allocated tensor
        reads: whether all of the old values take part
    """

    adds: Bits | bool
    reads: bool


_OVERWRITES = Plan(False, False)
_ADDS = Plan(True, True)


class _Chain:
    """Products into the same elements, not yet computed."""

    __slots__ = ("access", "adds", "moving", "rows", "stationary", "view")

    def __init__(self, dst: NkiTensor, adds: bool, pool: BufferPool, m: int, n: int) -> None:
        # not `dst` itself, which would keep its storage, and so this chain, alive
        self.view: View = (dst.offset, dst.shape, dst.strides)
        self.access = dst.access()
        self.adds = adds
        self.rows = 0
        self.stationary = pool.take(m)
        self.moving = pool.take(n)

    def has_room(self, rows: int) -> bool:
        return self.rows + rows <= min(len(self.stationary), len(self.moving))

    def append(self, stationary: Array, moving: Array) -> None:
        """Copy operands `[K, M]` and `[K, N]`."""
        end = self.rows + stationary.shape[0]
        self.stationary[self.rows : end] = stationary
        self.moving[self.rows : end] = moving
        self.rows = end

    def compute(self, storage: Storage) -> None:
        """Add the product up, or put it, in the memory of the tensor."""
        product = np.matmul(self.stationary[: self.rows].T, self.moving[: self.rows])
        offset, shape, strides = self.view
        target = NkiTensor(storage, dtypes.float32, shape, strides, offset).array()
        if self.adds:
            target += product.reshape(target.shape)
        else:
            target[...] = product.reshape(target.shape)


class Accumulation:
    """What matmuls have written to one PSUM tensor since it was allocated.

    The hardware keeps a bit for each element that tells whether the next matmul overwrites or
    accumulates; a freshly allocated tensor overwrites.
    """

    __slots__ = ("_chains", "_core", "_last", "_written")

    def __init__(self, core: Core, partitions: int, width: int) -> None:
        self._core = core
        self._written = Coverage(partitions, width)
        # the bytes of the last matmul: a chain asks about the same ones again and again
        self._last: tuple[Any, ...] | None = None
        self._chains: dict[View, _Chain] = {}

    def flush(self, storage: Storage) -> None:
        """Compute what is still to be added up; `storage` is the tensor that owns this."""
        self._flush_others(storage)
        self._flush_own(storage)

    def _flush_others(self, storage: Storage) -> None:
        for other in self._core.buffers.pending_at(storage.place):
            if other is not storage and other.accumulation is not None:
                other.accumulation._flush_own(other)

    def _flush_own(self, storage: Storage) -> None:
        if not self._chains:
            return
        self._core.buffers.release(storage)
        chains, self._chains = self._chains, {}
        for chain in chains.values():
            self._finish(chain, storage)

    def _finish(self, chain: _Chain, storage: Storage) -> None:
        chain.compute(storage)
        self._core.buffers.give_back(chain.stationary)
        self._core.buffers.give_back(chain.moving)

    def plan(self, op: str, dst: NkiTensor, accumulate: bool | None) -> Plan:
        """What the next product into `dst` does with its old values.

        Call it once for each instruction: it also notes that `dst` has been written.
        """
        access = dst.access()
        bytes_ = (access.p0, access.p1, access.lo, access.run, access.steps, access.dynamic)
        if bytes_ == self._last:
            return _OVERWRITES if accumulate is False else _ADDS
        self._last = bytes_
        written = self._written
        if access.dynamic:
            band = (0, written.rows, interval(0, written.width))
        else:
            (band,) = dst.storage.bands(access)
        plan = self._decide(op, dst, accumulate, band)
        written.add(*band)
        return plan

    def _decide(self, op: str, dst: NkiTensor, accumulate: bool | None, band: Band) -> Plan:
        written = self._written
        if accumulate is False:
            return _OVERWRITES
        some, every = written.shares(*band)
        if accumulate is None and not some:
            return _OVERWRITES
        if every:
            return _ADDS
        if accumulate is None:
            return Plan(written.bits().copy(), False)
        return Plan(True, self._report_no_matmul(op, dst))

    def _report_no_matmul(self, op: str, dst: NkiTensor) -> bool:
        """Whether there are values to read all the same."""
        storage = dst.storage
        if storage.was_written(dst.access()) or storage.clobbered_by is not None:
            if self._core.target < 4:
                self._core.violation(
                    "accumulate",
                    f"{op}: accumulate=True onto values in dst {dst!r} that no matmul wrote; "
                    "before gen4 the result is undefined",
                )
            return True
        self._core.violation(
            "accumulate", f"{op}: accumulate=True, but part of dst {dst!r} was never written"
        )
        return False

    def add_product(
        self, dst: NkiTensor, stationary: Array, moving: Array, adds: Bits | bool
    ) -> None:
        """Add, or put, `stationary.T @ moving` into `dst` [M, N]; operands `[K, M]`, `[K, N]`."""
        if dst.dtype is not dtypes.float32 or not isinstance(adds, bool):
            self.add(dst, np.matmul(_single(stationary).T, _single(moving)), adds)
            return
        chain = self._chains.get((dst.offset, dst.shape, dst.strides))
        if chain is None or not adds or not chain.has_room(stationary.shape[0]):
            chain = self._new_chain(dst, adds, stationary.shape[1], moving.shape[1])
        chain.append(stationary, moving)

    def _new_chain(self, dst: NkiTensor, adds: bool, m: int, n: int) -> _Chain:
        storage = dst.storage
        # products for some of these elements may be waiting through another view or tensor
        access = dst.access()
        if any(overlap(access, other.access) for other in self._chains.values()):
            self._flush_own(storage)
        self._flush_others(storage)
        chain = _Chain(dst, adds, self._core.buffers, m, n)
        self._chains[chain.view] = chain
        if storage.place.addressed:
            self._core.buffers.hold(storage)
        return chain

    def add(self, dst: NkiTensor, product: Float32, adds: Bits | bool) -> None:
        """Add, or put, a product into `dst` [M, N] at once, rounded to its dtype."""
        target = dst.array()
        product = product.reshape(target.shape)
        if adds is False:
            target[...] = product
            return
        total = target.astype(np.float32) + product
        if adds is True:
            target[...] = total
            return
        # each element by its own bit, which the table of bytes holds at the element's first byte
        assert not isinstance(adds, bool)
        item = dst.dtype.itemsize
        width = dst.storage.place.bytes_per_partition
        partition, free = divmod(dst.offset * item, width)
        strides = [stride * item for stride in dst.strides]
        strides[0] = width
        table = np.ascontiguousarray(adds)
        bits = np.ndarray(dst.shape, np.bool_, table, partition * width + free, strides)
        target[...] = np.where(bits, total, product)


def _single(operand: Array) -> Float32:
    return operand.astype(np.float32, copy=False)
