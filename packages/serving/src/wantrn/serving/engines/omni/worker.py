"""A rank of vLLM-Omni."""

from __future__ import annotations

import os
import socket

import torch

from wantrn.serving.engines.omni.compatibility import DiffusionWorker
from wantrn.serving.engines.omni.stage_options import StageOptions


class WanWorker(DiffusionWorker):  # type: ignore[misc]
    """vLLM-Omni's worker, on threads of its own and without what our pipelines do not have."""

    def init_device(self) -> None:
        """Join the other ranks."""
        torch.set_num_threads(StageOptions.of(self.od_config).threads)
        _meet_on_this_machine()
        super().init_device()

    def init_lora_manager(self) -> None:
        """vLLM-Omni's LoRA looks for modules of vLLM's, of which our transformers have none."""


def _meet_on_this_machine() -> None:
    # the machine's own name may lead to an address that it does not have
    for _, name in socket.if_nameindex():
        if name in ("lo", "lo0"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
