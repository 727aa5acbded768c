"""Which buffers `adaln_modulate` has and how large they are; the kernel allocates what this says.

A tile is 128 tokens, one for each partition, with all of `H` along it: statistics need whole rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wantrn.kernels.adaln.options import Options, Sizes, keeps_rows, sums_only
from wantrn.kernels.nki import nl
from wantrn.kernels.psum import BANK
from wantrn.kernels.row_mx import SCALE_BYTES
from wantrn.kernels.sbuf import PARTITIONS, Buffer, end_of, placed

# tokens of a tile: one for each partition
TILE = PARTITIONS
# Columns that an instruction takes: two banks of PSUM in fp32. The fixed part of an instruction is
# 60 cycles, of one bank it would be an eighth.
CHUNK = 1024
# fp32 columns of a token beside its statistics: see `wantrn.kernels.adaln.norm`
COLUMNS = 8
# PSUM: two chunks of each kind
LIFT_BANKS = (0, 2)
PRODUCT_BANKS = (4, 6)


@dataclass(frozen=True)
class Shares(nl.NKIObject):
    """Which part of the chunks an engine computes.

    Attributes:
        gpsimd: GpSimd of the sums and the modulation, where Vector computes the rest
        magnitudes: Vector of the search for the largest magnitudes, where Scalar has the rest
    """

    gpsimd: float
    magnitudes: float


@dataclass(frozen=True)
class Plan(nl.NKIObject):
    """The buffers of a core. One that does not fit cannot be made.

    Attributes:
        sizes, options: of the call
        shares: how work is dealt out
        row_slots: tiles that are loaded, computed and stored at once
        modulation_slots: rows of each modulation that are held, spread over all partitions
        buffers: all of SBUF that the kernel uses
        sbuf_limit: bytes of a partition that there are

    Raises:
        ValueError: the buffers do not fit.
    """

    sizes: Sizes
    options: Options
    shares: Shares
    row_slots: int
    modulation_slots: int
    buffers: tuple[Buffer, ...]
    sbuf_limit: int

    def __post_init__(self) -> None:
        if end_of(self.buffers) > self.sbuf_limit:
            raise ValueError(
                f"the buffers take {end_of(self.buffers)} bytes of each partition; SBUF has "
                f"{self.sbuf_limit}"
            )


def chunks_of(hidden: int) -> list[tuple[int, int]]:
    """The columns from and to of each chunk."""
    return [(at, min(at + CHUNK, hidden)) for at in range(0, hidden, CHUNK)]


def shares_of(sizes: Sizes, options: Options, gen4: bool) -> Shares:
    """How the passes over a row are dealt out, so that engines are about equally busy.

    Of chunks there are `steps` passes, which take GpSimd twice as long as Vector; over all columns
    Vector has one for the statistics. With the share `g` of GpSimd, and the share `m` of Vector in
    the search for the largest magnitudes::

        statistics + m + steps * (1 - g) = 2 * steps * g

    The Scalar engine, which from gen4 on takes the rest of that search, has one pass for the norm,
    one for the codes, and one for what Vector multiplies by the gate, about half; `m` makes it as
    busy as the others.
    """
    steps = (1 if sizes.residual else 0) + len(sizes.modulations())
    statistics = 1 if options.norm != "none" else 0
    magnitudes = 1.0 if options.limit else 0.0
    if options.limit and gen4:
        scalar = 2.0 + (0 if keeps_rows(sizes, options) else 1) + (0.5 if sizes.gate else 0.0)
        # of what Vector does, it keeps a share where GpSimd takes part
        kept = 2 / 3 if steps else 1.0
        magnitudes = (scalar - kept * (statistics + steps)) / (1 + kept)
        magnitudes = min(max(magnitudes, 0.0), 1.0)
    gpsimd = (statistics + magnitudes + steps) / (3 * steps) if steps else 0.0
    return Shares(min(gpsimd, 1.0), magnitudes)


def best_plan(sizes: Sizes, options: Options, sbuf_limit: int, gen4: bool) -> Any:
    """The plan that overlaps most of those that fit, or None.

    Rows are held longer than anything else, so that more of them come first.

    Args:
        sbuf_limit: bytes of a partition that there are.
        gen4: the chip is of that generation or later.
    """
    varying = max([rows[0] * rows[1] for _, rows in sizes.modulations()] + [1]) > 1
    shares = shares_of(sizes, options, gen4)
    for row_slots, modulation_slots in ((3, 2), (3, 1), (2, 2), (2, 1), (1, 1)):
        if modulation_slots == 2 and not varying:
            continue
        buffers = _buffers(sizes, options, shares, row_slots, modulation_slots)
        if end_of(buffers) <= sbuf_limit:
            return Plan(sizes, options, shares, row_slots, modulation_slots, buffers, sbuf_limit)
    return None


def _buffers(
    sizes: Sizes, options: Options, shares: Shares, row_slots: int, modulation_slots: int
) -> tuple[Buffer, ...]:
    hidden = sizes.hidden
    row = hidden * sizes.itemsize
    chunks = len(chunks_of(hidden))
    quantizes = options.limit > 0
    normalises = not sums_only(sizes, options) and options.norm != "none"
    computed = quantizes and not keeps_rows(sizes, options)
    side_slots = min(row_slots, 2)
    wanted = [
        Buffer("x", row, row_slots),
        Buffer("residual", row, row_slots if sizes.residual else 0),
        Buffer("work", 4 * min(CHUNK, hidden), 2 if shares.gpsimd else 0),
        Buffer("statistics", 4 * 6 * -(-hidden // BANK), side_slots if normalises else 0),
        Buffer("columns", 4 * COLUMNS, side_slots),
        Buffer("values", 4 * hidden, side_slots if computed else 0),
        Buffer("magnitudes", 2 * min(CHUNK, hidden), 2 if quantizes else 0),
        Buffer("largest", 4 * chunks, side_slots if quantizes else 0),
        Buffer("packed", hidden + SCALE_BYTES, side_slots if quantizes else 0),
    ]
    for name, rows in sizes.modulations():
        one = rows[0] * rows[1] == 1
        wanted.append(Buffer(name, 4 * hidden, 1 if one else modulation_slots))
    return placed(wanted)
