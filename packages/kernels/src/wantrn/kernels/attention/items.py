"""The work of one core in the order in which it begins: groups of queries by their keys."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.attention.options import Options, Sizes
from wantrn.kernels.attention.plan import GROUP, Q_PACK, candidates, first_that_fits
from wantrn.kernels.attention.spans import Chunk, Section, chunks_of, sections_of
from wantrn.kernels.nki import nl

# queries below which a sequence is not shared by two cores
MIN_SHARED_QUERIES = 1024
# the first core's part of a shared sequence: early queries of a causal one read fewer keys
SHARE = 0.5
SHARE_CAUSAL = 0.65


class Shard(nl.NKIObject):
    """Queries `q0:q0 + rows` of sequence `batch`, with all of their keys."""

    batch: int
    q0: int
    rows: int


class Item(nl.NKIObject):
    """One group of queries against one section of keys, and what has been computed of it.

    Attributes:
        shard: which sequence, and which of its queries this core has
        group: number of the group within the shard; `q0`, `rows`: its queries
        section: its keys, of which it reads `chunks`
        kv: number of the load of K and V that it needs; `pack`: of the load of Q
        prev: the item of the same group and the section before, or None
        is_last: no later section follows
        neg_max: `-max(S)` over all sections up to this one, fp32 `[GROUP, 1]`
        alpha: `exp(max_old - max_new)`, by which what `prev` has computed shrinks
        total: sum of the probabilities up to this section
        partial_max, partial_sum: fp32, a column for each instruction that computed one
        columns: how many columns of `partial_max` are in use
        scores, pt: the slots of its chunks
        out: PSUM, this section's probabilities times V
        output_before: what `prev` has left of the output, fp32 `[GROUP, D]`
        is_written: its own output is in HBM for the next section
    """

    shard: Shard
    group: int
    q0: int
    rows: int
    section: Section
    chunks: list[Chunk]
    kv: int
    pack: int
    prev: Any
    is_last: bool
    neg_max: Any = None
    alpha: Any = None
    total: Any = None
    partial_max: Any = None
    partial_sum: Any = None
    columns: int = 0
    scores: list[Any]
    pt: list[Any]
    out: Any = None
    output_before: Any = None
    is_written: bool = False


def shards_of(sizes: Sizes, options: Options, core: int, cores: int) -> list[Shard]:
    """The shards of one core of a rank.

    Whole sequences as far as both cores get as many; an odd one is cut in two if it is long.
    """
    if cores == 1:
        return [Shard(batch=b, q0=0, rows=sizes.s_q) for b in range(sizes.batch)]
    each = sizes.batch // 2
    found = [Shard(batch=core * each + b, q0=0, rows=sizes.s_q) for b in range(each)]
    if sizes.batch % 2 == 0:
        return found
    first = sizes.s_q
    if sizes.s_q >= MIN_SHARED_QUERIES:
        share = SHARE_CAUSAL if options.causal else SHARE
        first = int(sizes.s_q * share) // GROUP * GROUP
    last = sizes.batch - 1
    if core == 0:
        found.append(Shard(batch=last, q0=0, rows=first))
    elif first < sizes.s_q:
        found.append(Shard(batch=last, q0=first, rows=sizes.s_q - first))
    return found


def items_of(shards: list[Shard], sizes: Sizes, options: Options) -> list[Item]:
    """All items: by shard, then section, then group. Groups that read none of a section have none.

    Consecutive sequences that share K and V do not load them again if they have one section.
    """
    sections = sections_of(sizes, options)
    per_kv = sizes.batch // sizes.kv_batch
    found: list[Item] = []
    loaded = (-1, -1)
    kv = -1
    packs = 0
    for shard in shards:
        groups = -(-shard.rows // GROUP)
        latest: list[Any] = [None] * groups
        for index, section in enumerate(sections):
            wanted = (shard.batch // per_kv, index)
            previous_pack = -1
            for group in range(groups):
                q0 = shard.q0 + group * GROUP
                rows = min(GROUP, shard.q0 + shard.rows - q0)
                chunks = chunks_of(section, options, q0, rows, sizes.s_k)
                if not chunks:
                    continue
                if loaded != wanted:
                    kv += 1
                    loaded = wanted
                if group // Q_PACK != previous_pack:
                    packs += 1
                    previous_pack = group // Q_PACK
                item = Item(
                    shard=shard,
                    group=group,
                    q0=q0,
                    rows=rows,
                    section=section,
                    chunks=chunks,
                    kv=kv,
                    pack=packs - 1,
                    prev=latest[group],
                    is_last=True,
                    scores=[],
                    pt=[],
                )
                if latest[group] != None:
                    latest[group].is_last = False
                latest[group] = item
                found.append(item)
    return found


def loads_in_flight(items: list[Item], lag: int) -> int:
    """The most loads of K and V that are in use at once when items stay in use for `lag` more."""
    most = 1
    for number, item in enumerate(items):
        most = max(most, item.kv - items[max(number - lag, 0)].kv + 1)
    return most


def plan_of(sizes: Sizes, items: list[Item], sbuf_bytes: int) -> Any:
    """The plan for these items, or None where none fits.

    One group by itself has nothing to overlap with: it takes the plan that overlaps nothing.
    """

    def in_flight(lag: int) -> int:
        return loads_in_flight(items, lag)

    plans = candidates(sizes, in_flight)
    if len([item for item in items if item.prev == None]) <= 1:
        plans = [plan for plan in plans if plan.pv_lag == 0]
    return first_that_fits(plans, sbuf_bytes)
