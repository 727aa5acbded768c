"""PSUM: its banks, and tensors that are placed in them in turn."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nl

BANKS = 8
# of each partition
BANK_BYTES = 2048
# fp32 columns of a bank: those of one matmul, and what one bn_stats takes
BANK = BANK_BYTES // 4


class Banks(nl.NKIObject):
    """Places in PSUM, taken in turns.

    Attributes:
        first: the bank that each begins with
        taken: how many have been
    """

    first: tuple[int, ...]
    taken: int = 0

    def take(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A tensor in the place that was taken longest ago; what it held is gone."""
        bank = self.first[self.taken % len(self.first)]
        self.taken += 1
        return nl.ndarray(shape, dtype, buffer=nl.psum, address=(0, bank * BANK_BYTES))
