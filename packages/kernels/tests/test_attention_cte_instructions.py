"""How `attention_cte` computes: what it issues, in which order, and where it puts it."""

from __future__ import annotations

from typing import Any

import pytest

from nkisim import TensorSpec, World, lint, profile
from nkisim.enums import MemoryRegion
from nkisim.trace import Instruction
from wantrn.kernels.attention import Options, attention_cte
from wantrn.kernels.attention.items import items_of, plan_of, shards_of
from wantrn.kernels.attention.options import Sizes
from wantrn.kernels.attention.plan import SMALL_BYTES

HBM = (MemoryRegion.private_hbm, MemoryRegion.shared_hbm)


def specs(
    batch: int, s_q: int, s_k: int, d: int, kv_batch: int, dtype: str
) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    kv = TensorSpec((kv_batch, s_k, d), dtype)
    return TensorSpec((batch, s_q, d), dtype), kv, kv


def issued(
    s_q: int,
    s_k: int,
    options: Options = Options(),  # noqa: B008
    *,
    batch: int = 1,
    kv_batch: int = 1,
    d: int = 64,
    lnc: int = 1,
    target: str = "gen4",
    **extra: Any,
) -> list[list[Instruction]]:
    """The instructions of each core."""
    arguments = (*specs(batch, s_q, s_k, d, kv_batch, "bfloat16"), options)
    kernel = attention_cte if lnc == 1 else attention_cte[lnc]
    names = ("sink", "cp_offset", "bounds", "prior")
    further = tuple(extra.get(name) for name in names)
    world = World(1, lnc, target, numerics=False)
    _, trace = world.launch(kernel, [arguments + further], fits=False)
    return [core.instructions for core in trace.cores]


def of(instructions: list[Instruction], op: str) -> list[Instruction]:
    return [i for i in instructions if i.op == op]


def alu(instruction: Instruction) -> tuple[Any, Any]:
    details = instruction.details or {}
    return details.get("op0"), details.get("op1")


def first_products(instructions: list[Instruction]) -> list[Instruction]:
    """Of Q and K: into the banks of scores."""
    return [i for i in of(instructions, "nc_matmul") if (i.writes[0].place.address or 0) < 8192]


def second_products(instructions: list[Instruction]) -> list[Instruction]:
    """Of the probabilities and V."""
    return [i for i in of(instructions, "nc_matmul") if (i.writes[0].place.address or 0) >= 8192]


# The online softmax


def test_nothing_is_subtracted() -> None:
    """The shift by the maximum is the bias of the exponential."""
    (instructions,) = issued(300, 11000, Options(scale=0.125))
    assert not [i for i in instructions if "subtract" in alu(i)]
    exponentials = of(instructions, "activation_reduce")
    assert exponentials
    for instruction in exponentials:
        data, bias = instruction.reads[0], instruction.reads[1]
        assert bias.elements == 1 and data.elements == instruction.writes[0].elements
        # the sums come out of the same instruction
        assert instruction.writes[1].elements == 1


def test_the_running_maximum_is_a_minimum() -> None:
    (instructions,) = issued(300, 20000, Options(scale=0.125))
    pairs = of(instructions, "tensor_tensor")
    sections, groups = 3, 3
    assert [alu(i)[0] for i in pairs] == ["minimum"] * groups * (sections - 1)
    # alpha takes the old maximum and the new one as they are stored: one instruction
    alphas = [i for i in of(instructions, "activation") if (i.details or {})["function"] == "exp"]
    assert len(alphas) == groups * (sections - 1)
    for instruction in alphas:
        assert [access.elements for access in instruction.reads] == [1, 1]


def test_one_division_for_each_group() -> None:
    (instructions,) = issued(300, 20000, Options(scale=0.125))
    assert len(of(instructions, "reciprocal")) == 3


@pytest.mark.parametrize(
    ("keys", "sections"), [(1, 1), (10240, 1), (10241, 2), (16384, 2), (16385, 3), (32760, 4)]
)
def test_sections(keys: int, sections: int) -> None:
    """Above 10K keys, 8K at a time; the output makes a round trip through HBM for each but one."""
    (instructions,) = issued(128, keys, Options(scale=0.125))
    copies = of(instructions, "dma_copy")
    partial = MemoryRegion.private_hbm
    stored = [i for i in copies if i.writes[0].place.region is partial and not is_input(i)]
    loaded = [i for i in copies if i.reads[0].place.region is partial and not is_input(i)]
    assert len(stored) == len(loaded) == sections - 1
    merged = of(instructions, "scalar_tensor_tensor")
    assert [alu(i) for i in merged] == [("multiply", "add")] * (sections - 1)


def is_input(instruction: Instruction) -> bool:
    return any(a.place.kind == "input" for a in instruction.reads + instruction.writes)


def test_keys_and_values_are_loaded_once_for_all_queries_and_shared_heads() -> None:
    (instructions,) = issued(2000, 4096, Options(scale=0.125), batch=4, kv_batch=2)
    loads = [i for i in instructions if is_input(i) and i.op in ("dma_copy", "dma_transpose")]
    for name in ("k", "v"):
        read = sum(i.reads[0].bytes for i in loads if i.reads[0].place.name == name)
        assert read == 2 * 4096 * 64 * 2


# Tiles, banks and the pipeline


def test_scores_in_the_first_four_banks_and_outputs_in_the_others() -> None:
    (instructions,) = issued(700, 3000, Options(scale=0.125, tp_out=True))
    banks = set()
    for instruction in of(instructions, "nc_matmul") + of(instructions, "nc_transpose"):
        dst = instruction.writes[0]
        address = dst.place.address
        assert address is not None
        banks.add((address + dst.lo) // 2048)
        # a product lies within one bank
        assert (address + dst.lo) // 2048 == (address + dst.hi - 1) // 2048
    assert banks == set(range(8))
    assert {i.writes[0].elements for i in first_products(instructions)} == {512, 3000 % 512}
    assert {i.reads[0].partitions for i in second_products(instructions)} == {128, 3000 % 128}


def test_three_groups_are_under_way_at_a_time() -> None:
    (instructions,) = issued(128 * 8, 8192, Options(scale=0.125))
    first, second = first_products(instructions), second_products(instructions)
    exponentials = of(instructions, "activation_reduce")
    a, b, c = (
        [part[k : k + len(part) // 8] for k in range(0, len(part), len(part) // 8)]
        for part in (first, exponentials, second)
    )
    for group in range(2, 8):
        scores, probabilities, values = a[group], b[group - 1], c[group - 2]
        span = (scores[0].index, scores[-1].index)
        assert all(span[0] - 40 < i.index < span[1] + 40 for i in probabilities)
        assert sum(span[0] < i.index < span[1] for i in values) > len(values) * 0.8


def test_one_group_is_not_pipelined() -> None:
    (instructions,) = issued(100, 4000, Options(scale=0.125))
    last_score = first_products(instructions)[-1].index
    exponentials = of(instructions, "activation_reduce")
    assert last_score < exponentials[0].index
    assert exponentials[-1].index < second_products(instructions)[0].index


# Masks


def test_causal_skips_what_no_query_reads() -> None:
    options = Options(scale=0.125, causal=True)
    (full,) = issued(8192, 8192, Options(scale=0.125))
    (causal,) = issued(8192, 8192, options)
    assert len(first_products(causal)) <= 0.55 * len(first_products(full))
    assert len(second_products(causal)) <= 0.55 * len(second_products(full))
    assert len(of(causal, "activation_reduce")) <= 0.57 * len(of(full, "activation_reduce"))


def test_the_diagonal_is_one_selection_and_a_window_a_second_one() -> None:
    (causal,) = issued(1024, 1024, Options(scale=0.125, causal=True))
    assert len(of(causal, "affine_select")) == 8
    (window,) = issued(1024, 1024, Options(causal=True, window=300))
    selections = of(window, "affine_select")
    # behind the window of groups 2 to 7 as well
    assert len(selections) > 8
    assert not of(window, "range_select")
    (plain,) = issued(1024, 1024, Options(scale=0.125))
    assert not of(plain, "affine_select")


@pytest.mark.parametrize(
    ("options", "extra"),
    [
        (Options(causal=True, window=128), {}),
        (Options(causal=True, cp="contiguous"), {"cp_offset": TensorSpec((1, 1), "int32")}),
        (Options(), {"bounds": (TensorSpec((1, 512), "int32"),) * 2}),
    ],
    ids=["small window", "slice", "packed"],
)
def test_bounds_are_applied_by_range_select(options: Options, extra: dict[str, Any]) -> None:
    (instructions,) = issued(512, 512, options, **extra)
    assert of(instructions, "range_select")
    assert not of(instructions, "affine_select")
    assert not of(instructions, "tensor_scalar_reduce")


def test_a_contiguous_slice_turns_the_causal_skip_off_and_a_strided_one_does_not() -> None:
    offset = TensorSpec((1, 1), "int32")
    (contiguous,) = issued(1024, 4096, Options(causal=True, cp="contiguous"), cp_offset=offset)
    assert len(first_products(contiguous)) == 8 * 8
    strided = Options(causal=True, cp="strided", cp_degree=4)
    (skipped,) = issued(1024, 4096, strided, cp_offset=offset)
    # group g of rank 3 reads keys up to (128 g + 127) * 4 + 3
    assert len(first_products(skipped)) == sum(range(1, 9))


def test_a_window_reads_its_keys_only() -> None:
    (instructions,) = issued(4096, 4096, Options(causal=True, window=256))
    read = sum(i.writes[0].elements for i in first_products(instructions))
    # 128 queries read 383 keys at most, from a multiple of 128 on
    assert read <= 32 * 512


# Two cores


@pytest.mark.parametrize(
    ("batch", "s_q", "causal", "expected"),
    [
        (4, 300, False, [[(0, 0, 300), (1, 0, 300)], [(2, 0, 300), (3, 0, 300)]]),
        (1, 1023, False, [[(0, 0, 1023)], []]),
        (1, 2048, False, [[(0, 0, 1024)], [(0, 1024, 1024)]]),
        (1, 2048, True, [[(0, 0, 1280)], [(0, 1280, 768)]]),
        (3, 2048, False, [[(0, 0, 2048), (2, 0, 1024)], [(1, 0, 2048), (2, 1024, 1024)]]),
    ],
)
def test_shares_of_two_cores(
    batch: int, s_q: int, causal: bool, expected: list[list[tuple[int, int, int]]]
) -> None:
    sizes = Sizes(batch=batch, kv_batch=batch, s_q=s_q, s_k=s_q, d=64)
    for core in (0, 1):
        shards = shards_of(sizes, Options(causal=causal), core, 2)
        assert [(s.batch, s.q0, s.rows) for s in shards] == expected[core]


def test_items_of_one_group_know_each_other() -> None:
    sizes = Sizes(batch=1, kv_batch=1, s_q=300, s_k=20000, d=64)
    options = Options()
    items = items_of(shards_of(sizes, options, 0, 1), sizes, options)
    for item in items:
        section = item.section.start // 8192
        assert (item.prev is None) == (section == 0)
        assert item.is_last == (section == 2)
        if item.prev is not None:
            assert item.prev.group == item.group


# Size and source


SHAPES = [
    # Wan2.2 at 480p and 720p: self-attention of a whole sequence, and the text's 512 keys
    (1, 32760, 32760, 128),
    (1, 36864, 36864, 128),
    (10, 9450, 512, 128),
    (10, 4095, 512, 128),
    (1, 9216, 9216, 64),
    (1, 10240, 10240, 128),
]


@pytest.mark.parametrize("target", ["trn2", "trn3"])
@pytest.mark.parametrize(("batch", "s_q", "s_k", "d"), SHAPES)
def test_planned_shapes_fit(target: str, batch: int, s_q: int, s_k: int, d: int) -> None:
    """By nkisim's own accounting, which raises otherwise; fewer queries make the same peak."""
    queries = min(s_q, 1500)
    dtypes = ("bfloat16", "float32") if s_k <= 10240 else ("bfloat16",)
    for dtype in dtypes:
        report = profile(
            attention_cte,
            *specs(min(batch, 2), queries, s_k, d, min(batch, 2), dtype),
            Options(scale=0.1),
            target=target,
            numerics=False,
        ).json()
        sizes = Sizes(
            batch=min(batch, 2),
            kv_batch=min(batch, 2),
            s_q=queries,
            s_k=s_k,
            d=d,
            itemsize=2 if dtype == "bfloat16" else 4,
        )
        items = items_of(shards_of(sizes, Options(), 0, 1), sizes, Options())
        plan = plan_of(sizes, items, report["sbuf_limit_bytes"])
        # the plan is what is used, and what it leaves out is small
        assert report["sbuf_peak_bytes"] <= plan.sbuf_bytes() + SMALL_BYTES
        assert report["sbuf_peak_bytes"] <= report["sbuf_limit_bytes"]
        assert report["psum_peak_bytes"] <= report["psum_limit_bytes"]


def test_the_compilers_front_ends_take_it() -> None:
    assert lint(attention_cte) == []
