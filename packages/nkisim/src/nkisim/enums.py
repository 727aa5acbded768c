"""The enumerations of `nki.isa` and `nki.language`, with the values of NKI 0.6."""

from __future__ import annotations

import enum
from typing import TypeVar


class _Printed(enum.Enum):
    """Prints as NKI's own do: `engine.vector`."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    __str__ = __repr__
    # identity is equality for an enumeration; the inherited hash goes through the name
    __hash__ = object.__hash__


class Engine(_Printed):
    """An engine of a NeuronCore, or `unknown` to let the instruction choose."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6


class ReduceCmd(_Printed):
    """What an instruction does with the accumulator registers of its engine."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class DgeMode(_Printed):
    """How the descriptors of a DMA come about."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class OobMode(_Printed):
    """What a DMA does with a dynamic index that is out of range."""

    error = 0
    skip = 1


class MatmulPerfMode(_Printed):
    """How the PE array takes its operands."""

    none = "none"
    double_row = "double_row"


class NcVersion(enum.IntEnum):
    """The generation of the NeuronCore: Trainium1 is 2, Trainium2 is 3, Trainium3 is 4."""

    gen2 = 2
    gen3 = 3
    gen4 = 4

    def __repr__(self) -> str:
        return f"nc_version.{self.name}"

    __str__ = __repr__


class DmaEngine(_Printed):
    """Who carries a `sendrecv`."""

    dma = 1
    gpsimd_dma = 2


class MemoryRegion(enum.Enum):
    """Where a tensor lives."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"

    def __repr__(self) -> str:
        return self.name

    __hash__ = object.__hash__


# NKI names these classes in lower case, and kernels print their members; `pickle` finds a class by
# its `__qualname__`, which stays
for _class, _name in (
    (Engine, "engine"),
    (ReduceCmd, "reduce_cmd"),
    (DgeMode, "dge_mode"),
    (OobMode, "oob_mode"),
    (MatmulPerfMode, "matmul_perf_mode"),
    (NcVersion, "nc_version"),
    (DmaEngine, "dma_engine"),
):
    _class.__name__ = _name


E = TypeVar("E", bound=enum.Enum)


def member(kind: type[E], value: object, argument: str) -> E:
    """The member of `kind` that `value` means: itself, or a string with its name or value.

    Strings are accepted because kernels of nki-library write `perf_mode="double_row"`.

    Raises:
        TypeError: `value` is neither, a raw integer for instance.
    """
    if type(value) is kind:
        return value
    if isinstance(value, str):
        for candidate in kind:
            if value in (candidate.name, candidate.value):
                return candidate
    names = ", ".join(f"{kind.__name__}.{candidate.name}" for candidate in kind)
    raise TypeError(f"{argument} is {value!r}; it must be one of {names}")
