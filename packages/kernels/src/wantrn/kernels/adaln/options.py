"""What `adaln_modulate` is asked to do, and the sizes of one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wantrn.kernels.nki import nl

NORMS = ("layer", "rms", "none")


@dataclass(frozen=True)
class Options(nl.NKIObject):
    """How rows are normalised and what they become.

    Attributes:
        norm: over `H`, one of `NORMS`, as `wantrn.kernels.ops.Norm`
        eps: added to the variance or the mean square
        limit: the largest code of packed FP8 rows: 448 (OCP, Trainium3) or 240 (Trainium2); 0 gives
            rows of the input's dtype
    """

    norm: str = "layer"
    eps: float = 1e-6
    limit: float = 0.0


@dataclass(frozen=True)
class Sizes(nl.NKIObject):
    """The sizes of one call.

    Attributes:
        batch, positions, hidden: `B`, `S`, `H`
        itemsize: bytes of an element of the rows
        residual: whether there is a residual stream
        gate, mul, add: `(1 or B, G)` of each modulation, empty without it
    """

    batch: int
    positions: int
    hidden: int
    itemsize: int = 2
    residual: bool = False
    gate: tuple[int, ...] = ()
    mul: tuple[int, ...] = ()
    add: tuple[int, ...] = ()

    def tokens(self) -> int:
        """`B * S`; tokens of a batch follow one another."""
        return self.batch * self.positions

    def modulations(self) -> list[tuple[str, tuple[int, ...]]]:
        """The modulations that there are, by name."""
        named = (("gate", self.gate), ("mul", self.mul), ("add", self.add))
        return [(name, rows) for name, rows in named if rows]


def sizes_of(x: Any, residual: Any, gate: Any, mul: Any, add: Any, itemsize: int) -> Sizes:
    """The sizes of a call's tensors, arrays or specifications; `x` is `[B, S, H]`."""
    return Sizes(
        batch=x.shape[0],
        positions=x.shape[1],
        hidden=x.shape[2],
        itemsize=itemsize,
        residual=residual != None,
        gate=() if gate == None else tuple(gate.shape[0:2]),
        mul=() if mul == None else tuple(mul.shape[0:2]),
        add=() if add == None else tuple(add.shape[0:2]),
    )


def sums_only(sizes: Sizes, options: Options) -> bool:
    """Whether the new stream is all that is asked for."""
    plain = options.norm == "none" and not options.limit
    return sizes.residual and plain and not sizes.mul and not sizes.add


def keeps_rows(sizes: Sizes, options: Options) -> bool:
    """Whether rows that are to be quantized are those of the stream, and not computed from it."""
    return options.norm == "none" and not sizes.mul and not sizes.add
