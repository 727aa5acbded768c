"""When ranks that have ended are started again, and when not any more."""

from __future__ import annotations

_ATTEMPTS = 3  # to start ranks that had been ready before


class Restarts:
    """Counts the lives of an engine's ranks."""

    def __init__(self) -> None:
        self._failures = 0
        self._was_ready = False

    def give_up(self, became_ready: bool) -> bool:
        """Whether there is no hope, after a life in which they became ready, or did not.

        What was never ready has the same fault at the next attempt.
        """
        self._failures = 1 if became_ready else self._failures + 1
        self._was_ready = self._was_ready or became_ready
        return self._failures >= _ATTEMPTS or not self._was_ready
