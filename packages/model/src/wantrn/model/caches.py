"""How much a pipeline keeps of what later runs may ask for again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CacheLimits:
    """Bytes of memory on each rank; 0 keeps nothing.

    Attributes:
        prompts: of encoded prompts. One of 100 tokens takes 0.8 MB in bf16.
        loras: of LoRAs. What running videos use is held beside it.

    Raises:
        ValueError: a limit is negative.
    """

    prompts: int = 64 * 2**20
    loras: int = 4 * 2**30

    def __post_init__(self) -> None:
        for name in ("prompts", "loras"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more bytes, got {getattr(self, name)}")
