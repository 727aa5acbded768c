"""From HBM to SBUF: the weight and the vectors of a group, tokens, and the angles of a tile."""

from __future__ import annotations

from typing import Any

from wantrn.kernels.nki import nisa, nl
from wantrn.kernels.qkv.memory import Memory
from wantrn.kernels.qkv.options import Sizes
from wantrn.kernels.qkv.plan import Plan
from wantrn.kernels.qkv.slabs import TILE, Slab, TokenTile
from wantrn.kernels.row_mx import SCALE_BYTES


class Group(nl.NKIObject):
    """One group of columns and what is loaded of it.

    Attributes:
        number: in the order of the plan
        slabs: of the group; `first`: its first column, `width`: its columns
        weights: SBUF `[TILE, depth, width]`, x4 elements of FP8 or bf16
        loaded: how many of the `depth` tiles of the weight
        channel_scales, bias, gamma: SBUF `[TILE, width]`, or None
    """

    number: int
    slabs: list[Slab]
    first: int
    width: int
    weights: Any = None
    loaded: int = 0
    channel_scales: Any = None
    bias: Any = None
    gamma: Any = None


class Inputs(nl.NKIObject):
    """The tensors of a call in HBM; see `qkv_cte`."""

    x: Any
    weight: Any
    weight_scales: Any = None
    bias: Any = None
    q_gamma: Any = None
    k_gamma: Any = None
    cos: Any = None
    sin: Any = None
    q_beta: Any = None
    k_beta: Any = None
    k_cache: Any = None
    v_cache: Any = None
    slot_mapping: Any = None


def open_group(group: Group, sizes: Sizes, memory: Memory) -> None:
    """Take the buffer of the group's weight."""
    depth = -(-sizes.words() // TILE)
    slot = memory.weights.take()
    bytes_each = 4 if sizes.packed else 1
    group.weights = slot[:, 0 : depth * group.width * bytes_each].reshape_dim(
        1, (depth, group.width * bytes_each)
    )


def load_weights(group: Group, inputs: Inputs, sizes: Sizes, upto: int) -> None:
    """Load the tiles of the group's weight that are not there yet, up to number `upto`.

    Codes of FP8 are moved as bytes; four of them are an element of the product.
    """
    each = 4 if sizes.packed else 1
    src = inputs.weight.flatten_dims(1, 2) if sizes.packed else inputs.weight
    columns = (group.first * each, (group.first + group.width) * each)
    while group.loaded < upto:
        at = group.loaded * TILE
        rows = min(TILE, sizes.words() - at)
        nisa.dma_copy(
            group.weights[0:rows, group.loaded, :],
            src[at : at + rows, columns[0] : columns[1]],
        )
        group.loaded += 1


def load_vectors(group: Group, inputs: Inputs, sizes: Sizes, memory: Memory) -> None:
    """The vectors along the group's columns, the same in every partition."""
    columns = (group.first, group.first + group.width)
    if sizes.packed:
        group.channel_scales = memory.channel_scales.take()[:, 0 : group.width]
        _spread(group.channel_scales, inputs.weight_scales[:, columns[0] : columns[1]])
    if inputs.bias != None:
        group.bias = memory.bias.take()[:, 0 : group.width]
        _spread(group.bias, inputs.bias[:, columns[0] : columns[1]])
    if sizes.norm and group.slabs[0].segment.finished_later:
        group.gamma = memory.gamma.take()[:, 0 : group.width]
        for slab in group.slabs:
            src = inputs.q_gamma if slab.segment.number == 0 else inputs.k_gamma
            at, within = slab.first - group.first, slab.first - slab.segment.first
            _spread(group.gamma[:, at : at + slab.width], src[:, within : within + slab.width])


def load_head_vectors(inputs: Inputs, sizes: Sizes, memory: Memory) -> None:
    """The weights of a norm of single heads, one behind the other, and its bias if it has one."""
    d = sizes.head_dim
    pairs = [(memory.head_gamma, inputs.q_gamma, inputs.k_gamma)]
    if sizes.shifted:
        pairs.append((memory.head_beta, inputs.q_beta, inputs.k_beta))
    for buffer, of_q, of_k in pairs:
        dst = buffer.at(0)
        _spread(dst[:, 0:d], of_q)
        if of_k != None:
            _spread(dst[:, d : 2 * d], of_k)


def _spread(dst: Any, row: Any) -> None:
    """A row `[1, n]` of HBM into every partition."""
    nisa.dma_copy(dst, row.broadcast(0, TILE))


def load_tokens(number: int, tile: TokenTile, inputs: Inputs, plan: Plan, memory: Memory) -> None:
    """A tile of tokens into slot `number`, contraction on partitions, by one transposition.

    Four neighbouring codes of a packed row are one word of 32 bits, and so is the element of the MX
    matmul that they become. Behind them stands the row's scale.
    """
    sizes = plan.sizes
    words, size = sizes.words(), sizes.word_bytes()
    rows = inputs.x.flatten_dims(0, 1)[tile.tokens(), :]
    if sizes.packed:
        rows = rows.view(nl.float32)
    dst = token_slot(number, plan, memory)
    if tile.rows % 2 and sizes.packed:
        # the MX matmul takes an even number of tokens
        nisa.memset(dst[:, :, tile.rows : tile.rows + 1], 0.0)
    whole = words // TILE
    if whole:
        nisa.dma_transpose(
            dst[:, 0:whole, 0 : tile.rows],
            rows[:, 0 : whole * TILE].reshape_dim(1, (whole, TILE)),
        )
    rest = words - whole * TILE
    if rest:
        nisa.dma_transpose(dst[0:rest, whole, 0 : tile.rows], rows[:, whole * TILE : words])
    if sizes.packed:
        scale = sizes.hidden // size
        nisa.dma_copy(
            memory.row_scales.at(number)[0 : tile.rows, :],
            rows[:, scale : scale + SCALE_BYTES // size],
        )


def token_slot(number: int, plan: Plan, memory: Memory) -> Any:
    """SBUF `[TILE, depth, TILE]`, tokens last."""
    return memory.tokens.at(number).reshape_dim(1, (-(-plan.sizes.words() // TILE), TILE))


def load_angles(tile: TokenTile, inputs: Inputs, sizes: Sizes, memory: Memory) -> Any:
    """Cosines and sines of a tile: SBUF fp32 `[TILE, 2, D / 2]`.

    Tokens of all sequences of a batch follow one another, so a tile may begin in one and end in the
    next, where positions begin anew.
    """
    half = sizes.head_dim // 2
    dst = memory.angles.take().reshape_dim(1, (2, half))
    done, stride, positions = 0, tile.block.stride, inputs.x.shape[1]
    while done < tile.rows:
        position = (tile.block.first + tile.index + done * stride) % positions
        count = min(tile.rows - done, -(-(positions - position) // stride))
        places = slice(position, position + (count - 1) * stride + 1, stride)
        for index, table in enumerate((inputs.cos, inputs.sin)):
            nisa.dma_copy(dst[done : done + count, index, :], table[places, :])
        done += count
    return dst
