"""From a diffusers ``scheduler_config.json`` to a solver for one run.

Every field of the two classes that Wan checkpoints come with is listed here, with diffusers'
default: it is honoured, or it must have the one value that is implemented, or diffusers itself does
not read it for a flow model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from wantrn.model.errors import CheckpointError, RequestError
from wantrn.model.schedulers.base import Scheduler
from wantrn.model.schedulers.euler import Euler
from wantrn.model.schedulers.flow import euler_levels, unipc_levels
from wantrn.model.schedulers.unipc import MAX_ORDER, UniPC

SCHEDULER_NAMES = ("unipc", "euler")

# Beyond it the first levels are no longer apart in fp32.
MAX_SHIFT = 100.0

_CLASSES = {"UniPCMultistepScheduler": "unipc", "FlowMatchEulerDiscreteScheduler": "euler"}
_SHIFT_FIELD = {"unipc": "flow_shift", "euler": "shift"}


@dataclass(frozen=True)
class _Rule:
    """What a field may be: a test, and the same in words."""

    default: Any
    allows: Callable[[Any], bool]
    allowed: str


def _only(value: Any, default: Any) -> _Rule:
    # type and value: False is not 0
    return _Rule(default, lambda v: type(v) is type(value) and v == value, f"only {value!r}")


def _one_of(default: str, *values: str) -> _Rule:
    return _Rule(default, lambda v: v in values, " or ".join(map(repr, values)))


def _whole(default: int, low: int, high: int) -> _Rule:
    return _Rule(
        default, lambda v: type(v) is int and low <= v <= high, f"a whole number, {low} to {high}"
    )


def _is_shift(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and 0 < value <= MAX_SHIFT


def _is_step_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(type(v) is int for v in value)


_SHIFT = _Rule(1.0, _is_shift, f"a number above 0, at most {MAX_SHIFT:g}")
_TRAIN_TIMESTEPS = _whole(1000, 1, 1_000_000)

_COMMON = {
    "num_train_timesteps": _TRAIN_TIMESTEPS,
    "use_dynamic_shifting": _only(False, False),
    "use_karras_sigmas": _only(False, False),
    "use_exponential_sigmas": _only(False, False),
    "use_beta_sigmas": _only(False, False),
    "shift_terminal": _only(None, None),
}
_RULES: Mapping[str, Mapping[str, _Rule]] = {
    "unipc": {
        **_COMMON,
        "flow_shift": _SHIFT,
        "solver_order": _whole(2, 1, MAX_ORDER),
        "solver_type": _one_of("bh2", "bh1", "bh2"),
        "lower_order_final": _Rule(True, lambda v: isinstance(v, bool), "True or False"),
        "disable_corrector": _Rule([], _is_step_list, "a list of step numbers"),
        "final_sigmas_type": _one_of("zero", "zero", "sigma_min"),
        "prediction_type": _only("flow_prediction", default="epsilon"),
        "use_flow_sigmas": _only(True, default=False),
        "predict_x0": _only(True, True),
        "thresholding": _only(False, False),
        "solver_p": _only(None, None),
    },
    "euler": {
        **_COMMON,
        "shift": _SHIFT,
        "invert_sigmas": _only(False, False),
        "stochastic_sampling": _only(False, False),
    },
}
# Belong to other kinds of model or to an option above that is off: diffusers does not read them.
_UNREAD: Mapping[str, frozenset[str]] = {
    "unipc": frozenset(
        {
            "beta_start",
            "beta_end",
            "beta_schedule",
            "trained_betas",
            "rescale_betas_zero_snr",
            "timestep_spacing",
            "steps_offset",
            "sigma_min",
            "sigma_max",
            "dynamic_thresholding_ratio",
            "sample_max_value",
            "time_shift_type",
        }
    ),
    "euler": frozenset(
        {
            "base_shift",
            "max_shift",
            "base_image_seq_len",
            "max_image_seq_len",
            "time_shift_type",
        }
    ),
}


def scheduler_name(config: Mapping[str, Any]) -> str:
    """The solver that a configuration names. Raises ``CheckpointError`` as below."""
    return _read(config)[0]


def checkpoint_shift(config: Mapping[str, Any]) -> float:
    """The shift that a scheduler configuration asks for. Raises ``CheckpointError`` as below."""
    name, values = _read(config)
    return float(values[_SHIFT_FIELD[name]])


def make_scheduler(
    config: Mapping[str, Any], steps: int, name: str | None = None, shift: float | None = None
) -> Scheduler:
    """A solver for a run of ``steps`` steps, as a checkpoint's scheduler configuration has it.

    ``name`` ("unipc" or "euler") asks for another solver: it takes over the configuration's shift
    and number of training timesteps, and has diffusers' defaults otherwise. ``shift`` replaces the
    configuration's. Raises ``CheckpointError`` on a class, field or value that is not implemented
    and ``RequestError`` on an argument that cannot be.
    """
    own_name, values = _read(config)
    if shift is None:
        shift = float(values[_SHIFT_FIELD[own_name]])
    elif not _is_shift(shift):
        raise RequestError("shift", f"{shift!r} is not allowed; it must be {_SHIFT.allowed}")
    train_timesteps: int = values["num_train_timesteps"]
    _check_steps(steps, train_timesteps)
    if name is None or name == own_name:
        name = own_name
    elif name in SCHEDULER_NAMES:
        values = {field: rule.default for field, rule in _RULES[name].items()}
    else:
        allowed = " or ".join(map(repr, SCHEDULER_NAMES))
        raise RequestError("scheduler", f"{name!r} is unknown; it must be {allowed}")
    if name == "euler":
        return Euler(*euler_levels(steps, shift, train_timesteps))
    end_at_zero = values["final_sigmas_type"] == "zero"
    return UniPC(
        *unipc_levels(steps, shift, train_timesteps, end_at_zero),
        order=values["solver_order"],
        basis=values["solver_type"],
        lower_order_final=values["lower_order_final"],
        uncorrected=frozenset(values["disable_corrector"]),
    )


def _check_steps(steps: int, most: int) -> None:
    if type(steps) is not int or not 1 <= steps <= most:
        raise RequestError("steps", f"{steps!r} is not allowed; it must be 1 to {most}")


def _read(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The solver's name and the value of every field that it honours."""
    class_name = config.get("_class_name")
    if class_name not in _CLASSES:
        raise _refusal("_class_name", class_name, " or ".join(map(repr, _CLASSES)))
    name = _CLASSES[class_name]
    rules, unread = _RULES[name], _UNREAD[name]
    for field, value in config.items():
        if not (field.startswith("_") or field in rules or field in unread):
            raise _refusal(field, value, f"no such field in {class_name}")
    values = {field: config.get(field, rule.default) for field, rule in rules.items()}
    for field, rule in rules.items():
        if not rule.allows(values[field]):
            raise _refusal(field, values[field], rule.allowed)
    if name == "unipc":
        _check_ending(values)
    return name, values


def _check_ending(values: Mapping[str, Any]) -> None:
    """The last step to sigma 0 is infinitely long, and only order 1 has a limit there."""
    endless = values["final_sigmas_type"] == "zero" and values["solver_order"] > 1
    if endless and not values["lower_order_final"]:
        raise _refusal(
            "lower_order_final",
            False,
            "True, or else solver_order 1 or final_sigmas_type 'sigma_min'",
        )


def _refusal(field: str, value: Any, allowed: str) -> CheckpointError:
    return CheckpointError(
        f"scheduler_config.json: {field} is {value!r}, which is not supported; allowed: {allowed}"
    )
