"""Which buffers `attention_cte` has, how large they are and how long they live.

Everything about tiles and memory is decided here and nowhere else: the kernel allocates what the
plan says, and whether a call fits is asked of the same plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wantrn.kernels.attention.options import Sizes
from wantrn.kernels.nki import nl
from wantrn.kernels.psum import BANK
from wantrn.kernels.sbuf import PARTITIONS

# queries of a group: one for each partition
GROUP = PARTITIONS
# keys of one matmul of Q and K
K_TILE = BANK
# keys of one matmul of P and V: its contraction
V_TILE = PARTITIONS
# keys that are loaded at once
LARGE_TILE = 2048
# Keys whose scores leave PSUM in one instruction. Two banks at a time, of two such pairs: the fixed
# part of an instruction is 184 cycles of the Vector engine, and with 512 it would be a quarter.
CHUNK = 1024
# groups of queries that are loaded at once
Q_PACK = 8
# banks of PSUM: two chunks of scores, and outputs
SCORE_BANKS = (0, 2)
OUTPUT_BANKS = (4, 5, 6, 7)

# Bytes of each partition for what the plan leaves out: maxima, sums and outputs of the groups under
# way, and bounds, which take 7 KB for 36,864 queries.
SMALL_BYTES = 14 * 1024

# keys up to which there is one section, and keys of a section beyond, in 2-byte types
SECTION_THRESHOLD = 10 * 1024
SECTION = 8 * 1024


@dataclass(frozen=True)
class Plan(nl.NKIObject):
    """The buffers of one core.

    Attributes:
        section: keys that are in SBUF at once, as many as the longest section has
        kv_buffers: sections of K and V that are held
        score_slots: fp32 `[128, CHUNK]`, scores on their way from PSUM to the exponential
        p_slots: `[128, CHUNK]`, probabilities on their way to their transposition
        pt_slots: `[128, CHUNK]`, transposed probabilities on their way to the second matmul
        exp_lag, pv_lag: groups by which the exponential and the second matmul stay behind the first
        itemsize: bytes of an element of Q, K, V and the probabilities
        d: head dimension
    """

    section: int
    kv_buffers: int
    score_slots: int
    p_slots: int
    pt_slots: int
    exp_lag: int
    pv_lag: int
    itemsize: int
    d: int

    def blocks(self) -> int:
        """`V_TILE`s of a section."""
        return -(-self.section // V_TILE)

    def sbuf_bytes(self) -> int:
        """Bytes of each partition that the buffers take, those of single rows left out."""
        kv = self.kv_buffers * (self.section + self.blocks() * self.d) * self.itemsize
        scores = self.score_slots * CHUNK * 4
        probabilities = (self.p_slots + self.pt_slots) * CHUNK * self.itemsize
        queries = 2 * Q_PACK * GROUP * self.itemsize
        return kv + scores + probabilities + queries


def section_lengths(keys: int, itemsize: int) -> list[int]:
    """How many keys each section has: one section, or several above the threshold.

    The unnormalised output makes a round trip through HBM for each section but the last. fp32 has
    half as many keys, for the same bytes.
    """
    narrow = 2 if itemsize == 2 else 1
    if keys <= SECTION_THRESHOLD * narrow // 2:
        return [keys]
    length = SECTION * narrow // 2
    lengths = [length] * (keys // length)
    if keys % length:
        lengths.append(keys % length)
    return lengths


def candidates(sizes: Sizes, loads_in_flight: Callable[[int], int]) -> list[Plan]:
    """Plans from the one that overlaps most to the one that overlaps nothing.

    Few keys make short groups; the transposition by DMA then takes longer than a group, and the
    second matmul stays further behind. The last plan has one group at a time.

    Args:
        loads_in_flight: how many loads of K and V are in use at once, by the lag of the second
            matmul.
    """
    lengths = section_lengths(sizes.s_k, sizes.itemsize)
    if sizes.s_prior:
        lengths = lengths + section_lengths(sizes.s_prior, sizes.itemsize)
    longest = max(lengths)
    chunks = -(-longest // CHUNK)
    deep = 2 if chunks > 4 else 3 if chunks > 2 else 6
    found = []
    for pv_lag in (deep, 2, 0):
        in_use = loads_in_flight(pv_lag)
        for spare in (1, 0):
            found.append(
                Plan(
                    section=longest,
                    kv_buffers=in_use + spare,
                    score_slots=chunks + 2,
                    p_slots=4,
                    pt_slots=(max(pv_lag, 2) - 1) * chunks + 2,
                    exp_lag=min(pv_lag, 1),
                    pv_lag=pv_lag,
                    itemsize=sizes.itemsize,
                    d=sizes.d,
                )
            )
    return found


def first_that_fits(plans: list[Plan], sbuf_bytes: int) -> Any:
    """The first of `plans` that leaves room for the buffers of single rows, or None."""
    for plan in plans:
        if plan.sbuf_bytes() + SMALL_BYTES <= sbuf_bytes:
            return plan
    return None
