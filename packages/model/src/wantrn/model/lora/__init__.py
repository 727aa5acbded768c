"""LoRA: small changes of a transformer that a video is made with, read and applied beside it."""

from __future__ import annotations

from wantrn.model.lora.adapters import NONE, Adapters
from wantrn.model.lora.choice import LoraChoice
from wantrn.model.lora.library import LoraLibrary
from wantrn.model.lora.loaded import Lora, LoraReader, combined
from wantrn.model.lora.plan import LoraPlan
from wantrn.model.lora.request import check_choices

__all__ = [
    "NONE",
    "Adapters",
    "Lora",
    "LoraChoice",
    "LoraLibrary",
    "LoraPlan",
    "LoraReader",
    "check_choices",
    "combined",
]
