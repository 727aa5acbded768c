"""How a pipeline computes. Nothing here changes the video it makes, but for rounding."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from wantrn.model.parallelism import Parallelism
from wantrn.model.vae_tiles import Tiling
from wantrn.parallel import Group


@dataclass(frozen=True)
class Execution:
    """How a pipeline computes on this rank.

    Attributes:
        parallel: the ranks that share the transformers and the text encoder.
        batched_guidance: both branches of guidance pass through the transformer as one batch, which
            reads its weights once and takes twice the memory for activations; otherwise one after
            the other, or on two ranks where ``parallel.groups.cfg`` has them.
        tiling: how the video is cut for decoding; None decodes it whole.
        vae_group: the ranks that share its tiles.
        device: where the transformers are. Text encoder, autoencoder and solver are on the CPU.

    Raises:
        ValueError: options that exclude each other, by name.
    """

    parallel: Parallelism = field(default_factory=Parallelism)
    batched_guidance: bool = False
    tiling: Tiling | None = None
    vae_group: Group = field(default_factory=Group.single)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        if self.batched_guidance and self.parallel.groups.cfg.size > 1:
            raise ValueError(
                "batched_guidance must be False where two ranks share the branches of guidance"
            )
        if self.vae_group.size > 1 and self.tiling is None:
            raise ValueError(
                f"tiling must be given for the {self.vae_group.size} ranks that share its tiles"
            )
