"""ComfyUI's FP8-scaled files: original Wan names, FP8 weights with one scale for each Linear.

``X.weight`` holds codes in float8_e4m3fn, ``X.scale_weight`` (older files) or ``X.weight_scale``
(newer ones) a scalar; the weight is code * scale. ``X.scale_input`` / ``X.input_scale`` is for
arithmetic in FP8, which this package does not do on load. ``scaled_fp8`` only marks the file. Other
tensors, and Linears without a scale, are stored plainly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from wantrn.model.checkpoints import original
from wantrn.model.checkpoints.tensor_store import TensorStore
from wantrn.model.config import WanConfig
from wantrn.model.errors import CheckpointError

MARKER = "scaled_fp8"
WEIGHT_SCALES = ("scale_weight", "weight_scale")
INPUT_SCALES = ("scale_input", "input_scale")
FP8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Fp8Layout:
    """How one file is quantized, in the names of that file."""

    prefix: str
    weight_scales: Mapping[str, str]  # FP8 weight to its scale
    unused: frozenset[str]  # marker and input scales

    @property
    def auxiliary(self) -> frozenset[str]:
        """All tensors that are no parameters of the model."""
        return self.unused | frozenset(self.weight_scales.values())


def key_map(config: WanConfig, prefix: str = "") -> dict[str, str]:
    """Canonical name to the name in a ComfyUI file (of codes, where the weight is quantized)."""
    return original.key_map(config, prefix)


def is_scaled(store: TensorStore) -> bool:
    """Whether the file has a marker or a scale of this format."""
    leaves = {name.rsplit(".", 1)[-1] for name in store.names}
    return not leaves.isdisjoint({MARKER, *WEIGHT_SCALES, *INPUT_SCALES})


def read_layout(store: TensorStore) -> Fp8Layout:
    """Pair weights with scales, from headers alone.

    Raises ``CheckpointError`` naming file and key on an FP8 weight without a scale or with two, on
    a scale without an FP8 weight or that is no floating-point scalar, and on FP8 elsewhere.
    """
    prefix = original.find_prefix(store.names)
    weight_scales: dict[str, str] = {}
    unused: set[str] = set()
    for name, info in store.tensors.items():
        stem, _, leaf = name.rpartition(".")
        weight = f"{stem}.weight"
        if name == prefix + MARKER or name == MARKER:
            unused.add(name)
        elif leaf in WEIGHT_SCALES + INPUT_SCALES:
            _check_scale_header(store, name, weight)
            if leaf in INPUT_SCALES:
                unused.add(name)
            elif weight in weight_scales:
                raise CheckpointError(
                    f"{info.file}: {weight} has two scales, {weight_scales[weight]} and {name}"
                )
            else:
                weight_scales[weight] = name
        elif info.dtype == FP8 and leaf != "weight":
            raise CheckpointError(
                f"{info.file}: {name}: is FP8, but only a weight can have a scale"
            )
    for name, info in store.tensors.items():
        if info.dtype == FP8 and name not in weight_scales and name not in unused:
            stem = name.rpartition(".")[0]
            expected = " or ".join(f"{stem}.{leaf}" for leaf in WEIGHT_SCALES)
            raise CheckpointError(f"{info.file}: {name}: is FP8 without its scale, {expected}")
    return Fp8Layout(prefix, weight_scales, frozenset(unused))


def _check_scale_header(store: TensorStore, name: str, weight: str) -> None:
    info = store.info(name)
    if info.shape not in ((), (1,)) or info.dtype not in (
        torch.float32,
        torch.float16,
        torch.bfloat16,
    ):
        raise CheckpointError(
            f"{info.file}: {name}: a scale is one floating-point number, "
            f"this is {info.dtype} {list(info.shape)}"
        )
    if weight not in store.tensors or store.info(weight).dtype != FP8:
        raise CheckpointError(
            f"{info.file}: {name}: is a scale, but {weight} is no tensor of {FP8}"
        )


def read_scale(store: TensorStore, name: str) -> float:
    """The value of a scale; ``CheckpointError`` unless it is finite and positive."""
    value = float(store.load(name).item())
    if not (math.isfinite(value) and value > 0):
        raise CheckpointError(
            f"{store.info(name).file}: {name}: a scale is finite and positive, this is {value}"
        )
    return value


def dequantize(codes: torch.Tensor, scale: float) -> torch.Tensor:
    """``float32(codes) * scale`` in float32; ``scale`` is a float32 value, so this rounds once."""
    return codes.to(torch.float32).mul_(scale)
