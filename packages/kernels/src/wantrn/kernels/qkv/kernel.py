"""`qkv_cte`: the kernel, and its loop over groups of columns and tiles of tokens."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import jit, nisa, nl
from wantrn.kernels.qkv.caches import Caches
from wantrn.kernels.qkv.finish import finish_rows
from wantrn.kernels.qkv.loads import (
    Group,
    Inputs,
    load_angles,
    load_head_vectors,
    load_tokens,
    load_vectors,
    load_weights,
    open_group,
    token_slot,
)
from wantrn.kernels.qkv.memory import Memory, allocate
from wantrn.kernels.qkv.options import Options, Sizes, sizes_of
from wantrn.kernels.qkv.plan import AHEAD, Plan
from wantrn.kernels.qkv.project import evict, multiply
from wantrn.kernels.qkv.rules import (
    broken_by_angles,
    broken_by_caches,
    broken_by_operands,
    broken_by_options,
    broken_by_shifts,
    broken_by_vectors,
)
from wantrn.kernels.qkv.slabs import (
    TILE,
    TokenTile,
    segments_of,
    slabs_of,
    tile_count,
    tiles_of,
)
from wantrn.kernels.qkv.store import Output, later_heads
from wantrn.kernels.qkv.sums import Sums
from wantrn.kernels.row_mx import NEUTRAL_SCALE


class Core(nl.NKIObject):
    """What one core has and does.

    Attributes:
        loaded_tokens: loads of tiles of tokens so far
        finished: tiles that have been normalised and rotated
        steps: tiles of all groups that have passed since this began
    """

    inputs: Inputs
    plan: Plan
    memory: Memory
    sums: Sums
    output: Output
    tiles: list[TokenTile]
    groups: list[Group]
    loaded_tokens: int = 0
    finished: int = 0
    steps: int = 0

    def run(self) -> None:
        """All groups, one after the other, and what is left to finish."""
        later = self.plan.later_groups
        if later:
            self.sums.begin()
        if self.plan.sizes.per_head:
            load_head_vectors(self.inputs, self.plan.sizes, self.memory)
        if self.plan.sizes.packed:
            nisa.memset(self.memory.neutral.at(0), NEUTRAL_SCALE)
        for group in self.groups:
            self.begin_group(group)
            for tile in self.tiles:
                self.project(group, tile)
                self.prefetch(group, tile)
                self.finish_what_is_due(group)
            if group.number == later - 1 and self.exchanges():
                self.sums.add_up(0, len(self.tiles))
                self.sums.exchange()
                self.sums.make_factors(0, len(self.tiles))
        if later:
            while self.finished < len(self.tiles):
                self.finish()

    def exchanges(self) -> bool:
        """Whether the norm waits for other ranks."""
        return self.plan.sizes.norm and self.plan.sizes.ranks > 1

    # Loads

    def begin_group(self, group: Group) -> None:
        """Load what the first product of a group needs, as far as it is not there."""
        sizes = self.plan.sizes
        if group.number == 0:
            open_group(group, sizes, self.memory)
            # As the weight arrives, as many tiles as PSUM has room for are multiplied by it: their
            # tokens come in between.
            depth = -(-sizes.words() // TILE)
            ahead = min(self.plan.choice.token_slots, AHEAD)
            for part in range(ahead):
                self.load_tokens_upto(part + 1)
                share = depth if part == ahead - 1 else 2 * (part + 1)
                load_weights(group, self.inputs, sizes, min(share, depth))
            load_vectors(group, self.inputs, sizes, self.memory)

    def prefetch(self, group: Group, tile: TokenTile) -> None:
        """Spread the loads of the next group over the tiles of this one."""
        following = group.number + 1
        if following == len(self.groups):
            return
        sizes = self.plan.sizes
        coming = self.groups[following]
        if tile.number == 0:
            open_group(coming, sizes, self.memory)
        depth = -(-sizes.words() // TILE)
        share = depth * (tile.number + 1) // len(self.tiles)
        load_weights(coming, self.inputs, sizes, share)
        if share == depth:
            load_vectors(coming, self.inputs, sizes, self.memory)

    def load_tokens_upto(self, count: int) -> None:
        """Load tiles of tokens, in the order of their use, up to number `count` of all uses."""
        uses = len(self.tiles) * (1 if self.plan.tokens_stay() else len(self.groups))
        while self.loaded_tokens < min(count, uses):
            tile = self.tiles[self.loaded_tokens % len(self.tiles)]
            load_tokens(self.loaded_tokens, tile, self.inputs, self.plan, self.memory)
            self.loaded_tokens += 1

    # Work

    def project(self, group: Group, tile: TokenTile) -> None:
        """The columns of one group for one tile of tokens."""
        sizes, memory = self.plan.sizes, self.memory
        use = tile.number
        if not self.plan.tokens_stay():
            use += group.number * len(self.tiles)
        # the slot of the tile before is free: its products have been issued
        self.load_tokens_upto(use + min(self.plan.choice.token_slots, AHEAD + 1))
        tokens = token_slot(use, self.plan, memory)
        row_scale = memory.row_scales.at(use)[0 : tile.rows, :] if sizes.packed else None
        row = self.output.begin_row(group, tile)
        for slab in group.slabs:
            psum = memory.slab()
            multiply(psum, tokens, group, slab, tile.rows, memory, sizes)
            at = (slab.first - group.first) // sizes.head_dim
            dst = row[:, at : at + slab.width // sizes.head_dim, :]
            evict(dst, psum, row_scale, self.sums.partial(slab, tile), group, slab, memory)
        self.output.end_row(group, tile, row)
        if sizes.squared_sums and group.number == len(self.groups) - 1:
            self.output.store_sums(tile, self.sums.totals(tile))

    def finish_what_is_due(self, group: Group) -> None:
        """Finish the tiles whose time has come: from the last group that completes rows on, or from
        the next one if other ranks are waited for, spread evenly over all groups that are left."""
        start = self.plan.later_groups if self.exchanges() else self.plan.later_groups - 1
        if not self.plan.later_groups or group.number < start:
            return
        self.steps += 1
        count = len(self.groups) - start
        while self.finished < -(-self.steps // count):
            self.finish()

    def finish(self) -> None:
        """Normalise and rotate the next tile."""
        tile, sizes = self.tiles[self.finished], self.plan.sizes
        if sizes.norm and not self.exchanges():
            self.sums.add_up(tile.number, 1)
            self.sums.make_factors(tile.number, 1)
        angles = None
        if sizes.rope:
            angles = load_angles(tile, self.inputs, sizes, self.memory)
        row = self.output.read_back(tile)
        finish_rows(row, angles, tile, self.sums)
        self.output.store_finished(tile)
        self.finished += 1


@jit
def qkv_cte(
    x: Any,
    weight: Any,
    options: Options,
    plan: Plan,
    weight_scales: Any = None,
    bias: Any = None,
    q_gamma: Any = None,
    k_gamma: Any = None,
    cos: Any = None,
    sin: Any = None,
    q_beta: Any = None,
    k_beta: Any = None,
    k_cache: Any = None,
    v_cache: Any = None,
    slot_mapping: Any = None,
) -> Any:
    """Project tokens to Q, K and V; normalise Q and K over all heads of all ranks, and rotate them.

    With `y = x W + bias` in fp32, `q` the Q columns of `y` (K alike) and `inv` the token's
    `rsqrt(mean(q ** 2 over all columns of all ranks) + eps)`::

        q = bf16(q * q_gamma)
        c, s = cos * inv, sin * inv
        q_lo, q_hi = q_lo * c - q_hi * s, q_hi * c + q_lo * s

    A norm of single heads is computed from `q = bf16(q)`, each head by itself; that of
    `LAYER_PER_HEAD` from `q - mean(q)`. Its weight multiplies `cos` and `sin`; where it has a bias,
    or nothing is rotated, `q`, before the rotation.

    With caches, K and V go there when they are finished, and the result is Q alone. Token `s` of
    sequence `b` goes to row `options.cache_starts[b] + s` of cache `b`, or to row
    `slot_mapping[b, s]` of all blocks; no other row changes. No two tokens may have the same slot.

    Args:
        x: `[B, S, H]` bf16, or packed rows `[B, S, H + 4]` float8_e4m3fn; `H` a multiple of 128.
        weight: `[H, I]` bf16, or `[H/4, I, 4]` float8_e4m3fn; columns Q | K | V,
            `I = (heads + 2 * kv_heads) * head_dim`.
        options: see `Options`.
        plan: from `wantrn.kernels.qkv.planner.best_plan`, for these sizes and as many cores; it
            changes the time and no bit of the result.
        weight_scales: `[1, I]` fp32, exactly with FP8.
        bias: `[1, I]` fp32 or bf16.
        q_gamma: `[1, heads * head_dim]` fp32, the weight of the norm, or `[1, head_dim]` if that is
            of single heads; without it there is no norm.
        k_gamma: `[1, kv_heads * head_dim]` or `[1, head_dim]`, with `q_gamma` if there is a K.
        cos, sin: `[S, head_dim / 2]` fp32, one value a rotated pair: channels `j` and `j + D/2` of
            a head. Without them nothing is rotated.
        q_beta, k_beta: `[1, head_dim]` fp32, the bias of a LayerNorm; both or neither if there is a
            K.
        k_cache, v_cache: `[B, rows, kv_heads * head_dim]` bf16, or with `slot_mapping`
            `[blocks, rows of a block, kv_heads * head_dim]`; written in place.
        slot_mapping: `[B, S]` int32, 0 to `blocks * rows of a block - 1`.

    Returns:
        `[B, S, I]` bf16, or `[N + 2 * kv_heads, B, S, D]` with `options.heads_first`; with caches
        only the columns, or heads, of Q. With caches or `options.squared_sums` a tuple: that, both
        caches if there are any, and if asked for `[B, S, segments]` fp32, sums of the squares of a
        token's `y` over the columns of this rank: of Q, and of K and V if there are any.

    Raises:
        AssertionError: a rule of `wantrn.kernels.qkv.rules` is broken, or the plan is for others.
        NkiValidationError: a slot is out of range (in the simulator).
    """
    inputs = Inputs(
        x=x,
        weight=weight,
        weight_scales=weight_scales,
        bias=bias,
        q_gamma=q_gamma,
        k_gamma=k_gamma,
        cos=cos,
        sin=sin,
        q_beta=q_beta,
        k_beta=k_beta,
        k_cache=k_cache,
        v_cache=v_cache,
        slot_mapping=slot_mapping,
    )
    sizes = checked_sizes(inputs, options, plan)
    found = [result_of(x, sizes)]
    sums: Any = None
    if sizes.cached:
        found += [k_cache, v_cache]
    if sizes.squared_sums:
        shape = (x.shape[0], x.shape[1], len(segments_of(sizes)))
        sums = nl.ndarray(shape, nl.float32, buffer=nl.shared_hbm)
        found.append(sums)
    _run(inputs, options, plan, found[0], sums)
    return found[0] if len(found) == 1 else tuple(found)


def _run(inputs: Inputs, options: Options, plan: Plan, out: Any, squared_sums: Any) -> None:
    """This core's part, if there is one."""
    sizes = plan.sizes
    tiles = tiles_of(sizes.tokens, nl.program_id(), nl.num_programs(), plan.choice.stride)
    if not tiles:
        return
    memory = allocate(
        plan,
        nl.float32 if sizes.packed else inputs.x.dtype,
        inputs.weight.dtype,
        nl.float32 if inputs.bias == None else inputs.bias.dtype,
    )
    output = _output(out, plan, tiles, memory)
    if sizes.squared_sums:
        output.squared_sums = squared_sums.flatten_dims(0, 1)
    if sizes.cached:
        output.caches = _caches(inputs, options, memory)
    Core(
        inputs=inputs,
        plan=plan,
        memory=memory,
        sums=Sums(plan=plan, options=options, memory=memory),
        output=output,
        tiles=tiles,
        groups=_groups(plan),
    ).run()


def checked_sizes(inputs: Inputs, options: Options, plan: Plan) -> Sizes:
    """The sizes of a call that keeps all rules."""
    x, bias, slots = inputs.x, inputs.bias, inputs.slot_mapping
    problem = broken_by_options(options) or broken_by_operands(x, inputs.weight, options)
    assert problem == None, problem
    sizes = sizes_of(
        x,
        options,
        bias,
        norm=inputs.q_gamma != None,
        rope=inputs.cos != None,
        shifted=inputs.q_beta != None,
        cached=inputs.k_cache != None,
        mapped=slots != None,
    )
    for problem in (
        broken_by_vectors(sizes, inputs.weight_scales, bias, inputs.q_gamma, inputs.k_gamma),
        broken_by_shifts(sizes, inputs.q_beta, inputs.k_beta),
        broken_by_angles(sizes, x.shape[1], inputs.cos, inputs.sin),
        broken_by_caches(x, options, inputs.k_cache, inputs.v_cache, slots),
    ):
        assert problem == None, problem
    needed = tile_count(sizes.tokens, nl.num_programs())
    assert plan.sizes == sizes, f"the plan is for {plan.sizes}; the call has {sizes}"
    assert plan.tiles == needed, f"the plan is for {plan.tiles} tiles; the call has {needed}"
    there = nl.tile_size.sbuf_fmax_bytes
    assert plan.sbuf_bytes() <= there, f"the plan takes {plan.sbuf_bytes()} bytes; SBUF has {there}"
    return sizes


def result_of(x: Any, sizes: Sizes) -> Any:
    """The tensor of the result."""
    batch, tokens, d = x.shape[0], x.shape[1], sizes.head_dim
    shape = [batch, tokens, sizes.result_heads() * d]
    if sizes.heads_first:
        shape = [sizes.result_heads(), batch, tokens, d]
    return nl.ndarray(shape, nl.bfloat16, buffer=nl.shared_hbm)


def _output(out: Any, plan: Plan, tiles: list[TokenTile], memory: Memory) -> Output:
    sizes = plan.sizes
    found = Output(out=out, plan=plan, memory=memory, later_heads=later_heads(plan))
    if sizes.heads_first:
        found.out = out.flatten_dims(1, 2)
    else:
        found.out = out.flatten_dims(0, 1)
    if plan.later_groups and not plan.choice.held:
        shape = (len(tiles) * TILE, found.later_heads, sizes.head_dim)
        found.waiting = nl.ndarray(shape, nl.bfloat16, buffer=nl.private_hbm)
    return found


def _caches(inputs: Inputs, options: Options, memory: Memory) -> Caches:
    slots = inputs.slot_mapping
    if slots != None:
        slots = slots.flatten_dims(0, 1).expand_dim(1)
    return Caches(
        k=inputs.k_cache,
        v=inputs.v_cache,
        starts=options.cache_starts,
        slots=slots,
        tokens=inputs.x.shape[1],
        memory=memory,
    )


def _groups(plan: Plan) -> list[Group]:
    slabs = slabs_of(plan.sizes)
    found = []
    for number, (start, stop) in enumerate(plan.groups):
        chosen = slabs[start:stop]
        found.append(
            Group(
                number=number,
                slabs=chosen,
                first=chosen[0].first,
                width=sum([slab.width for slab in chosen]),
            )
        )
    return found
