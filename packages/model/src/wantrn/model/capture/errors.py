"""What can be wrong with a capture."""

from __future__ import annotations


class CaptureError(ValueError):
    """A capture that cannot be made, read or compared; the text names the folder, file or part."""
