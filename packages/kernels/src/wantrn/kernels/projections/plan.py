"""Which buffers `o_proj` and `mlp` have and how large they are; the kernels allocate what it says.

Tokens go in passes. In a pass, every block of a weight is multiplied by all tokens of the pass
before the next one: the longer a pass, the fewer times a weight is loaded. Blocks that all fit into
SBUF are loaded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wantrn.kernels.nki import nl
from wantrn.kernels.projections.options import MlpSizes, OProjSizes
from wantrn.kernels.projections.tiles import GROUP, TILE
from wantrn.kernels.psum import BANK
from wantrn.kernels.row_mx import VALUES
from wantrn.kernels.sbuf import Buffer, end_of, placed
from wantrn.kernels.words import word_bytes, words

# PSUM: four groups of two banks, one in the making and the others on their way out
GROUP_BANKS = (0, 2, 4, 6)
# rows of the result on their way to HBM
OUT_SLOTS = 4


@dataclass(frozen=True)
class Choice(nl.NKIObject):
    """What distinguishes one plan from another.

    Attributes:
        pass_tiles: tiles of tokens of a pass, at most
        up_block: columns of a block of the first weight of `mlp`; 0 for `o_proj`
        down_block: columns of a block of the weight that gives the result
        weight_slots: blocks in SBUF at once, at most as many as there are: then each is loaded once
    """

    pass_tiles: int
    up_block: int
    down_block: int
    weight_slots: int


@dataclass(frozen=True)
class Plan(nl.NKIObject):
    """The buffers of a core. One that does not fit cannot be made.

    Attributes:
        sizes: `OProjSizes` or `MlpSizes` of the calls that it is for
        choice: what was chosen
        buffers: all of SBUF that the kernel uses
        sbuf_limit: bytes of a partition that there are

    Raises:
        ValueError: the buffers do not fit, or there are more slots than blocks.
    """

    sizes: Any
    choice: Choice
    buffers: tuple[Buffer, ...]
    sbuf_limit: int

    def __post_init__(self) -> None:
        blocks = block_count(self.sizes, self.choice)
        if self.choice.weight_slots > blocks:
            raise ValueError(
                f"weight_slots is {self.choice.weight_slots}; there are {blocks} blocks"
            )
        if end_of(self.buffers) > self.sbuf_limit:
            raise ValueError(
                f"the buffers take {end_of(self.buffers)} bytes of each partition; SBUF has "
                f"{self.sbuf_limit}"
            )


def block_count(sizes: Any, choice: Choice) -> int:
    """Blocks of a pass."""
    count: int = -(-sizes.width // choice.down_block)
    if choice.up_block:
        count += -(-sizes.inner // choice.up_block)
    return count


def o_proj_plan(sizes: OProjSizes, choice: Choice, sbuf_limit: int) -> Plan:
    """The plan of `o_proj` that follows from a choice.

    Raises:
        ValueError: the buffers do not fit.
    """
    depth = _depth(sizes.depth, sizes.packed)
    tokens = choice.pass_tiles * TILE
    if sizes.packed:
        # bf16 comes tile by tile of the contraction, and is quantized at once
        operand = [
            Buffer("tokens", 2 * VALUES * tokens, 2),
            Buffer("staged", 2 * VALUES * tokens, 2),
            Buffer("codes", VALUES * depth * tokens, 2),
            Buffer("code_scales", depth * tokens, 2),
        ]
    else:
        operand = [Buffer("tokens", 2 * depth * tokens, 2)]
    block = depth * choice.down_block * word_bytes(sizes.packed)
    buffers = placed(operand + _shared(sizes, choice, block, sizes.bias_bytes))
    return Plan(sizes, choice, buffers, sbuf_limit)


def mlp_plan(sizes: MlpSizes, choice: Choice, sbuf_limit: int) -> Plan:
    """The plan of `mlp` that follows from a choice.

    Raises:
        ValueError: the buffers do not fit.
    """
    packed, each = sizes.packed, word_bytes(sizes.packed)
    up_depth, down_depth = _depth(sizes.hidden, packed), _depth(sizes.inner, packed)
    tokens = choice.pass_tiles * TILE
    per = VALUES if packed else 1
    operand = [Buffer("tokens", each * up_depth * tokens, 1)]
    if packed:
        operand += [
            Buffer("row_scales", 4 * tokens, 1),
            Buffer("staged", 2 * VALUES * min(tokens, GROUP), 2),
            Buffer("codes", VALUES * down_depth * tokens, 1),
            Buffer("code_scales", down_depth * tokens, 1),
            Buffer("up_scales", 4 * per * down_depth, 1),
        ]
    else:
        operand += [Buffer("inner", 2 * down_depth * tokens, 1)]
    operand += [Buffer("up_bias", sizes.up_bias_bytes * per * down_depth, 1)]
    block = max(up_depth * choice.up_block, down_depth * choice.down_block) * each
    buffers = placed(operand + _shared(sizes, choice, block, sizes.down_bias_bytes))
    return Plan(sizes, choice, buffers, sbuf_limit)


def _shared(sizes: Any, choice: Choice, block: int, bias_bytes: int) -> list[Buffer]:
    """Weights, and what the projection to the result needs."""
    packed = 1 if sizes.packed else 0
    return [
        Buffer("weights", block, choice.weight_slots),
        Buffer("neutral", BANK * packed, 1),
        Buffer("channel_scales", 4 * sizes.width * packed, 1),
        Buffer("bias", bias_bytes * sizes.width, 1),
        Buffer("work", 4 * min(GROUP, choice.down_block) * packed, 2 if bias_bytes else 0),
        Buffer("out", 2 * choice.down_block, OUT_SLOTS),
    ]


def _depth(contracted: int, packed: bool) -> int:
    return -(-words(contracted, packed) // TILE)
