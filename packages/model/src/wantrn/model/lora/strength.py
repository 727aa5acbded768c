"""By what a file says its changes are to be multiplied: alpha over rank, as PEFT keeps it apart."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from wantrn.model.checkpoints.safetensors_header import parse_json_object
from wantrn.model.errors import CheckpointError
from wantrn.model.json_file import read_json

_CONFIG = "adapter_config.json"  # beside the weights, in a folder that PEFT has written
_METADATA = "lora_adapter_metadata"  # in the header of a file that diffusers has written


@dataclass(frozen=True)
class Strength:
    """``alpha`` of layers that have no tensor for it; None means the layer's rank, a factor of 1.

    Attributes:
        alpha: of all layers that no pattern names.
        patterns: alpha by a pattern, which PEFT matches with the end of a layer's name.
        root: the factor is alpha over the square root of the rank (rsLoRA).
    """

    alpha: float | None = None
    patterns: tuple[tuple[str, float], ...] = field(default=())
    root: bool = False

    def factor(self, layer: str, rank: int, alpha: float | None) -> float:
        """For a layer of this ``rank``, with the ``alpha`` that the file has for it or None."""
        if alpha is None:
            alpha = next(
                (value for pattern, value in self.patterns if _is_end(pattern, layer)), self.alpha
            )
        if alpha is None:
            return 1.0
        return alpha / math.sqrt(rank) if self.root else alpha / rank

    @classmethod
    def of(cls, path: Path, file: Path, low: bool) -> Strength:
        """What stands in the header of ``file``, or beside it where ``path`` is its folder.

        ``low``: of a file with two experts, for the low-noise one.

        Raises:
            CheckpointError: naming the file and what it says that cannot be carried out.
        """
        config = path / _CONFIG if path.is_dir() else file.parent / _CONFIG
        if path.is_dir() or file.name == "adapter_model.safetensors":
            return cls._read(read_json(config), str(config)) if config.is_file() else cls()
        try:
            with safe_open(file, framework="pt") as handle:
                metadata = handle.metadata() or {}
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file}: cannot be read: {error}") from error
        if _METADATA not in metadata:
            return cls()
        source = f"{file}: {_METADATA}"
        values = parse_json_object(metadata[_METADATA].encode(), source)
        return cls._read(_of_component(values, low), source)

    @classmethod
    def _read(cls, values: Mapping[str, Any], source: str) -> Strength:
        for key in ("use_dora", "fan_in_fan_out"):
            if values.get(key):
                raise CheckpointError(f"{source}: {key} is {values[key]!r}; it must be false")
        patterns = values.get("alpha_pattern") or {}
        if not isinstance(patterns, dict):
            raise CheckpointError(f"{source}: alpha_pattern is no object")
        found = tuple(
            (_pattern(source, name), _number(source, f"alpha_pattern of {name}", value))
            for name, value in patterns.items()
        )
        alpha = values.get("lora_alpha")
        return cls(
            None if alpha is None else _number(source, "lora_alpha", alpha),
            found,
            bool(values.get("use_rslora")),
        )


def _of_component(values: Mapping[str, Any], low: bool) -> dict[str, Any]:
    """Keys may begin with the name of the pipeline's component that they are for."""
    own, other = ("transformer_2.", "transformer.") if low else ("transformer.", "transformer_2.")
    for prefix in (own, other):
        if any(key.startswith(prefix) for key in values):
            return {
                key.removeprefix(prefix): value
                for key, value in values.items()
                if key.startswith(prefix)
            }
    return dict(values)


def _is_end(pattern: str, layer: str) -> bool:
    return layer == pattern or layer.endswith(f".{pattern}")


def _pattern(source: str, pattern: object) -> str:
    """PEFT takes regular expressions; those that are more than a name are refused."""
    if not isinstance(pattern, str) or not re.fullmatch(r"[\w.]+", pattern):
        raise CheckpointError(
            f"{source}: alpha_pattern {pattern!r} must be the name of a layer, or its end"
        )
    return pattern


def _number(source: str, name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise CheckpointError(f"{source}: {name} must be a finite number, is {value!r}")
    return float(value)
