"""The calls that Wan2.2 A14B makes of `qkv_cte`, and what the simulator says of them.

`python -m wantrn.kernels.qkv.wan_calls` prints a table, and as its last line one flat JSON object.
Not for use in a kernel.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nkisim import TensorSpec, World
from nkisim.report import Report
from wantrn.kernels.qkv.kernel import qkv_cte
from wantrn.kernels.qkv.options import LAYER_PER_HEAD, RMS_ALL_HEADS, Options, Sizes
from wantrn.kernels.qkv.plan import Plan
from wantrn.kernels.qkv.planner import best_plan
from wantrn.kernels.qkv.slabs import TILE
from wantrn.kernels.qkv.streamed import qkv_streamed, streamed_fits
from wantrn.kernels.row_mx import SCALE_BYTES, kernel_layout

HIDDEN = 5120
LNC = 2
TARGET = "trn3"


@dataclass(frozen=True)
class Call:
    """One projection on one rank of two cores.

    Attributes:
        name: as in tables
        tokens: of a rank
        options: of the kernel
        norm, rope: what follows the projection
        peer_loads: how often vllm-omni-neuron loads tiles of the weight, by its own formula
            (`reference/wan22-on-neuron.md` 1.3); 0 where that was not derived
    """

    name: str
    tokens: int
    options: Options
    norm: bool
    rope: bool
    peer_loads: int = 0

    def ranks(self) -> int:
        """How many take part."""
        return len(self.options.replica_groups[0]) if self.options.replica_groups else 1


def _self_attention(name: str, tokens: int, tp: int, peer_loads: int) -> Call:
    heads = 40 // tp
    options = Options(heads, heads, replica_groups=(tuple(range(tp)),))
    return Call(name, tokens, options, True, True, peer_loads)


def _cross_attention(name: str, tokens: int, norm: bool, peer_loads: int) -> Call:
    return Call(name, tokens, Options(40, heads_first=True), norm, False, peer_loads)


WAN_CALLS = (
    _self_attention("self_480p_tp4_cp8", 4096, 4, 20),
    _self_attention("self_720p_tp4_cp8", 9452, 4, 50),
    _self_attention("self_720p_tp4_cp4", 18900, 4, 100),
    _self_attention("self_480p_tp8_cp8", 4096, 8, 10),
    _cross_attention("cross_q_480p", 1024, True, 10),
    _cross_attention("cross_q_720p", 2364, True, 20),
    _cross_attention("cross_k", 512, True, 10),
    _cross_attention("cross_v", 512, False, 0),
)


def sizes_of_call(call: Call, hidden: int = HIDDEN, packed: bool = True) -> Sizes:
    """The sizes that a plan is made for; the bias is bf16."""
    o = call.options
    return Sizes(
        tokens=call.tokens,
        hidden=hidden,
        heads=o.heads,
        kv_heads=o.kv_heads,
        head_dim=o.head_dim,
        packed=packed,
        bias_bytes=2,
        norm=call.norm and o.norm == RMS_ALL_HEADS,
        rope=call.rope,
        ranks=call.ranks(),
        heads_first=o.heads_first,
        per_head=call.norm and o.norm != RMS_ALL_HEADS,
        centred=call.norm and o.norm == LAYER_PER_HEAD,
        squared_sums=o.squared_sums,
    )


def arguments_of_call(call: Call, plan: Plan) -> tuple[Any, ...]:
    """The arguments of `qkv_cte` without values; sizes are those of the plan."""
    sizes = plan.sizes
    width, d = sizes.width(), sizes.head_dim

    def row(columns: int, there: bool) -> TensorSpec | None:
        return TensorSpec((1, columns), "float32") if there else None

    if sizes.packed:
        x = TensorSpec((1, call.tokens, sizes.hidden + SCALE_BYTES), "float8_e4m3fn")
        weight = TensorSpec(kernel_layout(width, sizes.hidden), "float8_e4m3fn")
    else:
        x = TensorSpec((1, call.tokens, sizes.hidden), "bfloat16")
        weight = TensorSpec((sizes.hidden, width), "bfloat16")
    angles = TensorSpec((call.tokens, d // 2), "float32") if call.rope else None
    q, kv = (d, d) if sizes.per_head else (sizes.heads * d, sizes.kv_heads * d)
    return (
        x,
        weight,
        call.options,
        plan,
        row(width, sizes.packed),
        TensorSpec((1, width), "bfloat16"),
        row(q, call.norm),
        row(kv, call.norm and sizes.kv_heads > 0),
        angles,
        angles,
    )


def profiled(call: Call, plan: Plan, kernel: Callable[..., Any] = qkv_cte) -> Report:
    """The simulator's report of a call on all of its ranks."""
    world = World(call.ranks(), LNC, TARGET, numerics=False)
    return world.profile(kernel, [arguments_of_call(call, plan)] * call.ranks())


def bound_us(report: Report) -> float:
    """How long the busiest engine of any core works: no schedule of these instructions is faster.

    The Tensor engine does the products, Vector and Scalar what leaves PSUM, and DMA all transfers.
    """
    return max(max(core.busy.values()) for core in report.cores) * report.kernel_us


def weight_tile_loads(report: Report, sizes: Sizes) -> float:
    """How many tiles of the weight (512 rows, or 128 in bf16, of all columns) a core loads."""
    tile = TILE * sizes.word_bytes() * sizes.width()
    (core, *_) = report.schedule.trace.cores
    loads = [
        instruction.reads[0].bytes
        for instruction in core.instructions
        if instruction.op == "dma_copy" and instruction.reads[0].place.name == "weight"
    ]
    return sum(loads) / tile


def figures_of(call: Call, packed: bool = True) -> dict[str, float]:
    """Times in us, ratios and loads of one call."""
    sizes = sizes_of_call(call, packed=packed)
    plan = best_plan(sizes, LNC)
    report = profiled(call, plan)
    found = {
        "us": report.kernel_us,
        "tensor_us": max(core.busy["tensor"] for core in report.cores) * report.kernel_us,
        "time_over_bound": report.kernel_us / bound_us(report),
        "weight_tile_loads": weight_tile_loads(report, sizes),
    }
    if call.peer_loads and packed:
        found["peer_weight_tile_loads"] = call.peer_loads
    if streamed_fits(sizes):
        other = profiled(call, plan, qkv_streamed)
        found["streamed_weight_tile_loads"] = weight_tile_loads(other, sizes)
        found["ours_over_streamed"] = report.kernel_us / other.kernel_us
    return found


def main() -> None:
    """Print the figures of all calls."""
    everything: dict[str, float] = {}
    for packed in (True, False):
        kind = "row_mx" if packed else "bf16"
        for call in WAN_CALLS:
            found = figures_of(call, packed)
            print(f"{kind}.{call.name:20}", "  ".join(f"{k} {v:.4g}" for k, v in found.items()))
            for name, value in found.items():
                everything[f"qkv_cte.{kind}.{call.name}.{name}"] = round(value, 4)
    print(json.dumps(everything))


if __name__ == "__main__":
    main()
