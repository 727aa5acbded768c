"""The hardware, one `Machine` per generation: every number that a check or a time is made of.

Sources, all public AWS documents unless said otherwise, by the short names used below:

    ARCH1, ARCH2, ARCH3   Trainium/Inferentia2, Trainium2 and Trainium3 architecture guides for NKI
    CHIP                  the hardware pages of Trainium1, 2 and 3
    ISA                   cost notes in the docstrings of `nki.isa` of Neuron SDK 2.26
    DMA                   NKI guide to DMA bandwidth, and the introduction to DMA with NKI
    DGE                   NKI reference of the descriptor generation engine
    PERF                  NKI performance guide
    COLL                  Neuron runtime: intra-node and inter-node collective communication
    NKIPY                 hardware constants of the open compiler aws-neuron/nkipy
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from nkisim.dtypes import (
    DType,
    bfloat16,
    float8_e4m3,
    float8_e4m3fn,
    float8_e5m2,
    float16,
)
from nkisim.enums import Engine, NcVersion


@dataclass(frozen=True)
class Machine:
    """One generation of NeuronCore and the chip around it. Times are ns, rates bytes per ns (GB/s).

    Attributes:
        target: the generation
        chip: its name
        tensor_ghz, vector_ghz, scalar_ghz, gpsimd_ghz: engine clocks (ARCH1, ARCH2, ARCH3)
        sync_ghz: clock of the Sync engine; not published, taken to be the Scalar engine's

        partitions: partitions of SBUF and PSUM, rows and columns of the PE array (ARCH1)
        sbuf_bytes: all of SBUF (ARCH1, ARCH2, ARCH3)
        sbuf_bytes_per_partition: what the compiler leaves to a kernel (NKIPY)
        psum_bytes_per_partition, psum_banks, psum_bank_bytes: PSUM (ARCH1)

        issue_cycles: the least that an instruction of a Vector, Scalar or Sync engine streams (ISA)
        access_cycles: until an instruction of a Vector or Scalar engine has its operands in SBUF or
            PSUM (ARCH1). An engine can hide some of it behind the instruction before; how much is
            not published. Here it hides none, with which the published times of attention_cte come
            out best: a root mean square error of 7 % so, of 12 % without it, each with the
            launch that suits it (see `launch_ns`).
        dependent_cycles: added when an instruction needs the result of the one before (ARCH1)
        semaphore_ns: until another engine sees that an instruction has ended. PERF measures 189 ns
            for an activation of one element on Trainium1, 264 cycles at 1.4 GHz; what is left after
            the three above is 40 cycles. The same for all generations.
        gpsimd_start_cycles: fixed part of an instruction of the GpSimd engine (ISA)
        dynamic_cycles: shortest instruction that has an address from a register (ISA)
        accumulator_cycles: writing the accumulators of an engine to memory, an instruction of its
            own that has `access_cycles` too (ARCH1)
        matmul_init_cycles: from the last row of a matmul entering the PE array to its result; also
            the shortest distance of two matmuls (MM_INIT_LATENCY, ARCH1)
        wide_step_bytes: elements further apart than this halve the bandwidth of memory (ARCH1)
        fast_dtypes: the types with which Vector copies and scales at 2 or 4 elements a cycle in
            each partition (ARCH2, ARCH3); none on Trainium1
        fast_scalar: Scalar copies and scales the same types at 2 elements a cycle (ARCH3)
        shared_ports: Vector and GpSimd take turns on SBUF, Vector and Scalar on PSUM (ARCH1)
        matmul_rates: FLOPs of the PE array relative to bf16, by kind (ARCH1, ARCH2, ARCH3)

        dma_engines: of each core; each serves 8 partitions of SBUF (DMA)
        dma_bytes_per_ns: what one of them reaches (DMA)
        dma_peak_bytes_per_ns: what one of them could move without any overhead (DMA)
        dma_descriptor_ns: overhead of a descriptor: vllm-omni-neuron, AWS's port of vLLM-Omni,
            notes 7 us for 5376 descriptors of two bytes over 16 engines. With the two rates above
            it gives 37 % of the reachable bandwidth on Trainium2 at 256 bytes a descriptor, 92 %
            at 2 KiB and all of it at 4 KiB, which is how DMA describes it.
        dma_start_ns: from the semaphore that starts a transfer to its first byte (DMA)
        hwdge_ns: what a hardware DGE takes for one transfer (ARCH2, DGE)
        dma_transpose_hbm, dma_transpose_sbuf: best share of the bandwidth when transposing out of
            HBM and out of SBUF (ARCH2)
        dma_add: share of the bandwidth when adding on the way (ARCH3: half before Trainium3)
        gpsimd_dma_bytes_per_ns: DMA built into the GpSimd engine, each direction (ARCH2); 0: none

        cores_per_chip, chips_per_node: (CHIP; the smaller UltraServer for Trainium3)
        hbm_bytes_per_ns: of a chip (ARCH1, ARCH2, ARCH3)
        link_bytes_per_ns: NeuronLink, of a chip (CHIP)
        efa_bytes_per_ns: of a rank between nodes: 50 Gbit/s (COLL)
        hop_ns, efa_hop_ns: of a step within and between nodes (COLL: 1 to 2 us, about 15 us)
        launch_ns: what starting a kernel and waiting for its end take beside the kernel. A fit: of
            the 120 published times of attention_cte on Trainium2 (nki-library's tests, 43 us to
            4.5 ms), the offset that leaves the smallest squares of relative errors is 35 us; see
            tools/time_attention.py. Taken to be the same for all generations.
        chip_hop_ns: between two cores of one chip; not published, the lower end of `hop_ns`
    """

    target: NcVersion
    chip: str
    tensor_ghz: float
    vector_ghz: float
    scalar_ghz: float
    gpsimd_ghz: float
    sync_ghz: float
    sbuf_bytes: int
    sbuf_bytes_per_partition: int
    fast_dtypes: frozenset[DType]
    fast_scalar: bool
    shared_ports: bool
    matmul_rates: tuple[tuple[str, float], ...]
    dma_bytes_per_ns: float
    dma_peak_bytes_per_ns: float
    dma_add: float
    gpsimd_dma_bytes_per_ns: float
    cores_per_chip: int
    chips_per_node: int
    hbm_bytes_per_ns: float
    link_bytes_per_ns: float

    partitions: int = 128
    psum_bytes_per_partition: int = 16384
    psum_banks: int = 8
    psum_bank_bytes: int = 2048
    issue_cycles: int = 64
    access_cycles: int = 60
    dependent_cycles: int = 100
    semaphore_ns: float = 40 / 1.4
    gpsimd_start_cycles: int = 150
    dynamic_cycles: int = 600
    accumulator_cycles: int = 64
    matmul_init_cycles: int = 64
    wide_step_bytes: int = 16
    dma_engines: int = 16
    dma_descriptor_ns: float = 7000 / 5376 * 16
    dma_start_ns: float = 1300.0
    hwdge_ns: float = 600.0
    dma_transpose_hbm: float = 0.9
    dma_transpose_sbuf: float = 0.5
    efa_bytes_per_ns: float = 6.25
    hop_ns: float = 1500.0
    efa_hop_ns: float = 15000.0
    chip_hop_ns: float = 1000.0
    launch_ns: float = 35_000.0

    def ghz(self, engine: Engine) -> float:
        """The clock of a compute engine; the Sync engine's for whatever else issues."""
        if engine is Engine.tensor:
            return self.tensor_ghz
        if engine is Engine.vector:
            return self.vector_ghz
        if engine is Engine.scalar:
            return self.scalar_ghz
        if engine is Engine.gpsimd:
            return self.gpsimd_ghz
        return self.sync_ghz

    @property
    def hbm_share_bytes_per_ns(self) -> float:
        """HBM bandwidth of one core while all cores of the chip use it."""
        return self.hbm_bytes_per_ns / self.cores_per_chip

    def peak_flops_per_ns(self, kind: str) -> float:
        """Most FLOPs per ns (TFLOPS / 1000) of one core's PE array.

        Args:
            kind: "fp32", "bf16" (every 16-bit type, tfloat32, and fp8 in the ordinary mode), "fp8"
                (the double-row mode) or "mx"

        Raises:
            KeyError: this generation has no such matmul.
        """
        rate = dict(self.matmul_rates)[kind]
        return 2 * self.partitions * self.partitions * self.tensor_ghz * rate


@lru_cache
def of(target: NcVersion) -> Machine:
    """The machine of a generation."""
    return {
        NcVersion.gen2: _trainium1,
        NcVersion.gen3: _trainium2,
        NcVersion.gen4: _trainium3,
    }[target]()


def _trainium1() -> Machine:
    return Machine(
        target=NcVersion.gen2,
        chip="Trainium1",
        tensor_ghz=2.8,
        vector_ghz=1.12,
        scalar_ghz=1.4,
        gpsimd_ghz=1.4,
        sync_ghz=1.4,
        sbuf_bytes=24 << 20,
        sbuf_bytes_per_partition=180224,
        fast_dtypes=frozenset(),
        fast_scalar=False,
        shared_ports=True,
        matmul_rates=(("fp32", 0.25), ("bf16", 1.0)),
        dma_bytes_per_ns=17.0,
        dma_peak_bytes_per_ns=27.2,
        dma_add=0.5,
        gpsimd_dma_bytes_per_ns=0.0,
        cores_per_chip=2,
        chips_per_node=16,
        hbm_bytes_per_ns=820.0,
        link_bytes_per_ns=384.0,
    )


def _trainium2() -> Machine:
    return Machine(
        target=NcVersion.gen3,
        chip="Trainium2",
        tensor_ghz=2.4,
        vector_ghz=0.96,
        scalar_ghz=1.2,
        gpsimd_ghz=1.2,
        sync_ghz=1.2,
        sbuf_bytes=28 << 20,
        sbuf_bytes_per_partition=212984,
        fast_dtypes=frozenset({bfloat16, float16}),
        fast_scalar=False,
        shared_ports=False,
        matmul_rates=(("fp32", 0.25), ("bf16", 1.0), ("fp8", 2.0)),
        dma_bytes_per_ns=23.0,
        dma_peak_bytes_per_ns=27.2,
        dma_add=0.5,
        gpsimd_dma_bytes_per_ns=153.0,
        cores_per_chip=8,
        chips_per_node=16,
        hbm_bytes_per_ns=3000.0,
        link_bytes_per_ns=1280.0,
    )


def _trainium3() -> Machine:
    return Machine(
        target=NcVersion.gen4,
        chip="Trainium3",
        tensor_ghz=2.4,
        vector_ghz=1.2,
        scalar_ghz=1.2,
        gpsimd_ghz=1.2,
        sync_ghz=1.2,
        sbuf_bytes=32 << 20,
        sbuf_bytes_per_partition=245752,
        fast_dtypes=frozenset({bfloat16, float16, float8_e4m3, float8_e4m3fn, float8_e5m2}),
        fast_scalar=True,
        shared_ports=False,
        matmul_rates=(("fp32", 0.25), ("bf16", 1.0), ("fp8", 2.0), ("mx", 4.0)),
        dma_bytes_per_ns=33.0,
        dma_peak_bytes_per_ns=38.4,
        dma_add=1.0,
        gpsimd_dma_bytes_per_ns=153.0,
        cores_per_chip=8,
        chips_per_node=64,
        hbm_bytes_per_ns=4700.0,
        link_bytes_per_ns=2560.0,
    )
