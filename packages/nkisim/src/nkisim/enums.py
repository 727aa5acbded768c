"""The enumerations of `nki.isa` and `nki.language`, with the values of NKI 0.6."""

from __future__ import annotations

import enum
from typing import TypeVar


class Engine(enum.Enum):
    """An engine of a NeuronCore, or `unknown` to let the instruction choose."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6


class ReduceCmd(enum.Enum):
    """What an instruction does with the accumulator registers of its engine."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class DgeMode(enum.Enum):
    """How the descriptors of a DMA come about."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class OobMode(enum.Enum):
    """What a DMA does with a dynamic index that is out of range."""

    error = 0
    skip = 1


class MatmulPerfMode(enum.Enum):
    """How the PE array takes its operands."""

    none = "none"
    double_row = "double_row"


class NcVersion(enum.IntEnum):
    """The generation of the NeuronCore: Trainium1 is 2, Trainium2 is 3, Trainium3 is 4."""

    gen2 = 2
    gen3 = 3
    gen4 = 4


class DmaEngine(enum.Enum):
    """Who carries a `sendrecv`."""

    dma = 1
    gpsimd_dma = 2


class MemoryRegion(enum.Enum):
    """Where a tensor lives."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"

    # identity is equality for an enumeration; the default hash goes through the name
    __hash__ = object.__hash__


E = TypeVar("E", bound=enum.Enum)


def member(kind: type[E], value: object, argument: str) -> E:
    """The member of `kind` that `value` means: itself, or a string with its name or value.

    Strings are accepted because kernels of nki-library write `perf_mode="double_row"`.

    Raises:
        TypeError: `value` is neither, a raw integer for instance.
    """
    if isinstance(value, kind):
        return value
    if isinstance(value, str):
        for candidate in kind:
            if value in (candidate.name, candidate.value):
                return candidate
    names = ", ".join(f"{kind.__name__}.{candidate.name}" for candidate in kind)
    raise TypeError(f"{argument} is {value!r}; it must be one of {names}")
