"""Which LoRAs a video is to be made with, and how strongly."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class LoraChoice:
    """One LoRA of a request.

    A model with a single expert takes choices alone that do not tell experts apart, as ``of`` makes
    them.

    Attributes:
        name: for people, in descriptions and errors.
        high: the file for the high-noise (or only) expert, a safetensors file or a folder of PEFT;
            None leaves that expert as it is.
        low: the file for the low-noise expert, or None.
        high_scale: what the LoRA's effect on the high-noise expert is multiplied with, in addition
            to what the file says; 0 leaves the expert as it is.
        low_scale: the same for the low-noise expert.
    """

    name: str
    high: Path | None
    low: Path | None
    high_scale: float = 1.0
    low_scale: float = 1.0

    @classmethod
    def of(cls, path: Path, scale: float = 1.0, name: str | None = None) -> LoraChoice:
        """One file for all experts, alike; its name is that of the file unless given."""
        return cls(path.name if name is None else name, path, path, scale, scale)

    def for_expert(self, expert: int) -> tuple[Path, float] | None:
        """File and scale for an expert, 0 the high-noise (or only) one, 1 the low-noise one."""
        path, scale = ((self.high, self.high_scale), (self.low, self.low_scale))[expert]
        return None if path is None else (path, scale)

    @property
    def tells_experts_apart(self) -> bool:
        """Whether the two experts get anything different."""
        return self.for_expert(0) != self.for_expert(1)

    def describe(self) -> str:
        """``name=scale``, or what each expert gets."""
        if not self.tells_experts_apart:
            return f"{self.name}={self.high_scale:g}"
        files_differ = self.high is not None and self.low is not None and self.high != self.low
        parts = []
        for label, expert in (("high", 0), ("low", 1)):
            chosen = self.for_expert(expert)
            if chosen is not None:
                file = f" {chosen[0].name}" if files_differ else ""
                parts.append(f"{label}{file}={chosen[1]:g}")
        return f"{self.name} ({', '.join(parts)})"
