"""Messages between the ranks of a run that run apart: a line of JSON, and the bytes of arrays."""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from nkisim.meeting import Description

Array = npt.NDArray[Any]


class Kind(enum.Enum):
    """What a message says."""

    meeting = "meeting"
    finished = "finished"
    failed = "failed"


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes:
        kind: what it says
        text: why the rank failed
        lost: the rank did not say so: nothing is heard of it any more
        stream, op, facts, position: of a meeting; facts as text
        shapes, data: of the arrays that the rank brings
    """

    kind: Kind
    text: str = ""
    lost: bool = False
    stream: str = ""
    op: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    position: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()
    data: bytes | memoryview = b""

    @classmethod
    def meeting(
        cls, stream: str, description: Description, position: str, arrays: Sequence[Array]
    ) -> Self:
        """That this rank has come to a collective, and what it brings."""
        return cls(
            Kind.meeting,
            stream=stream,
            op=description.op,
            facts=tuple((name, str(value)) for name, value in description.facts),
            position=position,
            shapes=tuple(array.shape for array in arrays),
            data=b"".join(array.tobytes() for array in arrays),
        )

    @classmethod
    def finished(cls) -> Self:
        """That this rank has come to its end."""
        return cls(Kind.finished)

    @classmethod
    def failed(cls, text: str) -> Self:
        """That this rank has failed: a line that names the rank that did first."""
        return cls(Kind.failed, text)

    @classmethod
    def gone(cls, text: str) -> Self:
        """What takes the place of the message of a rank of which nothing is heard."""
        return cls(Kind.failed, text, lost=True)

    def description(self) -> Description:
        """What the rank takes part in; facts are texts."""
        return Description(self.op, self.facts)

    def arrays(self, like: Sequence[Array]) -> list[Array]:
        """What the rank brings, with the types of `like`."""
        found, start = [], 0
        for shape, other in zip(self.shapes, like, strict=True):
            count = int(np.prod(shape, dtype=np.int64))
            part = np.frombuffer(self.data, other.dtype, count, start)
            found.append(part.reshape(shape))
            start += part.nbytes
        return found

    def encoded(self) -> bytes:
        """As bytes."""
        head = [
            self.kind.value,
            self.text,
            self.stream,
            self.op,
            self.facts,
            self.position,
            self.shapes,
        ]
        return json.dumps(head).encode() + b"\n" + self.data

    @classmethod
    def decoded(cls, message: bytes) -> Self:
        """Of the bytes that `encoded` makes."""
        end = message.index(b"\n")
        kind, text, stream, op, facts, position, shapes = json.loads(message[:end])
        return cls(
            Kind(kind),
            text,
            False,
            stream,
            op,
            tuple((name, value) for name, value in facts),
            position,
            tuple(tuple(shape) for shape in shapes),
            memoryview(message)[end + 1 :],
        )
