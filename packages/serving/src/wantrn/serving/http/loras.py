"""The LoRAs of a server: files that its operator put into a folder, and clients know by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from wantrn.model.errors import RequestError
from wantrn.model.lora import LoraChoice
from wantrn.serving.http.errors import ApiError

_SUFFIX = ".safetensors"
_PAIR = ("high", "low")


class LoraUse(BaseModel):
    """A LoRA that a video is made with."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    name: Annotated[str, Field(description="one that GET /v1/models tells", max_length=200)]
    scale: Annotated[float, Field(description="of its effect")] = 1.0
    scale_2: Annotated[
        float | None, Field(description="of its effect on the low-noise expert; else that of scale")
    ] = None


class LoraFolder:
    """``NAME.safetensors`` is the LoRA NAME for all experts; ``NAME/high.safetensors`` and
    ``NAME/low.safetensors``, of which one may be missing, are one for two experts.

    The folder is read at each call, so that a file can be added to a running server.

    Raises:
        RequestError: on ``loras``, if there is no such folder.
    """

    def __init__(self, folder: Path | None) -> None:
        if folder is not None and not folder.is_dir():
            raise RequestError("loras", f"there is no folder {folder}")
        self._folder = folder

    def names(self) -> list[str]:
        return sorted(self._found())

    def choices(self, uses: Sequence[LoraUse]) -> tuple[LoraChoice, ...]:
        """What the model is told; ``ApiError`` for a name that is not there."""
        found = self._found() if uses else {}
        chosen = []
        for use in uses:
            if use.name not in found:
                known = ", ".join(sorted(found)) or "none"
                raise ApiError(
                    400,
                    f"lora: {use.name!r} is not here; this server has {known}",
                    param="lora",
                    code="lora_not_found",
                )
            low_scale = use.scale if use.scale_2 is None else use.scale_2
            high, low = found[use.name]
            chosen.append(LoraChoice(use.name, high, low, use.scale, low_scale))
        return tuple(chosen)

    def _found(self) -> dict[str, tuple[Path | None, Path | None]]:
        """Name to the file for the high-noise (or only) expert, and that for the low-noise one."""
        found: dict[str, tuple[Path | None, Path | None]] = {}
        for path in () if self._folder is None else self._folder.iterdir():
            if path.suffix == _SUFFIX and path.is_file():
                found[path.stem] = (path, path)
            elif path.is_dir():
                files = [path / f"{name}{_SUFFIX}" for name in _PAIR]
                high, low = (file if file.is_file() else None for file in files)
                if high is not None or low is not None:
                    found[path.name] = (high, low)
        return found
