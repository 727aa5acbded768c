"""What the engine's process and the first rank say to each other, and its form on a socket.

A message is a JSON object, and after it as many bytes as ``"bytes"`` says. It is sent as the
object's length, four bytes, then the object, then the bytes. Both ends are this program's own.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wantrn.serving.engines.protocol import (
    Cancelled,
    Decoding,
    Failed,
    Finished,
    Previewed,
    Ready,
    Started,
    Stepped,
    Work,
    WorkEvent,
)
from wantrn.serving.settings_json import settings_from_json, settings_to_json

LENGTH = struct.Struct(">I")


@dataclass(frozen=True)
class Begin:
    """Make a video."""

    work: Work


@dataclass(frozen=True)
class Drop:
    """Stop making a video."""

    id: str


@dataclass(frozen=True)
class End:
    """Stop all work, and end."""


Command = Begin | Drop | End


@dataclass(frozen=True)
class Ended:
    """Why the ranks end, from whoever knows."""

    reason: str


Report = Ready | Ended | WorkEvent

_PLAIN: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        *(Ready, Started, Stepped, Decoding, Finished, Failed, Cancelled),
        *(Drop, End, Ended),
    )
}


def pack(message: Command | Report) -> bytes:
    """The message's form on the socket."""
    extra = b""
    if isinstance(message, Begin):
        values = _work_values(message.work)
    elif isinstance(message, Previewed):
        values, extra = {"id": message.id}, message.png
    else:
        values = asdict(message)
    head = json.dumps({"kind": type(message).__name__, "bytes": len(extra), "values": values})
    encoded = head.encode()
    return LENGTH.pack(len(encoded)) + encoded + extra


def extra_bytes(head: bytes) -> int:
    """How many bytes follow a message's JSON object."""
    return int(json.loads(head)["bytes"])


def unpack(head: bytes, extra: bytes) -> Command | Report:
    """The message that ``pack`` was given."""
    message = json.loads(head)
    kind, values = message["kind"], message["values"]
    if kind == "Begin":
        return Begin(_work(values))
    if kind == "Previewed":
        return Previewed(values["id"], extra)
    made: Command | Report = _PLAIN[kind](**values)
    return made


def _work_values(work: Work) -> dict[str, Any]:
    return {
        "id": work.id,
        "settings": settings_to_json(work.settings),
        "output": str(work.output),
        "image": None if work.image is None else str(work.image),
        "latents": None if work.latents is None else str(work.latents),
        "metadata": dict(work.metadata),
    }


def _work(values: dict[str, Any]) -> Work:
    return Work(
        id=values["id"],
        settings=settings_from_json(values["settings"]),
        output=Path(values["output"]),
        image=None if values["image"] is None else Path(values["image"]),
        latents=None if values["latents"] is None else Path(values["latents"]),
        metadata=values["metadata"],
    )
