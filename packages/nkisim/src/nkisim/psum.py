"""Matmul results in PSUM: overwrite or accumulate, and the products still to be added up.

A chain of matmuls that accumulate into the same elements is one product of a longer contraction.
It is computed when someone looks: one large product takes about half the time of sixteen small
ones on a CPU. The operands are gathered when the instruction is issued, so what happens to them
afterwards makes no difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nkisim import dtypes
from nkisim.coverage import Band, Coverage, interval
from nkisim.extents import overlap
from nkisim.gathered import Gathered, GatheredPool, Operand
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


class Products:
    """Of one core: what its chains of matmuls gather into, and those that others may ask for.

    Attributes:
        pool: of gathered operands
        pending: the tensors at given addresses whose products are still to be computed. A kernel
            may write to the same bytes through another tensor, or drop such a tensor and read its
            bytes through another one.
    """

    def __init__(self) -> None:
        self.pool = GatheredPool()
        self.pending: set[Storage] = set()

    def pending_at(self, place: Place) -> list[Storage]:
        """Those that have a byte in common with `place`."""
        return [other for other in self.pending if other.place.meets(place)]


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

    __slots__ = ("access", "adds", "moving", "stationary", "view")

    def __init__(self, dst: NkiTensor, adds: bool, stationary: Gathered, moving: Gathered) -> None:
        # not `dst` itself, which would keep its storage, and so this chain, alive
        self.view: View = (dst.offset, dst.shape, dst.strides)
        self.access = dst.access()
        self.adds = adds
        self.stationary = stationary
        self.moving = moving

    def has_room(self, stationary: Operand, moving: Operand) -> bool:
        return self.stationary.has_room(stationary) and self.moving.has_room(moving)

    def append(self, stationary: Operand, moving: Operand) -> None:
        self.stationary.append(stationary)
        self.moving.append(moving)

    def compute(self, storage: Storage) -> None:
        """Add the product up, or put it, in the memory of the tensor."""
        left, right = self.stationary.values().T, self.moving.values()
        offset, shape, strides = self.view
        target = NkiTensor(storage, dtypes.float32, shape, strides, offset).array()
        if self.adds:
            target += np.matmul(left, right).reshape(target.shape)
        elif target.ndim == 2:
            np.matmul(left, right, target)
        else:
            target[...] = np.matmul(left, right).reshape(target.shape)


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
        if self._core.products.pending:
            self._flush_others(storage)
        self._flush_own(storage)

    def _flush_others(self, storage: Storage) -> None:
        for other in self._core.products.pending_at(storage.place):
            if other is not storage and other.accumulation is not None:
                other.accumulation._flush_own(other)

    def _flush_own(self, storage: Storage) -> None:
        if not self._chains:
            return
        products = self._core.products
        products.pending.discard(storage)
        chains, self._chains = self._chains, {}
        for chain in chains.values():
            chain.compute(storage)
            products.pool.give_back(chain.stationary)
            products.pool.give_back(chain.moving)

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
        storage.settle()
        return False

    def add_product(
        self, dst: NkiTensor, stationary: Operand, moving: Operand, adds: Bits | bool
    ) -> None:
        """Add, or put, `stationary.T @ moving` into `dst` [M, N]; operands `[K, M]`, `[K, N]`."""
        if dst.dtype is not dtypes.float32 or not isinstance(adds, bool):
            left, right = _single(stationary.values()), _single(moving.values())
            self.add(dst, np.matmul(left.T, right), adds)
            return
        chain = self._chains.get((dst.offset, dst.shape, dst.strides))
        if chain is None or not adds or not chain.has_room(stationary, moving):
            chain = self._new_chain(dst, adds, stationary, moving)
        chain.append(stationary, moving)

    def _new_chain(
        self, dst: NkiTensor, adds: bool, stationary: Operand, moving: Operand
    ) -> _Chain:
        storage = dst.storage
        # products for some of these elements may be waiting through another view or tensor
        access = dst.access()
        if any(overlap(access, other.access) for other in self._chains.values()):
            self._flush_own(storage)
        products = self._core.products
        if products.pending:
            self._flush_others(storage)
        chain = _Chain(dst, adds, products.pool.take(stationary), products.pool.take(moving))
        self._chains[chain.view] = chain
        if storage.place.addressed:
            products.pending.add(storage)
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
