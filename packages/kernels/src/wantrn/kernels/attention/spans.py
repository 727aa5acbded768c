"""Which keys a group of queries has anything to do with, cut into what one instruction takes."""

from __future__ import annotations

from dataclasses import dataclass

from wantrn.kernels.attention.options import SMALL_WINDOW, Options, Sizes
from wantrn.kernels.attention.plan import CHUNK, V_TILE, section_lengths
from wantrn.kernels.nki import nl


@dataclass(frozen=True)
class Section(nl.NKIObject):
    """Keys `start:start + length` of K and V, or of the prefix; in SBUF at once.

    `bounded`: which of them a query reads is told by bounds for each row, which need not be known
    before the kernel runs.
    """

    is_prior: bool
    start: int
    length: int
    bounded: bool


@dataclass(frozen=True)
class Chunk(nl.NKIObject):
    """Keys `lo:hi` of a section; `lo` is a multiple of `V_TILE`."""

    lo: int
    hi: int


@dataclass(frozen=True)
class Piece(nl.NKIObject):
    """Keys `lo:hi` of a section with one kind of mask.

    `causal`: some query comes before some of these keys. `window`: some query has left some behind.
    """

    lo: int
    hi: int
    causal: bool
    window: bool


def sections_of(sizes: Sizes, options: Options) -> list[Section]:
    """All sections, those of the prefix first."""
    bounded = options.cp != "" or sizes.packed or 0 < options.window <= SMALL_WINDOW
    found = []
    start = 0
    if sizes.s_prior:
        for length in section_lengths(sizes.s_prior, sizes.itemsize):
            found.append(Section(is_prior=True, start=start, length=length, bounded=True))
            start += length
    start = 0
    for length in section_lengths(sizes.s_k, sizes.itemsize):
        found.append(Section(is_prior=False, start=start, length=length, bounded=bounded))
        start += length
    return found


def key_span(options: Options, q0: int, rows: int, keys: int) -> tuple[int, int]:
    """The first key and the last one (exclusive) that queries `q0:q0 + rows` can read.

    It holds for every rank: with contiguous slices of a longer sequence, whose offset is not known,
    that is all keys; with strided ones, those of the rank that reads most.
    """
    if not options.causal or options.cp == "contiguous":
        return 0, keys
    degree = options.cp_degree if options.cp == "strided" else 1
    last = min(keys, (q0 + rows) * degree)
    first = max(0, q0 * degree - options.window + 1) if options.window else 0
    return first, last


def chunks_of(section: Section, options: Options, q0: int, rows: int, keys: int) -> list[Chunk]:
    """The keys of a section that queries `q0:q0 + rows` can read; empty if there are none."""
    first, last = (0, section.length)
    if not section.is_prior:
        first, last = key_span(options, q0, rows, keys)
        first, last = first - section.start, last - section.start
    lo = max(first, 0) // V_TILE * V_TILE
    hi = min(last, section.length)
    return [Chunk(lo=at, hi=min(at + CHUNK, hi)) for at in range(lo, hi, CHUNK)]


def pieces_of(section: Section, chunk: Chunk, options: Options, q0: int, rows: int) -> list[Piece]:
    """A chunk by the masks that its keys need, where these are known beforehand."""
    if not options.causal:
        return [Piece(lo=chunk.lo, hi=chunk.hi, causal=False, window=False)]
    # Query q0 reads keys up to q0, and the last query those from q0 + rows - window on.
    diagonal = min(max(q0 - section.start, chunk.lo), chunk.hi)
    edge = chunk.lo
    if options.window:
        edge = min(max(q0 + rows - options.window - section.start, chunk.lo), chunk.hi)
    points = [chunk.lo, min(diagonal, edge), max(diagonal, edge), chunk.hi]
    found = []
    for at in range(3):
        lo, hi = points[at], points[at + 1]
        if lo < hi:
            found.append(Piece(lo=lo, hi=hi, causal=lo >= diagonal, window=hi <= edge))
    return found
