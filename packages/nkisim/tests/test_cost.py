"""Costs of single instructions against figures worked out by hand from AWS's formulas."""

from typing import Any

import pytest
from trace_maker import TRANSFER, Maker, part

from nkisim import machine
from nkisim.dtypes import (
    DType,
    bfloat16,
    float8_e4m3,
    float8_e4m3fn_x4,
    float8_e5m2,
    float16,
    float32,
    int32,
    uint8,
    uint32,
)
from nkisim.enums import Engine, NcVersion
from nkisim.errors import NkiError
from nkisim.timing.collectives import exchange
from nkisim.timing.cost import Cost, cost
from nkisim.trace import Instruction, Meeting

GEN2, GEN3, GEN4 = NcVersion.gen2, NcVersion.gen3, NcVersion.gen4

# cycles of the Vector and Scalar engines before the first element of an instruction: "a static
# overhead approximately 60 cycles" (Trainium architecture guide)
ACCESS = 60
# "a low cost (roughly 64 cycles) instruction" that writes the accumulators, with an access as well
ACCUMULATORS = 64 + ACCESS


def priced(instruction: Instruction, target: NcVersion = GEN3) -> Cost:
    return cost(instruction, machine.of(target))


def cycles(instruction: Instruction, target: NcVersion = GEN3) -> float:
    """Engine cycles that `instruction` keeps its engine busy."""
    return priced(instruction, target).busy_ns * machine.of(target).ghz(instruction.engine)


def streamed(instruction: Instruction, target: NcVersion = GEN3) -> float:
    """What of the cycles AWS's formulas give: all but the first access."""
    return cycles(instruction, target) - ACCESS


def matmul(
    n: int, dtype: DType = bfloat16, k: int = 128, m: int = 128, **details: Any
) -> Instruction:
    maker = Maker()
    rows = 2 if details.get("perf_mode") == "double_row" else 1
    stationary, moving = maker.sbuf(k, rows * m, dtype=dtype), maker.sbuf(k, rows * n, dtype=dtype)
    return maker.matmul(maker.psum(m, n), stationary, moving, **details)


# Tensor engine


def test_a_full_matmul_takes_213_ns_at_79_teraflops() -> None:
    charge = priced(matmul(512))
    assert charge.busy_ns == pytest.approx(213.3, abs=0.1)
    assert charge.flops == 2 * 128 * 128 * 512
    assert charge.flops / charge.busy_ns / 1000 == pytest.approx(78.6, abs=0.1)
    assert charge.ideal_ns == pytest.approx(charge.busy_ns)


@pytest.mark.parametrize(
    ("m", "n", "expected"), [(128, 512, 512), (128, 1, 64), (32, 1, 32), (32, 48, 48)]
)
def test_matmul_is_bound_by_moving_or_by_64_cycles(m: int, n: int, expected: int) -> None:
    assert cycles(matmul(n, m=m)) == pytest.approx(expected)


def test_fp32_matmul_takes_four_passes() -> None:
    assert cycles(matmul(512, float32)) == pytest.approx(2048)
    assert priced(matmul(512, float32)).ideal_ns == pytest.approx(
        priced(matmul(512, float32)).busy_ns
    )


def test_fp32_transpose_takes_two_passes_from_trainium2_on() -> None:
    instruction = matmul(128, float32, is_transpose=True)
    assert cycles(instruction, GEN3) == pytest.approx(256)
    assert cycles(instruction, GEN2) == pytest.approx(512)
    assert priced(instruction).flops == 0


def test_double_row_does_twice_the_work_in_the_same_time() -> None:
    single, double = priced(matmul(512)), priced(matmul(512, float8_e4m3, perf_mode="double_row"))
    assert double.busy_ns == single.busy_ns
    assert double.flops == 2 * single.flops
    assert double.ideal_ns == pytest.approx(double.busy_ns)


def test_mx_matmul_does_four_times_the_work() -> None:
    maker = Maker()
    operands = (
        maker.sbuf(128, 128, dtype=float8_e4m3fn_x4),
        maker.sbuf(128, 512, dtype=float8_e4m3fn_x4),
    )
    scales = maker.sbuf(128, 128, dtype=uint8), maker.sbuf(128, 512, dtype=uint8)
    instruction = maker.issue(
        "nc_matmul_mx", Engine.tensor, (maker.psum(128, 512),), operands + scales
    )
    charge = priced(instruction, GEN4)
    assert charge.busy_ns == pytest.approx(213.3, abs=0.1)
    assert charge.flops / charge.busy_ns / 1000 == pytest.approx(315, rel=0.01)


def test_pe_transpose_of_a_full_tile_takes_53_ns() -> None:
    maker = Maker()
    dst, data = maker.psum(128, 128, dtype=bfloat16), maker.sbuf(128, 128, dtype=bfloat16)
    instruction = maker.issue("nc_transpose", Engine.tensor, (dst,), (data,))
    assert priced(instruction).busy_ns == pytest.approx(53.3, abs=0.1)


# Vector and Scalar


def scale(
    n: int, dtype: DType, target: NcVersion = GEN3, to_psum: bool = False, step: int = 1
) -> float:
    maker = Maker()
    src = maker.sbuf(128, n * step, dtype=dtype)
    dst = maker.psum(128, n, dtype=dtype) if to_psum else maker.sbuf(128, n, dtype=dtype)
    size = dtype.itemsize
    data = part(src, 0, size, ((step * size, n),), inner_step=step * size) if step > 1 else src
    instruction = maker.issue(
        "tensor_scalar", Engine.vector, (dst,), (data,), op0="multiply", op1=None
    )
    return streamed(instruction, target)


def test_vector_scales_16_bit_types_four_times_as_fast() -> None:
    assert scale(4096, bfloat16) == pytest.approx(1024)
    assert scale(4096, float16) == pytest.approx(1024)
    assert scale(4096, float32) == pytest.approx(4096)
    assert scale(4096, bfloat16, GEN2) == pytest.approx(4096)


def test_vector_scales_fp8_fast_on_trainium3_only() -> None:
    assert scale(4096, float8_e5m2, GEN4) == pytest.approx(1024)
    assert scale(4096, float8_e5m2, GEN3) == pytest.approx(4096)


def test_psum_or_gaps_leave_half_of_the_fast_mode() -> None:
    assert scale(1024, bfloat16, to_psum=True) == pytest.approx(512)
    assert scale(1024, bfloat16, step=2) == pytest.approx(512)
    # both: none
    assert scale(1024, bfloat16, to_psum=True, step=2) == pytest.approx(1024)


def test_wide_steps_halve_the_bandwidth() -> None:
    # 16 bytes from one fp32 to the next are still fine
    assert scale(512, float32, step=4) == pytest.approx(512)
    assert scale(512, float32, step=5) == pytest.approx(1024)


def test_short_instructions_stream_for_64_cycles() -> None:
    assert scale(1, float32) == pytest.approx(64)
    assert scale(64, bfloat16) == pytest.approx(64)
    # at four elements a cycle
    assert scale(256, bfloat16) == pytest.approx(64)
    assert scale(260, bfloat16) == pytest.approx(65)


def test_a_single_activation_takes_the_measured_189_ns() -> None:
    # NKI performance guide, Trainium1: from its start until another engine can go on
    chosen = machine.of(GEN2)
    charge = priced(on(Engine.scalar, "activation", 1, 1, reduces=False), GEN2)
    assert charge.latency_ns + chosen.semaphore_ns == pytest.approx(189, abs=0.5)


def two_tensors(
    op: str, dtypes: tuple[DType, DType, DType], target: NcVersion = GEN3, psum: bool = False
) -> float:
    maker = Maker()
    first = maker.psum(128, 512, dtype=dtypes[1]) if psum else maker.sbuf(128, 512, dtype=dtypes[1])
    instruction = maker.issue(
        "tensor_tensor", Engine.vector, (maker.sbuf(128, 512, dtype=dtypes[0]),),
        (first, maker.sbuf(128, 512, dtype=dtypes[2])), op0=op,
    )  # fmt: skip
    return streamed(instruction, target)


def test_two_streams_take_two_passes_unless_narrow_or_from_two_memories() -> None:
    wide, narrow = (float32,) * 3, (bfloat16,) * 3
    assert two_tensors("add", wide) == pytest.approx(1024)
    assert two_tensors("add", wide, psum=True) == pytest.approx(512)
    assert two_tensors("add", narrow) == pytest.approx(512)
    assert two_tensors("maximum", narrow) == pytest.approx(512)
    # on Trainium1 some operators only
    assert two_tensors("add", narrow, GEN2) == pytest.approx(512)
    assert two_tensors("maximum", narrow, GEN2) == pytest.approx(1024)
    assert two_tensors("add", (bfloat16, bfloat16, float32)) == pytest.approx(1024)


def test_reduction_of_bf16_is_twice_as_fast() -> None:
    def reduce(out: DType, into: DType, op: str) -> float:
        maker = Maker()
        dst, data = maker.sbuf(128, 1, dtype=out), maker.sbuf(128, 512, dtype=into)
        return streamed(maker.issue("tensor_reduce", Engine.vector, (dst,), (data,), op0=op))

    assert reduce(bfloat16, bfloat16, "maximum") == pytest.approx(256)
    assert reduce(float32, bfloat16, "maximum") == pytest.approx(512)
    assert reduce(bfloat16, bfloat16, "multiply") == pytest.approx(512)


def on(
    engine: Engine,
    op: str,
    size: int,
    out: int,
    dtype: DType = float32,
    reads: int = 1,
    **details: Any,
) -> Instruction:
    """`op` from tensors with `size` elements a partition to one with `out`."""
    maker = Maker()
    sources = tuple(maker.sbuf(128, size, dtype=dtype) for _ in range(reads))
    return maker.issue(op, engine, (maker.sbuf(128, out, dtype=dtype),), sources, **details)


def fused(size: int, op0: str, op1: str) -> Instruction:
    return on(
        Engine.vector, "scalar_tensor_tensor", size, size, bfloat16, 2, op0=op0, op1=op1
    )  # fmt: skip


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        (on(Engine.scalar, "activation", 512, 512, reduces=False), 512),
        (on(Engine.scalar, "activation", 512, 512, reduces=True), 512 + ACCUMULATORS),
        (on(Engine.scalar, "activation", 1, 1, reduces=True), 64 + ACCUMULATORS),
        (on(Engine.scalar, "activation_reduce", 512, 512), 512 + ACCUMULATORS),
        (
            on(Engine.vector, "tensor_scalar_reduce", 512, 512, op0="add"),
            512 + ACCUMULATORS,
        ),
        (on(Engine.vector, "reciprocal", 512, 512), 8 * 512),
        (on(Engine.vector, "bn_stats", 512, 6), 512),
        (on(Engine.vector, "bn_aggr", 12, 2), 64),
        (on(Engine.vector, "bn_aggr", 48, 2), 13 * 16),
        (on(Engine.vector, "max8", 4096, 8), 4096),
        (on(Engine.vector, "nc_match_replace8", 4096, 4096), 4096),
        (on(Engine.vector, "tensor_tensor_scan", 512, 512, reads=2), 1024),
        (on(Engine.vector, "tensor_copy_predicated", 512, 512, reads=2), 1024),
        (on(Engine.vector, "range_select", 512, 512), 512),
        (fused(512, "subtract", "multiply"), 512),
        (fused(511, "subtract", "multiply"), 1022),
        (fused(512, "multiply", "add"), 1024),
        (on(Engine.vector, "memset", 512, 512, bfloat16, 0, value=0.0), 256),
        (on(Engine.vector, "memset", 512, 512, bfloat16, 0, value=1.0), 512),
        (on(Engine.vector, "memset", 512, 512, float32, 0, value=0.0), 512),
    ],
)  # fmt: skip
def test_published_cycles(instruction: Instruction, expected: float) -> None:
    assert streamed(instruction) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        (on(Engine.gpsimd, "iota", 512, 512, int32, 0), 150 + 512),
        (on(Engine.gpsimd, "affine_select", 512, 512), 150 + 512),
        (on(Engine.gpsimd, "topk", 512, 8, n=512), 150 + 4 * 512 + 8),
        # C = ((28 + 4) / 4) / 1 and ((28 + 16) / 16) / 2
        (on(Engine.gpsimd, "local_gather", 512, 64, float32, per_index=1), 150 + 64 * 8),
        (on(Engine.gpsimd, "local_gather", 512, 64, bfloat16, per_index=4), 150 + 64 * 2.75 / 2),
    ],
)
def test_published_cycles_of_gpsimd(instruction: Instruction, expected: float) -> None:
    # the 150 are its whole overhead
    assert cycles(instruction) == pytest.approx(expected)


def test_trainium3_instructions_at_four_elements_a_cycle() -> None:
    for op in ("exponential", "quantize_mx", "rand2"):
        assert streamed(on(Engine.vector, op, 1024, 1024, bfloat16), GEN4) == pytest.approx(256)


def test_scalar_engine_of_trainium3_copies_two_elements_a_cycle() -> None:
    instruction = on(Engine.scalar, "tensor_copy", 1024, 1024, bfloat16)
    assert streamed(instruction, GEN4) == pytest.approx(512)
    assert streamed(instruction, GEN3) == pytest.approx(1024)


def test_a_run_time_address_takes_600_cycles_at_least() -> None:
    maker = Maker()
    src, dst = maker.sbuf(128, 4096), maker.sbuf(128, 64)
    instruction = maker.copy(dst, part(src, 0, 256, dynamic=True))
    assert cycles(instruction) == pytest.approx(600)


def test_latency_adds_the_pipeline() -> None:
    charge = priced(on(Engine.vector, "tensor_copy", 512, 512))
    assert charge.latency_ns - charge.busy_ns == pytest.approx(100 / 0.96)


def test_an_unknown_instruction_is_named() -> None:
    with pytest.raises(NkiError, match="no cost is known for transmogrify on the vector engine"):
        priced(on(Engine.vector, "transmogrify", 8, 8))


def test_a_missing_detail_is_named() -> None:
    with pytest.raises(NkiError, match=r"tensor_tensor.*missing: 'op0'"):
        priced(on(Engine.vector, "tensor_tensor", 8, 8, reads=2))


def test_an_instruction_on_an_engine_that_cannot_run_it_has_no_cost() -> None:
    with pytest.raises(NkiError, match="bn_stats on the gpsimd engine"):
        priced(on(Engine.gpsimd, "bn_stats", 8, 6))


def test_a_barrier_on_any_engine_is_one_issue() -> None:
    for engine in (Engine.tensor, Engine.vector, Engine.gpsimd, Engine.sync):
        assert cycles(Maker().issue("core_barrier", engine)) == pytest.approx(64)


# Transfers


def load(
    partitions: int, run: int, dtype: DType = bfloat16, runs: int = 1, target: NcVersion = GEN3,
    op: str = "dma_copy", **details: Any,
) -> Cost:  # fmt: skip
    """HBM to SBUF, `runs` runs of `run` bytes in each partition that lie apart in HBM."""
    maker = Maker()
    src = maker.hbm(partitions * runs * run // dtype.itemsize * 2, dtype=dtype)
    dst = maker.sbuf(partitions, runs * run // dtype.itemsize, dtype=dtype)
    source = part(src, 0, run, ((2 * run, runs * partitions),))
    return priced(maker.issue(op, Engine.dma, (dst,), (source,), **(TRANSFER | details)), target)


def test_128_times_4_kib_move_at_the_full_rate() -> None:
    moved = load(128, 4096).transfer
    assert moved is not None
    assert moved.engine_ns == pytest.approx(512 * 1024 / 368, rel=1e-6)
    assert moved.alone_ns == pytest.approx(1300 + 1424.7, abs=1)
    assert (moved.engines, moved.descriptors) == (16, 128)
    assert (moved.read, moved.written) == (512 * 1024, 0)


def test_the_profiled_transfer_of_the_dma_guide() -> None:
    # [4, 4096] bf16 on one engine of Trainium2: 1416 ns
    moved = load(4, 8192).transfer
    assert moved is not None
    assert moved.engines == 1
    assert moved.engine_ns == pytest.approx(1416, rel=0.02)


@pytest.mark.parametrize(
    ("run", "low", "high"), [(64, 0, 0.15), (256, 0.2, 0.5), (2048, 0.85, 0.97), (4096, 0.999, 1)]
)
def test_small_descriptors_waste_bandwidth(run: int, low: float, high: float) -> None:
    # the DMA guide: severely overhead-bound below 256 B, near the peak at 2 KiB, saturated at 4 KiB
    moved = load(128, run).transfer
    assert moved is not None
    assert low <= moved.best_ns / moved.engine_ns <= high + 1e-9


def test_few_partitions_use_few_engines() -> None:
    for partitions, engines in [(1, 1), (8, 1), (9, 2), (64, 8), (128, 16)]:
        moved = load(partitions, 4096).transfer
        assert moved is not None
        assert moved.engines == engines
    # eight rows on one engine take as long as 128 on sixteen
    few, many = load(8, 4096).transfer, load(128, 4096).transfer
    assert few is not None and many is not None
    assert few.engine_ns == pytest.approx(many.engine_ns)


def test_partitions_choose_the_engines() -> None:
    maker = Maker()
    dst = maker.sbuf(128, 1024, dtype=bfloat16)
    row = part(dst, 0, 2048, partitions=(100, 101))
    moved = priced(maker.load(row, maker.hbm(1024, dtype=bfloat16))).transfer
    assert moved is not None
    assert (moved.first, moved.engines) == (12, 1)


def test_hbm_to_hbm_uses_all_engines() -> None:
    maker = Maker()
    moved = priced(maker.load(maker.hbm(1 << 20), maker.hbm(1 << 20))).transfer
    assert moved is not None
    assert moved.engines == 16
    assert (moved.read, moved.written) == (4 << 20, 4 << 20)
    assert moved.engine_ns == pytest.approx((4 << 20) / 368, rel=0.01)


def test_a_cast_counts_the_wider_side() -> None:
    maker = Maker()
    moved = priced(maker.load(maker.sbuf(128, 2048), maker.hbm(128, 2048, dtype=bfloat16))).transfer
    assert moved is not None
    assert moved.bytes == 128 * 2048 * 4
    assert moved.read == 128 * 2048 * 2
    assert moved.descriptors == 128


def test_transposes_reach_90_and_50_percent() -> None:
    def reached(from_hbm: bool) -> float:
        maker = Maker()
        dst = maker.sbuf(128, 512, dtype=bfloat16)
        data = (
            maker.hbm(512, 128, dtype=bfloat16)
            if from_hbm
            else maker.sbuf(128, 512, dtype=bfloat16)
        )
        moved = priced(
            maker.issue("dma_transpose", Engine.dma, (dst,), (data,), **TRANSFER)
        ).transfer
        assert moved is not None
        return moved.best_ns / moved.engine_ns

    assert reached(from_hbm=True) == pytest.approx(0.9)
    assert reached(from_hbm=False) == pytest.approx(0.5)


def test_who_writes_the_descriptors() -> None:
    def generation(**details: Any) -> tuple[str, float]:
        moved = load(128, 1024, **details).transfer
        assert moved is not None
        return moved.dge, moved.dge_ns

    assert generation() == ("none", 0)
    assert generation(dge="hwdge") == ("hwdge", 600)
    assert generation(dge="unknown") == ("none", 0)
    software = ("swdge", (150 + 128 / 8) / 1.2)
    assert generation(dge="unknown", indirect=True) == pytest.approx(software)
    assert generation(dge="swdge") == pytest.approx(software)


def test_adding_on_the_way_halves_the_bandwidth_before_trainium3() -> None:
    plain, added = load(128, 8192).transfer, load(128, 8192, op="dma_compute").transfer
    assert plain is not None and added is not None
    assert added.engine_ns == pytest.approx(2 * plain.engine_ns)
    plain = load(128, 8192, target=GEN4).transfer
    added = load(128, 8192, target=GEN4, op="dma_compute").transfer
    assert plain is not None and added is not None
    assert added.engine_ns == pytest.approx(plain.engine_ns)


def test_a_gather_counts_the_rows_only() -> None:
    maker = Maker()
    table, index = maker.hbm(1024, 512, dtype=bfloat16), maker.sbuf(128, 1, dtype=uint32)
    rows = part(table, 0, 1024, ((1024, 128),), dynamic=True)
    dst = maker.sbuf(128, 512, dtype=bfloat16)
    instruction = maker.issue(
        "dma_copy", Engine.dma, (dst,), (rows, index), dge="unknown", indirect=True, queue=None
    )
    moved = priced(instruction).transfer
    assert moved is not None
    assert (moved.read, moved.descriptors, moved.dge) == (128 * 1024, 128, "swdge")


def test_an_index_is_no_source_of_a_sum() -> None:
    maker = Maker()
    table, rows = maker.hbm(1024, 512), maker.sbuf(128, 512)
    index = maker.sbuf(128, 1, dtype=uint32)
    target = part(table, 0, 2048, ((2048, 128),), dynamic=True)
    details = TRANSFER | {"indirect": True, "dge": "unknown"}
    instruction = maker.issue(
        "dma_compute", Engine.dma, (target,), (target, rows, index), **details
    )
    moved = priced(instruction).transfer
    assert moved is not None
    assert moved.descriptors == 2 * 128
    assert (moved.read, moved.written) == (128 * 2048, 128 * 2048)


# Collectives


def meeting(kind: str, ranks: int, size: int, cores: tuple[int, ...] | None = None) -> Meeting:
    return Meeting(kind, ("x",), cores or tuple(range(ranks)), ranks, size)


def test_small_all_reduce_is_two_steps_of_latency() -> None:
    takes = exchange(meeting("all_reduce", 4, 4096), 1, machine.of(GEN4))
    assert takes.latency_ns == 2 * 1000
    # every rank sends 3/4 of it twice, as fast as its DMA engines read
    assert takes.moved == 2 * 3072
    assert takes.moving_ns == pytest.approx(2 * 3072 / 528)


def test_all_reduce_is_reduce_scatter_and_all_gather() -> None:
    chosen = machine.of(GEN3)
    for size in (1 << 12, 1 << 22, 1 << 28):
        whole = exchange(meeting("all_reduce", 8, size), 1, chosen)
        scatter = exchange(meeting("reduce_scatter", 8, size), 1, chosen)
        gather = exchange(meeting("all_gather", 8, size // 8), 1, chosen)
        assert whole.latency_ns == scatter.latency_ns + gather.latency_ns
        assert whole.moving_ns == pytest.approx(scatter.moving_ns + gather.moving_ns)


def test_steps_follow_the_size() -> None:
    def steps(size: int, ranks: int = 8) -> float:
        return (
            exchange(meeting("reduce_scatter", ranks, size), 1, machine.of(GEN3)).latency_ns / 1000
        )

    assert steps(1 << 19) == 1
    assert steps(1 << 22) == 3
    assert steps(1 << 27) == 7
    # recursive doubling needs a power of two
    assert steps(1 << 22, ranks=6) == 5


def test_chips_and_nodes_are_further_apart() -> None:
    chosen = machine.of(GEN3)
    near = exchange(meeting("collective_permute", 2, 1 << 20, (0, 1)), 1, chosen)
    chips = exchange(meeting("collective_permute", 2, 1 << 20, (0, 8)), 1, chosen)
    nodes = exchange(meeting("collective_permute", 2, 1 << 20, (0, 128)), 1, chosen)
    assert near.latency_ns < chips.latency_ns < nodes.latency_ns
    assert near.moving_ns < chips.moving_ns < nodes.moving_ns
    assert chips.moving_ns == pytest.approx((1 << 20) / (1280 / 8))


def test_two_cores_of_a_rank_move_twice_as_fast() -> None:
    chosen = machine.of(GEN4)
    one = exchange(meeting("all_gather", 4, 1 << 24), 1, chosen)
    two = exchange(meeting("all_gather", 4, 1 << 24, tuple(range(8))), 2, chosen)
    assert one.moving_ns == pytest.approx(2 * two.moving_ns)


def test_gpsimd_carries_a_sendrecv_at_its_own_rate() -> None:
    chosen = machine.of(GEN3)
    between = meeting("sendrecv", 1, 1 << 16, (0, 1))
    assert exchange(between, 2, chosen, by_gpsimd=True).moving_ns == pytest.approx((1 << 16) / 153)
    assert exchange(between, 2, chosen).moving_ns == pytest.approx((1 << 16) / 368)


def test_an_unknown_meeting_is_named() -> None:
    with pytest.raises(NkiError, match="'tea_party'"):
        exchange(meeting("tea_party", 2, 8), 1, machine.of(GEN3))
