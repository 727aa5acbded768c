"""What a rank is told by the program that started it, in environment variables.

The names are those of ``torchrun``, so that a program for the one runs under the other.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

_NEEDED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SUPERVISOR = "WANTRN_SUPERVISOR"


@dataclass(frozen=True)
class LaunchedRank:
    """This process's place in a world that was launched.

    Attributes:
        rank: in the world, from 0.
        local_rank: among the ranks of this machine, from 0.
        world: the number of ranks.
        supervisor: the file descriptor of the socket to ``run_local``; None if another program
            started this rank.
    """

    rank: int
    local_rank: int
    world: int
    supervisor: int | None = None


def rank_of_environment() -> LaunchedRank | None:
    """The place that ``run_local`` or ``torchrun`` gave this process; None if neither started it.

    Raises:
        ValueError: variables that are missing or are no numbers in range, by name.
    """
    if "RANK" not in os.environ:
        return None
    missing = [name for name in _NEEDED if not os.environ.get(name)]
    if missing:
        raise ValueError(f"a rank needs the variables {', '.join(missing)} in its environment")
    world = _number("WORLD_SIZE", 1)
    socket = _number(_SUPERVISOR, 0) if _SUPERVISOR in os.environ else None
    return LaunchedRank(_number("RANK", 0, world), _number("LOCAL_RANK", 0, world), world, socket)


def environment_of(place: LaunchedRank, port: int) -> dict[str, str]:
    """The variables for a rank whose supervisor keeps a ``TCPStore`` at ``port``."""
    return {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "WORLD_SIZE": str(place.world),
        "LOCAL_WORLD_SIZE": str(place.world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        # torch: the store is kept by the program that starts the ranks, rank 0 makes none
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        _SUPERVISOR: str(place.supervisor),
    }


def _number(name: str, least: int, end: int | None = None) -> int:
    text = os.environ[name]
    allowed = f"{least} or more" if end is None else f"{least} to {end - 1}"
    if not text.isdecimal() or int(text) < least or (end is not None and int(text) >= end):
        raise ValueError(f"{name} must be {allowed}, got {text!r}")
    return int(text)
