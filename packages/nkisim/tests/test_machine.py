"""The machine against figures that AWS publishes in another form."""

from dataclasses import FrozenInstanceError

import pytest

from nkisim import machine
from nkisim.enums import Engine, NcVersion

GENERATIONS = tuple(NcVersion)


# Trainium architecture guides: TFLOPS of one core
@pytest.mark.parametrize(
    ("target", "kind", "teraflops"),
    [
        (NcVersion.gen2, "bf16", 92),
        (NcVersion.gen2, "fp32", 23),
        (NcVersion.gen3, "fp8", 158),
        (NcVersion.gen3, "bf16", 79),
        (NcVersion.gen3, "fp32", 20),
        (NcVersion.gen4, "mx", 315),
        (NcVersion.gen4, "bf16", 79),
        (NcVersion.gen4, "fp32", 20),
    ],
)
def test_peaks_are_the_published_ones(target: NcVersion, kind: str, teraflops: float) -> None:
    peak = machine.of(target).peak_flops_per_ns(kind) / 1000
    assert abs(peak - teraflops) < 0.02 * teraflops


# NKI guide to DMA bandwidth: all engines of a core, GB/s
@pytest.mark.parametrize(
    ("target", "rate"), [(NcVersion.gen2, 272), (NcVersion.gen3, 368), (NcVersion.gen4, 528)]
)
def test_dma_engines_add_up_to_the_published_bandwidth(target: NcVersion, rate: float) -> None:
    chosen = machine.of(target)
    assert chosen.dma_engines * chosen.dma_bytes_per_ns == rate


@pytest.mark.parametrize("target", GENERATIONS)
def test_memory_sizes_agree_with_each_other(target: NcVersion) -> None:
    chosen = machine.of(target)
    assert chosen.psum_banks * chosen.psum_bank_bytes == chosen.psum_bytes_per_partition
    assert chosen.psum_bytes_per_partition * chosen.partitions == 2 << 20
    whole = chosen.sbuf_bytes // chosen.partitions
    # the compiler keeps a part of each partition for itself
    assert 0.9 * whole < chosen.sbuf_bytes_per_partition < whole


@pytest.mark.parametrize("target", GENERATIONS)
def test_every_generation_has_its_own_machine(target: NcVersion) -> None:
    chosen = machine.of(target)
    assert chosen.target is target
    assert chosen is machine.of(target)
    with pytest.raises(FrozenInstanceError):
        chosen.tensor_ghz = 3.0  # type: ignore[misc]


def test_clock_of_each_engine() -> None:
    chosen = machine.of(NcVersion.gen3)
    clocks = [chosen.ghz(e) for e in (Engine.tensor, Engine.vector, Engine.scalar, Engine.gpsimd)]
    assert clocks == [2.4, 0.96, 1.2, 1.2]


def test_a_core_shares_hbm_with_the_others() -> None:
    assert machine.of(NcVersion.gen3).hbm_share_bytes_per_ns == 375
    assert machine.of(NcVersion.gen2).hbm_share_bytes_per_ns == 410


def test_mx_matmuls_need_trainium3() -> None:
    with pytest.raises(KeyError):
        machine.of(NcVersion.gen3).peak_flops_per_ns("mx")
