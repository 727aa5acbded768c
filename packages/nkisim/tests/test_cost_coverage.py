"""Every instruction that a kernel can issue has a cost, on every generation that has it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import nkisim
import nkisim.collectives as ncc
import nkisim.isa as nisa
import nkisim.language as nl
from nkisim import World, dtypes
from nkisim.errors import NkiError
from nkisim.report import Report
from nkisim.tensor import NkiTensor
from nkisim.timing.collectives import TRIGGERS
from nkisim.timing.cost import Cost
from nkisim.timing.gpsimd import GPSIMD_RULES
from nkisim.timing.matmul import TENSOR_RULES
from nkisim.timing.streams import REGISTER_OPS, STREAM_RULES
from nkisim.timing.transfers import TRANSFER_OPS

TARGETS = {2: "gen2", 3: "gen3", 4: "gen4"}
VECTOR, SCALAR, GPSIMD = nisa.engine.vector, nisa.engine.scalar, nisa.engine.gpsimd
F32, BF16, U32 = nl.float32, nl.bfloat16, nl.uint32


def empty(*shape: int, dtype: Any = F32, buffer: Any = nl.sbuf) -> NkiTensor:
    return nl.ndarray(shape, dtype, buffer)


def full(*shape: int, dtype: Any = F32, buffer: Any = nl.sbuf) -> NkiTensor:
    """A tile that something was written to."""
    made = empty(*shape, dtype=dtype, buffer=buffer)
    nisa.memset(made, 0)
    return made


def stored(*shape: int, dtype: Any = F32, name: str = "") -> NkiTensor:
    """A tensor in HBM that something was written to."""
    made = nl.ndarray(shape, dtype, nl.shared_hbm, name=name)
    nisa.dma_copy(made, full(*shape, dtype=dtype))
    return made


@dataclass(frozen=True)
class Case:
    """One way to issue an instruction.

    Attributes:
        op: its name
        issue: issues it
        since: the first generation that has it
        note: tells several ways apart
    """

    op: str
    issue: Callable[[], Any]
    since: int = 2
    note: str = ""

    def __str__(self) -> str:
        return f"{self.op}{'-' if self.note else ''}{self.note}"


def on(op: str, since: dict[Any, int], issue: Callable[[Any], Any]) -> list[Case]:
    """One case for each engine."""
    return [Case(op, partial(issue, engine), n, engine.name) for engine, n in since.items()]


def tile() -> NkiTensor:
    return full(32, 64)


def column() -> NkiTensor:
    return full(32, 1)


ELEMENTWISE = [
    *on(
        "tensor_copy", {VECTOR: 2, SCALAR: 3, GPSIMD: 2},
        lambda e: nisa.tensor_copy(empty(32, 64), tile(), engine=e),
    ),
    *on("memset", {VECTOR: 2, GPSIMD: 2}, lambda e: nisa.memset(empty(32, 64), 1.0, engine=e)),
    *on(
        "tensor_tensor", {VECTOR: 2, GPSIMD: 2},
        lambda e: nisa.tensor_tensor(empty(32, 64), tile(), tile(), nl.add, engine=e),
    ),
    *on(
        "tensor_scalar", {VECTOR: 2, SCALAR: 3},
        lambda e: nisa.tensor_scalar(empty(32, 64), tile(), nl.multiply, 2.0, engine=e),
    ),
    Case(
        "tensor_scalar",
        lambda: nisa.tensor_scalar(empty(32, 64), tile(), nl.rsqrt, None, engine=GPSIMD),
        note="gpsimd",
    ),
    Case(
        "scalar_tensor_tensor",
        lambda: nisa.scalar_tensor_tensor(
            empty(32, 64), tile(), nl.multiply, 2.0, nl.add, tile()
        ),
    ),
    Case(
        "tensor_copy_predicated",
        lambda: nisa.tensor_copy_predicated(tile(), tile(), full(32, 64, dtype=U32)),
    ),
    Case("reciprocal", lambda: nisa.reciprocal(empty(32, 64), tile())),
    Case(
        "tensor_scalar_reduce",
        lambda: nisa.tensor_scalar_reduce(
            empty(32, 64), tile(), nl.add, 1.0, nl.maximum, empty(32, 1)
        ),
    ),
    Case(
        "tensor_scalar_cumulative",
        lambda: nisa.tensor_scalar_cumulative(empty(32, 64), tile(), nl.multiply, nl.add, 1.0),
    ),
    Case(
        "tensor_tensor_scan",
        lambda: nisa.tensor_tensor_scan(
            empty(32, 64), tile(), tile(), 0.0, nl.multiply, nl.add
        ),
    ),
    Case("tensor_reduce", lambda: nisa.tensor_reduce(empty(32, 1), nl.add, tile(), 1)),
    Case(
        "tensor_partition_reduce",
        lambda: nisa.tensor_partition_reduce(empty(1, 64), nl.add, tile()),
    ),
    Case(
        "select_reduce",
        lambda: nisa.select_reduce(empty(32, 64), full(32, 64, dtype=nl.uint8), tile(), 0.0),
    ),
    Case(
        "range_select",
        lambda: nisa.range_select(
            empty(32, 64), tile(), nl.greater_equal, nl.less, column(), column(),
            reduce_res=empty(32, 1),
        ),
        3,
    ),
    Case(
        "affine_select", lambda: nisa.affine_select(empty(32, 64), [[1, 64]], 1, tile(), 0.0)
    ),
    Case("iota", lambda: nisa.iota(empty(32, 64, dtype=nl.int32), [[1, 64]])),
    Case(
        "nc_stream_shuffle",
        lambda: nisa.nc_stream_shuffle(empty(32, 64), tile(), [0] * 32),
    ),
    Case("bn_stats", lambda: nisa.bn_stats(empty(32, 6), tile())),
    Case("bn_aggr", lambda: nisa.bn_aggr(empty(32, 2), full(32, 6))),
]  # fmt: skip

ACTIVATIONS = [
    Case("activation", lambda: nisa.activation(empty(32, 64), nl.exp, tile())),
    Case(
        "activation",
        lambda: nisa.activation(
            empty(32, 64), nl.exp, tile(), reduce_op=nl.add, reduce_res=empty(32, 1),
            reduce_cmd=nisa.reduce_cmd.reset_reduce,
        ),
        note="reduces",
    ),
    Case(
        "activation_reduce",
        lambda: nisa.activation_reduce(empty(32, 64), nl.exp, tile(), nl.add, empty(32, 1)),
    ),
    Case(
        "activate2",
        lambda: nisa.activate2(empty(32, 64), nl.exp, tile(), 1.0, 0.0, nl.multiply, nl.add),
        4,
    ),
    Case("exponential", lambda: nisa.exponential(empty(32, 64), tile()), 4),
]  # fmt: skip

X4, SCALE = dtypes.float8_e4m3fn_x4, dtypes.uint8
MATRICES = [
    Case(
        "nc_matmul",
        lambda: nisa.nc_matmul(
            empty(64, 128, buffer=nl.psum), full(32, 64, dtype=BF16), full(32, 128, dtype=BF16)
        ),
    ),
    Case(
        "nc_matmul",
        lambda: nisa.nc_matmul(
            empty(64, 128, buffer=nl.psum),
            full(32, 2, 64, dtype=nl.float8_e4m3), full(32, 2, 128, dtype=nl.float8_e4m3),
            perf_mode=nisa.matmul_perf_mode.double_row,
        ),
        3, "double_row",
    ),
    Case(
        "nc_matmul_mx",
        lambda: nisa.nc_matmul_mx(
            empty(64, 128, buffer=nl.psum), full(32, 64, dtype=X4), full(32, 128, dtype=X4),
            full(32, 64, dtype=SCALE), full(32, 128, dtype=SCALE),
        ),
        4,
    ),
    Case("nc_transpose", lambda: nisa.nc_transpose(empty(64, 32, buffer=nl.psum), tile())),
    Case(
        "nc_transpose",
        lambda: nisa.nc_transpose(empty(32, 32), full(32, 32), engine=VECTOR),
        note="vector",
    ),
    Case(
        "quantize_mx",
        lambda: nisa.quantize_mx(
            empty(32, 16, dtype=X4), full(32, 64, dtype=BF16), empty(32, 16, dtype=SCALE)
        ),
        4,
    ),
]  # fmt: skip

SEARCHES = [
    Case("max8", lambda: nisa.max8(empty(32, 8), tile())),
    Case(
        "nc_find_index8",
        lambda: nisa.nc_find_index8(empty(32, 8, dtype=U32), tile(), full(32, 8)),
    ),
    Case(
        "nc_match_replace8",
        lambda: nisa.nc_match_replace8(empty(32, 64), tile(), full(32, 8), 0.0),
    ),
    Case(
        "topk",
        lambda: nisa.topk(
            empty(32, 8, dtype=BF16), empty(32, 8, dtype=U32), full(32, 64, dtype=BF16), 512
        ),
    ),
    Case(
        "local_gather",
        lambda: nisa.local_gather(empty(32, 64), tile(), full(32, 4, dtype=nl.uint16)),
    ),
    Case(
        "nc_n_gather",
        lambda: nisa.nc_n_gather(empty(32, 64), tile(), full(32, 64, dtype=U32)),
    ),
    Case(
        "nonzero_with_count",
        lambda: nisa.nonzero_with_count(empty(32, 65, dtype=nl.int32), tile()),
        3,
    ),
    Case(
        "sequence_bounds",
        lambda: nisa.sequence_bounds(empty(1, 2, 64), full(1, 64)),
    ),
]  # fmt: skip

RANDOM = [
    Case("rng", lambda: nisa.rng(empty(32, 64, dtype=U32))),
    Case("dropout", lambda: nisa.dropout(empty(32, 64), tile(), 0.5)),
    Case("set_rng_seed", lambda: nisa.set_rng_seed(full(1, 1, dtype=U32))),
    Case("rand2", lambda: nisa.rand2(empty(32, 64), 0.0, 1.0), 4),
    *on(
        "rand_set_state", {GPSIMD: 3, VECTOR: 4},
        lambda e: nisa.rand_set_state(full(128, 6 if e is GPSIMD else 24, dtype=U32), engine=e),
    ),
    *on(
        "rand_get_state", {GPSIMD: 3, VECTOR: 4},
        lambda e: nisa.rand_get_state(empty(128, 6 if e is GPSIMD else 24, dtype=U32), engine=e),
    ),
]  # fmt: skip


def gathered() -> None:
    index = full(32, 1, dtype=U32)
    rows = stored(32, 64).ap([[64, 32], [1, 64]], vector_offset=index, indirect_dim=0)
    nisa.dma_copy(empty(32, 64), rows, dge_mode=nisa.dge_mode.swdge)


MOVES = [
    Case("dma_copy", lambda: nisa.dma_copy(empty(32, 64), stored(32, 64))),
    Case(
        "dma_copy",
        lambda: nisa.dma_copy(empty(32, 64), stored(32, 64), dge_mode=nisa.dge_mode.hwdge),
        3, "hwdge",
    ),
    Case("dma_copy", gathered, note="gather"),
    Case("dma_transpose", lambda: nisa.dma_transpose(empty(64, 32), stored(32, 64))),
    Case("dma_compute", lambda: nisa.dma_compute(empty(32, 64), [tile(), tile()], nl.add)),
    Case("register_move", lambda: nisa.register_move(nisa.register_alloc(), 2)),
    Case(
        "register_load",
        lambda: nisa.register_load(nisa.register_alloc(), full(1, 1, dtype=nl.int32)),
    ),
    Case(
        "register_store",
        lambda: nisa.register_store(empty(1, 1, dtype=nl.int32), nisa.register_alloc(1)),
    ),
]  # fmt: skip

ALONE = ELEMENTWISE + ACTIVATIONS + MATRICES + SEARCHES + RANDOM + MOVES


def issued(op: str, issue: Callable[[], Any]) -> Callable[[], NkiTensor]:
    """A kernel that does it, and has something to return."""

    def kernel() -> NkiTensor:
        issue()
        out = nl.ndarray((1, 1), F32, nl.shared_hbm)
        nisa.dma_copy(out, full(1, 1))
        return out

    kernel.__name__ = op
    return kernel


def costs_of(report: Report, op: str) -> list[Cost]:
    """The costs of all `op` on all cores."""
    return [
        charge
        for core, timed in zip(report.schedule.trace.cores, report.schedule.cores, strict=True)
        for instruction, charge in zip(core, timed.costs, strict=True)
        if instruction.op == op
    ]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", ALONE, ids=str)
def test_an_instruction_has_a_cost_wherever_it_exists(case: Case, target: int) -> None:
    kernel = issued(case.op, case.issue)
    if target < case.since:
        with pytest.raises(NkiError, match=f"gen{case.since}"):
            nkisim.profile(kernel, target=TARGETS[target])
        return
    report = nkisim.profile(kernel, target=TARGETS[target])
    costs = costs_of(report, case.op)
    assert costs
    for charge in costs:
        assert 0 < charge.latency_ns < 1e6
        assert charge.busy_ns > 0 or charge.transfer is not None
    # what was profiled can be kept
    assert pickle.loads(pickle.dumps(report)).json() == report.json()


# What meets others


def exchange(which: str, rows: int = 32, **arguments: Any) -> Case:
    def issue() -> None:
        src = stored(32, 64, name="src")
        dst = nl.ndarray((rows, 64), F32, nl.shared_hbm, name="dst")
        getattr(ncc, which)(srcs=[src], dsts=[dst], **arguments)

    return Case(which, issue)


def implicit(op: str, **sources: str) -> Case:
    def issue() -> None:
        given = {name: [[stored(32, 64, name=name)]] for name in sources}
        dst = nl.ndarray((32, 64), F32, nl.shared_hbm, name="dst")
        extra = {"op": nl.add} if op.endswith("reduce") else {}
        getattr(ncc, op)(
            **given, dsts_by_channel=[[dst]], replica_group=GROUP, channel_ids=[0], **extra
        )

    return Case(op, issue)


GROUP = ncc.ReplicaGroup([[0, 1]])
TOGETHER = [
    exchange("all_reduce", replica_group=GROUP, op=nl.add),
    exchange("all_gather", 64, replica_group=GROUP, collective_dim=0),
    exchange("reduce_scatter", 16, replica_group=GROUP, collective_dim=0, op=nl.add),
    exchange("all_to_all", replica_group=GROUP, collective_dim=0),
    exchange("collective_permute", source_target_pairs=[[0, 1], [1, 0]]),
    implicit("collective_permute_implicit", srcs_by_channel="src"),
    implicit("collective_permute_implicit_reduce", srcs0_by_channel="a", srcs1_by_channel="b"),
    Case("rank_id", lambda: ncc.rank_id()),
    Case(
        "collective_permute_implicit_current_processing_rank_id",
        lambda: ncc.collective_permute_implicit_current_processing_rank_id(
            iteration_id=0, replica_group=GROUP, channel_id=0
        ),
    ),
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", TOGETHER, ids=str)
def test_a_collective_has_a_cost_on_every_generation(case: Case, target: int) -> None:
    world = World(2, target=TARGETS[target])
    report = world.profile(issued(case.op, case.issue), [()] * 2)
    costs = costs_of(report, case.op)
    assert len(costs) == 2
    assert all(0 < charge.busy_ns <= charge.latency_ns for charge in costs)


def ragged(op: str) -> Case:
    def issue() -> None:
        src, dst = (nl.ndarray((256,), F32, nl.shared_hbm, name=name) for name in ("src", "dst"))
        counts = nl.ndarray((3, 4), U32, nl.shared_hbm, name="counts")
        if nl.program_id(0) == 0:
            nisa.dma_copy(src.reshape((4, 64)), full(4, 64))
            nisa.dma_copy(counts, full(3, 4, dtype=U32))
        getattr(ncc, op)([src], [dst], (), counts)

    return Case(op, issue)


PAIRED = [
    Case(
        "sendrecv",
        lambda: nisa.sendrecv(tile(), empty(32, 64), 1 - nl.program_id(0), 1 - nl.program_id(0), 0),
        3,
    ),
    Case(
        "sendrecv",
        lambda: nisa.sendrecv(
            tile(), empty(32, 64), 1 - nl.program_id(0), 1 - nl.program_id(0), 0,
            dma_engine=nisa.dma_engine.gpsimd_dma,
        ),
        3, "gpsimd_dma",
    ),
    Case(
        "core_barrier",
        lambda: nisa.core_barrier(nl.ndarray((1, 64), F32, nl.shared_hbm, name="data"), (0, 1)),
        3,
    ),
    ragged("all_gather_v"),
    ragged("all_to_all_v"),
]  # fmt: skip


@pytest.mark.parametrize("target", [3, 4])
@pytest.mark.parametrize("case", PAIRED, ids=str)
def test_what_two_cores_of_a_rank_do_together_has_a_cost(case: Case, target: int) -> None:
    def kernel() -> NkiTensor:
        case.issue()
        out = nl.ndarray((2, 1), F32, nl.shared_hbm)
        nisa.dma_copy(out[nl.ds(nl.program_id(0), 1)], full(1, 1))
        return out

    report = World(4, lnc=2, target=TARGETS[target]).profile(kernel, [()] * 4)
    costs = costs_of(report, case.op)
    assert len(costs) == 8
    assert all(0 < charge.busy_ns <= charge.latency_ns for charge in costs)


# That nothing is left out

# exported beside the instructions; a register by itself is none
OTHERS = {
    "NkiInstruction", "ReplicaGroup", "VirtualRegister", "dge_mode", "dma_engine", "engine",
    "get_nc_sub_version", "get_nc_version", "gpsimd_engine", "matmul_perf_mode", "nc_version",
    "oob_mode", "reduce_cmd", "register_alloc", "rg_partition_op", "scalar_engine",
    "tensor_engine", "unknown_engine", "vector_engine",
}  # fmt: skip


def test_every_instruction_is_tried() -> None:
    exported = (set(nisa.__all__) | set(ncc.__all__)) - OTHERS
    assert {case.op for case in ALONE + TOGETHER + PAIRED} == exported


def test_every_rule_belongs_to_an_instruction() -> None:
    rules = {*STREAM_RULES, *GPSIMD_RULES, *TENSOR_RULES, *TRANSFER_OPS, *REGISTER_OPS, *TRIGGERS}
    exported = set(nisa.__all__) | set(ncc.__all__)
    assert rules - exported == set()
