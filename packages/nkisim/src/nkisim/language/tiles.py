"""`nl.tile_size`: how large tiles may be."""

from __future__ import annotations

from nkisim import machine
from nkisim.core import current_or_none
from nkisim.machine import Machine
from nkisim.settings import Settings, dma_transposes_on_tensor_engine


def _machine() -> Machine:
    """That of the running kernel, else the one that a launch has by default."""
    core = current_or_none()
    return machine.of(Settings().target) if core is None else core.machine


def _deprecated(name: str, successor: str) -> None:
    core = current_or_none()
    if core is not None:
        core.violation(
            "deprecated", f"tile_size.{name} is deprecated since NKI 0.4; use {successor}"
        )


class TileSize:
    """Sizes of memories and of operands, of the generation that the kernel runs on.

    Outside a kernel, of the default target. Sizes are fp32 elements of a partition (`fmax`),
    partitions, or bytes where the name says so. Sources: reference of `nki.language.tile_size`; the
    usable bytes of SBUF are the open compiler's, see `nkisim.machine`.
    """

    def __repr__(self) -> str:
        return f"tile_size of {_machine().chip}"

    @property
    def pmax(self) -> int:
        """Partitions of SBUF and PSUM."""
        return _machine().partitions

    @property
    def psum_bank_fmax(self) -> int:
        """Elements of a partition of a PSUM bank."""
        return _machine().psum_bank_bytes // 4

    @property
    def psum_fmax(self) -> int:
        """The former name of `psum_bank_fmax`."""
        _deprecated("psum_fmax", "psum_bank_fmax")
        return self.psum_bank_fmax

    @property
    def psum_bank_fmax_bytes(self) -> int:
        """Bytes of a partition of a PSUM bank."""
        return _machine().psum_bank_bytes

    @property
    def psum_num_banks(self) -> int:
        """PSUM banks for the kernel: from Trainium2 on, the compiler keeps the last one where
        NKI_DMA_TRANSPOSE_AS_PE_TRANSPOSE is true."""
        found = _machine()
        kept = 1 if found.target >= 3 and dma_transposes_on_tensor_engine() else 0
        return found.psum_banks - kept

    @property
    def psum_min_align(self) -> int:
        """Bytes that the start of a PSUM tensor is a multiple of: one fp32 element."""
        return 4

    @property
    def gemm_stationary_fmax(self) -> int:
        """Columns of a stationary operand."""
        return 128

    @property
    def gemm_moving_fmax(self) -> int:
        """Columns of a moving operand whose product fills a PSUM bank."""
        return 512

    @property
    def bn_stats_fmax(self) -> int:
        """Elements of a partition that `nisa.bn_stats` takes."""
        return 512

    @property
    def sbuf_min_align(self) -> int:
        """Bytes that the start of an SBUF tensor is a multiple of."""
        return 1

    @property
    def sbuf_fmax_bytes(self) -> int:
        """Bytes of a partition of SBUF that a kernel may use."""
        return _machine().sbuf_bytes_per_partition

    @property
    def total_available_sbuf_size(self) -> int:
        """The former name of `sbuf_fmax_bytes`."""
        _deprecated("total_available_sbuf_size", "sbuf_fmax_bytes")
        return self.sbuf_fmax_bytes

    @property
    def sbuf_fmax(self) -> int:
        """Elements of a partition of SBUF that a kernel may use."""
        return self.sbuf_fmax_bytes // 4

    @property
    def sbuf_size_bytes(self) -> int:
        """All bytes of SBUF."""
        return _machine().sbuf_bytes


tile_size = TileSize()
