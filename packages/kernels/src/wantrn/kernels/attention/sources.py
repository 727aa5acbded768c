"""What the items of a core read: tensors in HBM, and what of them has been loaded."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.attention.bounds import Bounds, broadcast_scalar, make_bounds, pack_bounds
from wantrn.kernels.attention.buffers import Buffers
from wantrn.kernels.attention.items import Item
from wantrn.kernels.attention.loads import load_keys, load_rows_as_columns, load_values
from wantrn.kernels.attention.options import Options, Sizes
from wantrn.kernels.attention.plan import GROUP, Q_PACK
from wantrn.kernels.nki import nl


class Inputs(nl.NKIObject):
    """The tensors of a call, all in HBM; see `attention_cte`."""

    q: Any
    k: Any
    v: Any
    k_prior: Any = None
    v_prior: Any = None
    bounds: Any = None
    sink: Any = None


class Sources(nl.NKIObject):
    """Loads what items need, each part once.

    Attributes:
        items: all items of the core, which tell what is needed next
        cp_offset, used: position of the first query, and keys of the prefix that count: fp32
            `[GROUP, 1]`, or None
        loaded_kv, loaded_q: loads of K and V, and of Q, by their numbers
        bounds, bounded_shard: of the shards so far, and the last of these
        sinks: by sequence, None before they are loaded
    """

    inputs: Inputs
    options: Options
    sizes: Sizes
    buffers: Buffers
    items: list[Item]
    cp_offset: Any = None
    used: Any = None
    loaded_kv: list[Any]
    loaded_q: list[Any]
    bounds: list[Bounds]
    bounded_shard: Any = None
    sinks: list[Any]

    def load_kv(self, number: int) -> None:
        """Load number `number` of K and V, unless it is there."""
        while len(self.loaded_kv) <= number:
            item = self.first_item(len(self.loaded_kv))
            prior = item.section.is_prior
            kv = item.shard.batch // (self.sizes.batch // self.sizes.kv_batch)
            k_src = self.inputs.k_prior if prior else self.inputs.k
            v_src = self.inputs.v_prior if prior else self.inputs.v
            k, v = self.buffers.k.take(), self.buffers.v.take()
            load_keys(k, k_src[kv], item.section, self.options.tp_k)
            load_values(v, v_src[kv], item.section)
            self.loaded_kv.append((k, v))

    def first_item(self, number: int) -> Item:
        """The first item that needs load `number`."""
        for item in self.items:
            if item.kv == number:
                return item
        raise AssertionError("no item needs this load")

    def keys_of(self, item: Item) -> Any:
        """`[D, section]` of the item's section."""
        return self.loaded_kv[item.kv][0]

    def values_of(self, item: Item) -> Any:
        """`[V_TILE, blocks, D]` of the item's section."""
        return self.loaded_kv[item.kv][1]

    def load_queries(self, item: Any) -> None:
        """Load the queries of the item's group and of its neighbours, unless they are there."""
        if item == None or item.pack < len(self.loaded_q):
            return
        start = item.shard.q0 + item.group // Q_PACK * Q_PACK * GROUP
        count = min(Q_PACK * GROUP, item.shard.q0 + item.shard.rows - start)
        slot = self.buffers.q.take()
        src = self.inputs.q[item.shard.batch]
        load_rows_as_columns(slot[:, 0:count], src, start, count, self.options.tp_q)
        self.loaded_q.append(slot)

    def queries_of(self, item: Item) -> Any:
        """`[D, rows]` of the item's group."""
        at = item.group % Q_PACK * GROUP
        return self.loaded_q[item.pack][:, at : at + item.rows]

    def bounds_of(self, item: Item) -> Any:
        """The bounds of the item's shard, or None."""
        if not item.section.bounded:
            return None
        shard = item.shard
        if self.bounded_shard != shard:
            self.bounded_shard = shard
            groups = -(-shard.rows // GROUP)
            made = make_bounds(self.options, shard.q0, groups, self.cp_offset, self.used)
            if self.inputs.bounds != None:
                given = (self.inputs.bounds[0][shard.batch], self.inputs.bounds[1][shard.batch])
                made = pack_bounds(made, given, shard.q0, shard.rows)
            self.bounds.append(made)
        return self.bounds[-1]

    def sink_of(self, item: Item) -> Any:
        """fp32 `[GROUP, 1]`, or None."""
        if self.inputs.sink == None:
            return None
        if self.sinks[item.shard.batch] == None:
            src = self.inputs.sink[item.shard.batch : item.shard.batch + 1, :]
            self.sinks[item.shard.batch] = broadcast_scalar(src)
        return self.sinks[item.shard.batch]
