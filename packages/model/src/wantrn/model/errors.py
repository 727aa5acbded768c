"""The two errors that a user of this package can cause."""

from __future__ import annotations


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded. The text names the file and the key at fault, if any."""


class RequestError(ValueError):
    """A request that cannot be carried out as asked.

    ``field`` is the request's field (``"size"``, ``"frames"``, ...); the text names the field, the
    value that was given and what is allowed.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
