"""Modulation: the timestep's rows added to a block's own table."""

from __future__ import annotations

from dataclasses import dataclass, fields

from torch import Tensor


@dataclass(frozen=True)
class BlockModulation:
    """The six rows of one block, fp32 ``[B, G, H]`` each.

    ``scale`` rows already have the one added: they multiply the normalised stream.
    """

    attention_shift: Tensor
    attention_scale: Tensor
    attention_gate: Tensor
    feed_forward_shift: Tensor
    feed_forward_scale: Tensor
    feed_forward_gate: Tensor

    @classmethod
    def of(cls, table: Tensor, rows: Tensor) -> BlockModulation:
        """From a block's ``table`` ``[1, 6, H]`` and the timestep's ``rows`` ``[B, G, 6, H]``."""
        shift1, scale1, gate1, shift3, scale3, gate3 = (table + rows).unbind(dim=2)
        return cls(shift1, 1 + scale1, gate1, shift3, 1 + scale3, gate3)

    def repeated(self, count: int) -> BlockModulation:
        """For a batch of ``count`` times as many, one batch after the other."""
        values = (getattr(self, field.name) for field in fields(self))
        return BlockModulation(*(value.repeat(count, 1, 1) for value in values))


def output_modulation(table: Tensor, vector: Tensor) -> tuple[Tensor, Tensor]:
    """Scale (with its one) and shift ``[B, G, H]`` before the output projection, from the model's
    ``table`` ``[1, 2, H]`` and the timestep's ``vector`` ``[B, G, H]``."""
    shift, scale = (table + vector.unsqueeze(2)).unbind(dim=2)
    return 1 + scale, shift
