"""Matmul results in PSUM: overwrite or accumulate, and the products still to be added up.

A chain of matmuls that accumulate into the same elements is one product of a longer contraction.
It is computed when someone looks: one large product takes about half the time of sixteen small
ones on a CPU. The operands are copied when the instruction is issued, so what happens to them
afterwards makes no difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nkisim import dtypes
from nkisim.coverage import Coverage, Rectangle
from nkisim.tensor import NkiTensor
from nkisim.views import Shape

if TYPE_CHECKING:
    from nkisim.core import Core
    from nkisim.storage import Storage

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]

# offset, shape and strides of an fp32 view
View = tuple[int, Shape, Shape]

# rows of contraction that are gathered before they are multiplied, and bytes of one operand
_MAX_ROWS = 2048
_MAX_BYTES = 8 << 20


class BufferPool:
    """Buffers for gathered operands, by their number of columns; fresh pages are slow."""

    def __init__(self) -> None:
        self._free: dict[int, list[Float32]] = {}

    def take(self, columns: int) -> Float32:
        free = self._free.get(columns)
        if free:
            return free.pop()
        rows = max(128, min(_MAX_ROWS, _MAX_BYTES // (4 * columns)))
        return np.empty((rows, columns), np.float32)

    def give_back(self, buffer: Float32) -> None:
        self._free.setdefault(buffer.shape[1], []).append(buffer)


class _Chain:
    """Products into the same elements, not yet computed."""

    __slots__ = ("adds", "moving", "rows", "stationary", "view")

    def __init__(self, view: View, adds: bool, pool: BufferPool, m: int, n: int) -> None:
        self.view = view
        self.adds = adds
        self.rows = 0
        self.stationary = pool.take(m)
        self.moving = pool.take(n)

    def compute(self, storage: Storage) -> None:
        rows = self.rows
        if rows == 0:
            return
        product = np.matmul(self.stationary[:rows].T, self.moving[:rows])
        offset, shape, strides = self.view
        target = NkiTensor(storage, dtypes.float32, shape, strides, offset).array()
        if self.adds:
            target += product.reshape(target.shape)
        else:
            target[...] = product.reshape(target.shape)
        self.adds = True
        self.rows = 0


class Accumulation:
    """What matmuls have written to one PSUM tensor since it was allocated.

    The hardware keeps a bit for each element that tells whether the next matmul overwrites or
    accumulates; a freshly allocated tensor overwrites.
    """

    __slots__ = ("_chains", "_core", "_written")

    def __init__(self, core: Core, partitions: int, width: int) -> None:
        self._core = core
        self._written = Coverage(partitions, width)
        self._chains: dict[View, _Chain] = {}

    def flush(self, storage: Storage) -> None:
        """Compute what is still to be added up; `storage` is the tensor that owns this."""
        if not self._chains:
            return
        chains, self._chains = self._chains, {}
        pool = self._core.buffers
        for chain in chains.values():
            chain.compute(storage)
            pool.give_back(chain.stationary)
            pool.give_back(chain.moving)

    def plan(self, op: str, dst: NkiTensor, accumulate: bool | None) -> npt.NDArray[np.bool_] | bool:
        """Whether the next product into `dst` adds, for all of it or for each byte `[P, bytes]`.

        Call it once for each instruction: it also notes that `dst` has been written.
        """
        boxes = dst.storage.boxes(dst.access())
        written = self._written
        decision: npt.NDArray[np.bool_] | bool
        if accumulate is None:
            decision = self._by_bits(boxes)
        else:
            decision = accumulate
            if accumulate and not all(written.covers(*box) for box in boxes):
                self._report_no_matmul(op, dst)
        for box in boxes:
            written.add(*box)
        return decision

    def _by_bits(self, boxes: list[Rectangle]) -> npt.NDArray[np.bool_] | bool:
        written = self._written
        touched = False
        for box in boxes:
            if written.touches(*box):
                touched = True
                break
        if not touched:
            return False
        if all(written.covers(*box) for box in boxes):
            return True
        return written.bits().copy()

    def _report_no_matmul(self, op: str, dst: NkiTensor) -> None:
        if not dst.storage.was_written(dst.access()):
            self._core.violation(
                "accumulate", f"{op}: accumulate=True, but part of dst {dst!r} was never written"
            )
        elif self._core.target < 4:
            self._core.violation(
                "accumulate",
                f"{op}: accumulate=True onto values in dst {dst!r} that no matmul wrote; before "
                "gen4 the result is undefined",
            )

    def add_product(
        self,
        dst: NkiTensor,
        stationary: Array,
        moving: Array,
        decision: npt.NDArray[np.bool_] | bool,
    ) -> None:
        """Add, or put, `stationary.T @ moving` into `dst` [M, N]; operands `[K, M]`, `[K, N]`."""
        if dst.dtype is not dtypes.float32 or not isinstance(decision, bool):
            self.flush(dst.storage)
            product = np.matmul(_single(stationary).T, _single(moving))
            self._store(dst, product, decision)
            return
        key = (dst.offset, dst.shape, dst.strides)
        chain = self._chains.get(key)
        if chain is None or not decision:
            # another view of the same tensor may hold products for some of these elements
            self.flush(dst.storage)
            m, n = stationary.shape[1], moving.shape[1]
            chain = _Chain(key, decision, self._core.buffers, m, n)
            self._chains[key] = chain
        k = stationary.shape[0]
        if chain.rows + k > min(len(chain.stationary), len(chain.moving)):
            chain.compute(dst.storage)
        end = chain.rows + k
        chain.stationary[chain.rows : end] = stationary
        chain.moving[chain.rows : end] = moving
        chain.rows = end

    def _store(
        self, dst: NkiTensor, product: Float32, decision: npt.NDArray[np.bool_] | bool
    ) -> None:
        target = dst.array()
        product = product.reshape(target.shape)
        if decision is False:
            target[...] = product
            return
        total = target.astype(np.float32) + product
        if decision is True:
            target[...] = total
            return
        # each element by its own bit, which the table of bytes holds at the element's first byte
        item = dst.dtype.itemsize
        width = dst.storage.place.bytes_per_partition
        partition, free = divmod(dst.offset * item, width)
        bits = np.ascontiguousarray(decision)
        strides = [stride * item for stride in dst.strides]
        strides[0] = width
        adds = np.ndarray(dst.shape, np.bool_, bits, partition * width + free, strides)
        target[...] = np.where(adds, total, product)


def _single(operand: Array) -> Float32:
    return operand.astype(np.float32, copy=False)
