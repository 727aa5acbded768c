"""From diffusers' (canonical) tensors to the parameters of our transformer, and back.

Both directions are exact: only rows are moved and tensors joined or flattened, no value changes.

* The patch kernel is flattened: a convolution whose kernel is its stride is a Linear over patches.
* Q, K and V of self-attention become one Linear, rows in the order Q | K | V.
* Q and K rows, biases and norm weights of self-attention go, within each head, from interleaved
  rotary pairs (0, 1), (2, 3), ... to rotate-half order: the even channels, then the odd ones. Q
  and K move alike, so their products do not change.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from wantrn.model.checkpoints.diffusers import canonical_shapes
from wantrn.model.checkpoints.key_maps import Shape
from wantrn.model.config import WanConfig


class Layout(enum.Enum):
    """How a native parameter is made of canonical tensors."""

    SAME = "same"
    PATCH = "flattened patch kernel"
    ROTARY = "channels of each head in rotate-half order"
    QKV = "Q, K in rotate-half order, V; joined by rows"


@dataclass(frozen=True)
class NativeParameter:
    """The canonical tensors that one native parameter is made of, and how."""

    sources: tuple[str, ...]
    layout: Layout = Layout.SAME


def native_parameters(config: WanConfig) -> dict[str, NativeParameter]:
    """Every parameter of our transformer for ``config``, in the order of the model."""
    same = {
        "time_embedding.linear_1": "condition_embedder.time_embedder.linear_1",
        "time_embedding.linear_2": "condition_embedder.time_embedder.linear_2",
        "time_embedding.proj": "condition_embedder.time_proj",
        "text_embedding.linear_1": "condition_embedder.text_embedder.linear_1",
        "text_embedding.linear_2": "condition_embedder.text_embedder.linear_2",
        "proj_out": "proj_out",
    }
    parameters = {
        "patch_embedding.weight": NativeParameter(("patch_embedding.weight",), Layout.PATCH),
        "patch_embedding.bias": NativeParameter(("patch_embedding.bias",)),
        "modulation": NativeParameter(("scale_shift_table",)),
    }
    for native, canonical in same.items():
        parameters |= _linear(native, canonical)
    for index in range(config.num_layers):
        parameters |= _block(f"blocks.{index}")
    return parameters


def native_shapes(config: WanConfig) -> dict[str, Shape]:
    """Shapes of all parameters of our transformer for ``config``."""
    canonical = canonical_shapes(config)
    shapes: dict[str, Shape] = {}
    for name, parameter in native_parameters(config).items():
        first = canonical[parameter.sources[0]]
        if parameter.layout is Layout.PATCH:
            first = (first[0], config.in_channels * config.patch_volume)
        elif parameter.layout is Layout.QKV:
            first = (3 * first[0], *first[1:])
        shapes[name] = first
    return shapes


def assemble(
    parameter: NativeParameter, read: Callable[[str], torch.Tensor], heads: int
) -> torch.Tensor:
    """One native parameter from the canonical tensors that ``read(name)`` returns.

    ``heads`` is how many of them the tensors of self-attention have: channels move within a head
    alone, so a rank's heads can be taken before or after.

    ``Layout.SAME`` returns the very tensor that was read, the other layouts a copy or a view of it.
    """
    tensors = [read(name) for name in parameter.sources]
    match parameter.layout:
        case Layout.SAME:
            return tensors[0]
        case Layout.PATCH:
            return tensors[0].flatten(1)
        case Layout.ROTARY:
            return to_rotate_half(tensors[0], heads)
        case Layout.QKV:
            q, k, v = tensors
            return torch.cat([to_rotate_half(q, heads), to_rotate_half(k, heads), v])


def disassemble(
    parameter: NativeParameter, tensor: torch.Tensor, config: WanConfig
) -> tuple[torch.Tensor, ...]:
    """The inverse of ``assemble``: one canonical tensor for each of ``parameter.sources``."""
    match parameter.layout:
        case Layout.SAME:
            return (tensor,)
        case Layout.PATCH:
            return (tensor.reshape(-1, config.in_channels, *config.patch_size),)
        case Layout.ROTARY:
            return (to_interleaved(tensor, config.num_attention_heads),)
        case Layout.QKV:
            q, k, v = tensor.chunk(3)
            heads = config.num_attention_heads
            return (to_interleaved(q, heads), to_interleaved(k, heads), v)


def to_rotate_half(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder the first axis, ``[N*D, ...]``: within each head the even rows, then the odd ones."""
    return tensor.reshape(heads, -1, 2, *tensor.shape[1:]).transpose(1, 2).flatten(0, 2)


def to_interleaved(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """The inverse of ``to_rotate_half``."""
    return tensor.reshape(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).flatten(0, 2)


def to_native(canonical: Mapping[str, torch.Tensor], config: WanConfig) -> dict[str, torch.Tensor]:
    """All native parameters; ``ValueError`` unless names and shapes are those of ``config``."""
    _check(canonical, canonical_shapes(config), "canonical")
    return {
        name: assemble(parameter, canonical.__getitem__, config.num_attention_heads)
        for name, parameter in native_parameters(config).items()
    }


def to_canonical(state: Mapping[str, torch.Tensor], config: WanConfig) -> dict[str, torch.Tensor]:
    """All canonical tensors; ``ValueError`` unless names and shapes are those of ``config``."""
    _check(state, native_shapes(config), "native")
    parts: dict[str, torch.Tensor] = {}
    for name, parameter in native_parameters(config).items():
        parts |= zip(parameter.sources, disassemble(parameter, state[name], config), strict=True)
    return {name: parts[name] for name in canonical_shapes(config)}


def _check(tensors: Mapping[str, torch.Tensor], shapes: Mapping[str, Shape], kind: str) -> None:
    for name in shapes.keys() | tensors.keys():
        if name not in tensors or name not in shapes:
            fault = "missing" if name not in tensors else "unexpected"
            raise ValueError(f"{kind} tensors: {name} is {fault}")
        if tuple(tensors[name].shape) != shapes[name]:
            raise ValueError(
                f"{kind} tensors: {name} has shape {list(tensors[name].shape)}, "
                f"expected {list(shapes[name])}"
            )


def _linear(native: str, canonical: str) -> dict[str, NativeParameter]:
    return {
        f"{native}.{leaf}": NativeParameter((f"{canonical}.{leaf}",)) for leaf in ("weight", "bias")
    }


def _block(stem: str) -> dict[str, NativeParameter]:
    parameters = {
        f"{stem}.modulation": NativeParameter((f"{stem}.scale_shift_table",)),
        f"{stem}.cross_norm.weight": NativeParameter((f"{stem}.norm2.weight",)),
        f"{stem}.cross_norm.bias": NativeParameter((f"{stem}.norm2.bias",)),
    }
    for leaf in ("weight", "bias"):
        sources = tuple(f"{stem}.attn1.to_{part}.{leaf}" for part in "qkv")
        parameters[f"{stem}.self_attention.qkv.{leaf}"] = NativeParameter(sources, Layout.QKV)
    for part in "qk":
        parameters[f"{stem}.self_attention.{part}_norm.weight"] = NativeParameter(
            (f"{stem}.attn1.norm_{part}.weight",), Layout.ROTARY
        )
        parameters[f"{stem}.cross_attention.{part}_norm.weight"] = NativeParameter(
            (f"{stem}.attn2.norm_{part}.weight",)
        )
    parameters |= _linear(f"{stem}.self_attention.out", f"{stem}.attn1.to_out.0")
    for part in "qkv":
        parameters |= _linear(f"{stem}.cross_attention.{part}", f"{stem}.attn2.to_{part}")
    parameters |= _linear(f"{stem}.cross_attention.out", f"{stem}.attn2.to_out.0")
    parameters |= _linear(f"{stem}.feed_forward.up", f"{stem}.ffn.net.0.proj")
    parameters |= _linear(f"{stem}.feed_forward.down", f"{stem}.ffn.net.2")
    return parameters
