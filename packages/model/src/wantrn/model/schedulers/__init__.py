"""Flow-matching solvers: a plan for one run, and steps that carry their state in the open."""

from wantrn.model.schedulers.base import Scheduler, State
from wantrn.model.schedulers.config import (
    MAX_SHIFT,
    SCHEDULER_NAMES,
    checkpoint_shift,
    make_scheduler,
    scheduler_name,
)
from wantrn.model.schedulers.euler import Euler
from wantrn.model.schedulers.unipc import UniPC

__all__ = [
    "MAX_SHIFT",
    "SCHEDULER_NAMES",
    "Euler",
    "Scheduler",
    "State",
    "UniPC",
    "checkpoint_shift",
    "make_scheduler",
    "scheduler_name",
]
