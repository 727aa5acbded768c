"""Numbers for `o_proj` and `mlp`; in float64 what they should give, and how far it may be off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from statements import ROUNDOFF
from torch import Tensor

import nkisim
from nkisim.settings import Rules
from wantrn.kernels.row_mx import ChannelWeight

BF16, FP32 = torch.bfloat16, torch.float32
# nothing is read that nothing wrote, and no two cores touch the same bytes
STRICT = Rules(uninitialized="error", unwritten_output="error")


def launch(kernel: Any, *args: Any, lnc: int = 1, target: str = "gen4") -> Tensor:
    found: Tensor = nkisim.simulate(kernel, target=target, rules=STRICT)[lnc](*args)
    return found


def normal(shape: tuple[int, ...], seed: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Weight:
    """A weight as a kernel takes it, `scales` None for bf16, and as a matrix `[K, I]`."""

    tensor: Tensor
    scales: Tensor | None
    matrix: Tensor

    @classmethod
    def random(cls, depth: int, width: int, packed: bool, seed: int) -> Weight:
        wide = normal((depth, width), seed, depth**-0.5)
        if packed:
            quantized = ChannelWeight.of(wide.T.contiguous())
            return cls(quantized.codes, quantized.scales, quantized.dequantized().double().T)
        return cls(wide.bfloat16(), None, wide.bfloat16().double())


def random_bias(kind: str, width: int, seed: int) -> Tensor | None:
    if kind == "none":
        return None
    return normal((1, width), seed).to(BF16 if kind == "bf16" else FP32)


@dataclass(frozen=True)
class Interval:
    """A value in float64 and how far a kernel's may be from it."""

    value: Tensor
    off: Tensor

    def times(self, matrix: Tensor, bias: Tensor | None) -> Interval:
        """`value @ matrix + bias`, accumulated in fp32: a rounding for each product, two for the
        scales and one for the bias, each relative to the sum of magnitudes."""
        added = torch.zeros(1) if bias is None else bias
        size = (self.value.abs() + self.off) @ matrix.abs() + added.double().abs()
        roundings = (matrix.shape[0] + 3) * ROUNDOFF[FP32]
        value = self.value @ matrix + added.double()
        return Interval(value, self.off @ matrix.abs() + roundings * size)

    def rounded(self) -> Interval:
        """Rounded to bf16."""
        return Interval(self.value, self.off + ROUNDOFF[BF16] * (self.value.abs() + self.off))

    def quantized(self) -> Interval:
        """Quantized to MX: half a step of e4m3fn, 2 ** -4 relative, or 2 ** -10 of the scale.

        The scale of 32 neighbours is at most `amax / 128`, see `nkisim.mx.quantize`.
        """
        size = self.value.abs() + self.off
        largest = size.reshape(len(size), -1, 32).amax(-1, keepdim=True).expand(-1, -1, 32)
        scale = largest.flatten(-2) / 128
        return Interval(self.value, self.off + torch.maximum(2.0**-4 * size, 2.0**-10 * scale))


def assert_within(found: Tensor, expected: Interval) -> None:
    """Rounded once more to bf16."""
    assert found.dtype == BF16
    allowed = expected.rounded()
    error = (found.double().reshape(allowed.value.shape) - allowed.value).abs()
    assert (error <= allowed.off).all(), float((error / allowed.off).max())


def assert_nearly_equal(found: Tensor, reference: Tensor, share: float = 0.01) -> None:
    """The reference rounds where the kernel does: sums in another order change few values."""
    assert found.shape == reference.shape and found.dtype == reference.dtype
    assert float((found != reference).double().mean()) < share
