"""One rank's part of UMT5's encoder under tensor parallelism, made of transformers' own modules.

Of a rank's part, transformers knows only that it is a UMT5 of fewer heads, fewer units in the
feed-forward layers and fewer tokens. The rest is the sum over ranks after each of the three layers
whose input or rows are shared:

    tokens   -> embedding (rows)                          -> sum
    each     -> q, k, v (heads), bias of distances (heads) -> o (columns)  -> sum
    layer    -> wi_0, wi_1 (units)                         -> wo (columns) -> sum
    norms    on every rank
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import UMT5Config, UMT5EncoderModel

from wantrn.model.slices import Slice
from wantrn.parallel.group import Group

# The axis of a layer's weight that ranks share.
_HEAD_AXES = {"q": 0, "k": 0, "v": 0, "o": 1}
_UNIT_AXES = {"wi": 0, "wi_0": 0, "wi_1": 0, "wo": 1}
_SUMMED = ("o", "wo")
_NORMS = ("layer_norm", "final_layer_norm")


@dataclass(frozen=True)
class TextEncoderPart:
    """The part of one rank.

    Attributes:
        module: on the meta device; gives ``[B, S, H]``, the same bits on every rank. Its config
            holds this rank's numbers of heads, units and tokens.
        slices: by name of a parameter, what of the whole tensor this rank has; None for all.
    """

    module: UMT5EncoderModel
    slices: Callable[[str], Slice | None]


def text_encoder_part(config: UMT5Config, group: Group) -> TextEncoderPart:
    """The part of this rank. The group need not divide the vocabulary.

    Raises:
        ValueError: the group does not divide the heads or the units of the feed-forward layers, or
            has more ranks than there are tokens.
    """
    _check_even("num_heads", config.num_heads, group)
    _check_even("d_ff", config.d_ff, group)
    tokens = _tokens(config, group)
    local = copy.deepcopy(config)
    local.num_heads = config.num_heads // group.size
    local.d_ff = config.d_ff // group.size
    local.vocab_size = tokens.width
    with torch.device("meta"):
        module = UMT5EncoderModel(local)
        module.set_input_embeddings(_TokenRows(tokens, config.d_model, group))
    for name, layer in module.named_modules():
        if name.rpartition(".")[2] in _SUMMED:
            layer.register_forward_hook(_sum_hook(group))
    return TextEncoderPart(module, lambda name: _slice(name, config, group))


class _TokenRows(nn.Embedding):
    """The rows of some tokens, summed over ranks: a rank without a token's row adds zeros."""

    def __init__(self, tokens: Slice, width: int, group: Group) -> None:
        super().__init__(tokens.width, width)
        self._tokens = tokens
        self._group = group

    def forward(self, ids: Tensor) -> Tensor:
        """``[B, S]`` of the whole vocabulary to ``[B, S, H]``; ``IndexError`` for other ids."""
        wrong = ids[(ids < 0) | (ids >= self._tokens.size)]
        if wrong.numel():  # else no rank would have their rows
            raise IndexError(f"ids must be 0 to {self._tokens.size - 1}, got {int(wrong[0])}")
        local = ids - self._tokens.begin
        here = (local >= 0) & (local < self.num_embeddings)
        rows = super().forward(local.where(here, 0))
        return _sum(rows.masked_fill(~here.unsqueeze(-1), 0), self._group)


def _sum_hook(group: Group) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor]:
    return lambda layer, args, output: _sum(output, group)


def _sum(x: Tensor, group: Group) -> Tensor:
    """Over ranks, in fp32 at least."""
    return group.all_reduce(x.to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)


def _slice(name: str, config: UMT5Config, group: Group) -> Slice | None:
    layer = name.split(".")[-2]
    if layer in _NORMS:
        return None
    if layer in ("shared", "embed_tokens"):
        return _tokens(config, group)
    if layer in _HEAD_AXES:
        size = config.num_heads * config.d_kv
        return Slice.part(_HEAD_AXES[layer], size, group.size, group.position)
    if layer == "relative_attention_bias":
        return Slice.part(1, config.num_heads, group.size, group.position)
    if layer in _UNIT_AXES:
        return Slice.part(_UNIT_AXES[layer], config.d_ff, group.size, group.position)
    raise ValueError(f"name must be of a parameter of UMT5's encoder, got {name}")


def _tokens(config: UMT5Config, group: Group) -> Slice:
    """The rows of the embedding, as even as can be."""
    size = config.vocab_size
    if size < group.size:
        raise ValueError(f"vocab_size of {size} is less than the {group.size} ranks of the group")
    begin, end = (
        size * position // group.size for position in (group.position, group.position + 1)
    )
    return Slice(0, begin, end, size)


def _check_even(name: str, value: int, group: Group) -> None:
    if value % group.size:
        raise ValueError(
            f"{name} must be a multiple of the group's {group.size} ranks, got {value}"
        )
