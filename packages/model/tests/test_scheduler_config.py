"""What a scheduler configuration may say, field by field."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler

from wantrn.model.errors import CheckpointError, RequestError
from wantrn.model.schedulers import (
    SCHEDULER_NAMES,
    Euler,
    UniPC,
    checkpoint_shift,
    make_scheduler,
    scheduler_name,
)

UNIPC: dict[str, Any] = {
    "_class_name": "UniPCMultistepScheduler",
    "_diffusers_version": "0.35.0",
    "prediction_type": "flow_prediction",
    "use_flow_sigmas": True,
    "flow_shift": 5.0,
}
EULER: dict[str, Any] = {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}
THEIRS: dict[str, Any] = {
    "unipc": UniPCMultistepScheduler,
    "euler": FlowMatchEulerDiscreteScheduler,
}
OURS = {"unipc": UNIPC, "euler": EULER}


def their_defaults(name: str) -> dict[str, Any]:
    parameters = inspect.signature(THEIRS[name].__init__).parameters
    return {key: value.default for key, value in parameters.items() if key != "self"}


@pytest.mark.parametrize("name", SCHEDULER_NAMES)
def test_a_config_as_diffusers_writes_it_is_read(name: str) -> None:
    own = {key: value for key, value in OURS[name].items() if not key.startswith("_")}
    written = dict(THEIRS[name](**own).config)
    assert set(written) >= set(their_defaults(name))
    full = make_scheduler({**written, "_class_name": OURS[name]["_class_name"]}, 9)
    short = make_scheduler(OURS[name], 9)
    assert torch.equal(full.sigmas, short.sigmas)
    assert type(full) is type(short)
    if isinstance(full, UniPC) and isinstance(short, UniPC):
        assert (full.order, full.basis) == (short.order, short.basis) == (2, "bh2")
        assert full.lower_order_final
        assert short.lower_order_final
        assert full.uncorrected == short.uncorrected == frozenset()


@pytest.mark.parametrize("name", SCHEDULER_NAMES)
def test_absent_fields_have_the_defaults_of_diffusers(name: str) -> None:
    """Leaving a field out is the same as writing diffusers' default, and every field is known."""
    for field, default in their_defaults(name).items():
        with_default = {**OURS[name], field: default}
        without = {key: value for key, value in OURS[name].items() if key != field}
        if field in ("prediction_type", "use_flow_sigmas"):
            for config in (with_default, without):
                with pytest.raises(CheckpointError, match=f"{field} is {default!r}"):
                    make_scheduler(config, 5)
        else:
            first, second = make_scheduler(with_default, 5), make_scheduler(without, 5)
            assert torch.equal(first.sigmas, second.sigmas), field


def test_every_solver_field_reaches_the_solver() -> None:
    config = {
        **UNIPC,
        "solver_order": 3,
        "solver_type": "bh1",
        "disable_corrector": [1, 2],
        "lower_order_final": False,
        "final_sigmas_type": "sigma_min",
        "num_train_timesteps": 500,
    }
    solver = make_scheduler(config, 6)
    assert isinstance(solver, UniPC)
    assert (solver.order, solver.basis) == (3, "bh1")
    assert solver.uncorrected == {1, 2}
    assert not solver.lower_order_final
    assert solver.sigmas[-1] == solver.sigmas[-2]
    assert solver.timesteps[0] == 499


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("beta_start", 0.1),
        ("beta_end", 0.5),
        ("beta_schedule", "scaled_linear"),
        ("rescale_betas_zero_snr", True),
        ("timestep_spacing", "trailing"),
        ("steps_offset", 1),
        ("sigma_min", 0.1),
        ("sigma_max", 0.9),
        ("dynamic_thresholding_ratio", 0.5),
        ("sample_max_value", 2.0),
        ("time_shift_type", "linear"),
    ],
)
def test_fields_we_do_not_read_change_nothing_in_diffusers(field: str, value: Any) -> None:
    def run(config: dict[str, Any]) -> torch.Tensor:
        solver = THEIRS["unipc"](
            **{key: entry for key, entry in config.items() if not key.startswith("_")}
        )
        solver.set_timesteps(6)
        sample = torch.linspace(-1, 1, 8).reshape(1, 2, 4)
        for time in solver.timesteps:
            velocity = torch.cos(sample + float(time) / 200)
            sample = solver.step(velocity, time, sample, return_dict=False)[0]
        return sample

    assert torch.equal(run(UNIPC), run({**UNIPC, field: value}))
    make_scheduler({**UNIPC, field: value}, 6)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"thresholding": True}, "thresholding is True.*only False"),
        ({"use_karras_sigmas": True}, "use_karras_sigmas is True.*only False"),
        ({"use_exponential_sigmas": True}, "use_exponential_sigmas is True"),
        ({"use_beta_sigmas": True}, "use_beta_sigmas is True"),
        ({"use_dynamic_shifting": True}, "use_dynamic_shifting is True"),
        ({"shift_terminal": 0.1}, "shift_terminal is 0.1.*only None"),
        ({"prediction_type": "epsilon"}, "prediction_type is 'epsilon'.*'flow_prediction'"),
        ({"use_flow_sigmas": False}, "use_flow_sigmas is False.*only True"),
        ({"predict_x0": False}, "predict_x0 is False.*only True"),
        ({"solver_p": "x"}, "solver_p is 'x'"),
        ({"solver_type": "logrho"}, "solver_type is 'logrho'.*'bh1' or 'bh2'"),
        ({"solver_type": ["bh2"]}, "solver_type is \\['bh2'\\]"),
        ({"solver_order": 4}, "solver_order is 4.*1 to 3"),
        ({"solver_order": 0}, "solver_order is 0"),
        ({"solver_order": True}, "solver_order is True"),
        ({"solver_order": "2"}, "solver_order is '2'"),
        ({"flow_shift": 0}, "flow_shift is 0.*above 0"),
        ({"flow_shift": float("nan")}, "flow_shift is nan"),
        ({"flow_shift": None}, "flow_shift is None"),
        ({"flow_shift": True}, "flow_shift is True"),
        ({"num_train_timesteps": 0}, "num_train_timesteps is 0"),
        ({"disable_corrector": "0"}, "disable_corrector is '0'.*a list"),
        ({"disable_corrector": [0.5]}, "disable_corrector is \\[0.5\\]"),
        ({"lower_order_final": 1}, "lower_order_final is 1"),
        ({"lower_order_final": False}, "lower_order_final is False.*final_sigmas_type"),
        ({"final_sigmas_type": "one"}, "final_sigmas_type is 'one'.*'zero' or 'sigma_min'"),
        ({"shift": 5.0}, "shift is 5.0.*no such field in UniPCMultistepScheduler"),
        ({"_class_name": "DDIMScheduler"}, "_class_name is 'DDIMScheduler'.*UniPCMultistep"),
        ({"_class_name": None}, "_class_name is None"),
    ],
)
def test_refuses_what_is_not_implemented(changes: dict[str, Any], named: str) -> None:
    for name in (None, "euler"):  # asking for another solver does not hide a wrong checkpoint
        with pytest.raises(CheckpointError, match=named):
            make_scheduler({**UNIPC, **changes}, 5, name=name)
    with pytest.raises(CheckpointError, match=named):
        checkpoint_shift({**UNIPC, **changes})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"invert_sigmas": True}, "invert_sigmas is True"),
        ({"stochastic_sampling": True}, "stochastic_sampling is True"),
        ({"use_dynamic_shifting": True}, "use_dynamic_shifting is True"),
        ({"flow_shift": 5.0}, "flow_shift is 5.0.*no such field"),
    ],
)
def test_refuses_what_is_not_implemented_of_euler(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        make_scheduler({**EULER, **changes}, 5)


def test_another_solver_keeps_the_checkpoints_shift() -> None:
    assert scheduler_name(UNIPC) == "unipc"
    assert scheduler_name(EULER) == "euler"
    assert checkpoint_shift(UNIPC) == 5.0
    assert checkpoint_shift(EULER) == 3.0
    assert checkpoint_shift({"_class_name": "FlowMatchEulerDiscreteScheduler"}) == 1.0
    euler = make_scheduler({**UNIPC, "num_train_timesteps": 500}, 7, name="euler")
    assert isinstance(euler, Euler)
    expected = make_scheduler({**EULER, "shift": 5.0, "num_train_timesteps": 500}, 7)
    assert torch.equal(euler.sigmas, expected.sigmas)
    unipc = make_scheduler(EULER, 7, name="unipc")
    assert isinstance(unipc, UniPC)
    assert torch.equal(unipc.sigmas, make_scheduler({**UNIPC, "flow_shift": 3.0}, 7).sigmas)


def test_naming_the_checkpoints_own_solver_keeps_its_settings() -> None:
    solver = make_scheduler({**UNIPC, "solver_order": 1}, 4, name="unipc")
    assert isinstance(solver, UniPC)
    assert solver.order == 1


def test_shift_replaces_the_checkpoints() -> None:
    for name in SCHEDULER_NAMES:
        ours = make_scheduler(UNIPC, 7, name=name, shift=8.0)
        assert torch.equal(ours.sigmas, make_scheduler({**UNIPC, "flow_shift": 8}, 7, name).sigmas)


@pytest.mark.parametrize(
    ("arguments", "field", "named"),
    [
        ({"steps": 0}, "steps", "steps: 0 .* 1 to 1000"),
        ({"steps": -3}, "steps", "-3"),
        ({"steps": 1001}, "steps", "1001"),
        ({"steps": 2.5}, "steps", "2.5"),
        ({"steps": True}, "steps", "True"),
        ({"name": "ddim"}, "scheduler", "'ddim'.*'unipc' or 'euler'"),
        ({"name": ""}, "scheduler", "''"),
        ({"shift": 0.0}, "shift", "0.0.*above 0"),
        ({"shift": float("inf")}, "shift", "inf"),
        ({"shift": 101.0}, "shift", "101.*at most 100"),
    ],
)
def test_refuses_a_request_that_cannot_be(
    arguments: dict[str, Any], field: str, named: str
) -> None:
    with pytest.raises(RequestError, match=named) as caught:
        make_scheduler(UNIPC, **{"steps": 5, **arguments})
    assert caught.value.field == field


@pytest.mark.parametrize("name", SCHEDULER_NAMES)
@pytest.mark.parametrize("shift", [0.01, 100.0])
def test_the_extremes_run(name: str, shift: float) -> None:
    solver = make_scheduler(UNIPC, 1000, name=name, shift=shift)
    sample, state = torch.ones(1, 2), solver.start()
    for _ in range(1000):
        sample, state = solver.step(state, sample, sample)
    assert torch.isfinite(sample).all()
