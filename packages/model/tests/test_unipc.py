"""UniPC against diffusers over whole runs, and against an equation whose solution is known."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from diffusers import UniPCMultistepScheduler
from hypothesis import given, settings
from hypothesis import strategies as st

from wantrn.model.schedulers import State, UniPC, make_scheduler

Oracle: Any = UniPCMultistepScheduler
WAN = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}


class Field:
    """A smooth random velocity field on [1, 3, 4] samples."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.noise = torch.randn(1, 3, 4, generator=generator)
        self._mix = torch.randn(12, 12, generator=generator) / 4
        self._phase = torch.randn(12, generator=generator)

    def __call__(self, sample: torch.Tensor, time: float) -> torch.Tensor:
        inner = self._mix @ sample.flatten() + self._phase * time
        return (torch.sin(inner) - 0.3 * sample.flatten()).reshape(sample.shape)


def diffusers_run(config: dict[str, Any], steps: int, field: Field) -> list[torch.Tensor]:
    """The sample after each step."""
    theirs = Oracle(**config)
    theirs.set_timesteps(steps)
    sample, samples = field.noise, []
    for index, time in enumerate(theirs.timesteps):
        velocity = field(sample, float(theirs.sigmas[index]))
        sample = theirs.step(velocity, time, sample, return_dict=False)[0]
        samples.append(sample)
    return samples


def our_run(config: dict[str, Any], steps: int, field: Field) -> list[torch.Tensor]:
    ours = make_scheduler({"_class_name": "UniPCMultistepScheduler", **config}, steps)
    sample, state, samples = field.noise, ours.start(), []
    for index in range(steps):
        sample, state = ours.step(state, field(sample, float(ours.sigmas[index])), sample)
        samples.append(sample)
    return samples


def assert_close(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    for index, (mine, reference) in enumerate(zip(ours, theirs, strict=True)):
        scale = max(1.0, reference.abs().max().item())
        assert (mine - reference).abs().max().item() <= 1e-5 * scale, f"step {index}"


@settings(max_examples=60, deadline=None)
@given(
    steps=st.integers(1, 60),
    shift=st.floats(1.0, 12.0),
    order=st.integers(1, 3),
    disabled=st.lists(st.integers(0, 8), max_size=3),
    seed=st.integers(0, 1000),
)
def test_agrees_with_diffusers_down_to_zero(
    steps: int, shift: float, order: int, disabled: list[int], seed: int
) -> None:
    config = {**WAN, "flow_shift": shift, "solver_order": order, "disable_corrector": disabled}
    field = Field(seed)
    assert_close(our_run(config, steps, field), diffusers_run(config, steps, field))


@settings(max_examples=40, deadline=None)
@given(
    steps=st.integers(1, 40),
    shift=st.floats(1.0, 12.0),
    order=st.integers(1, 3),
    basis=st.sampled_from(["bh1", "bh2"]),
    seed=st.integers(0, 1000),
)
def test_agrees_with_diffusers_in_both_bases(
    steps: int, shift: float, order: int, basis: str, seed: int
) -> None:
    # diffusers' bh1 is NaN where a run ends at zero, so these runs end at the smallest level
    config = {
        **WAN,
        "flow_shift": shift,
        "solver_order": order,
        "solver_type": basis,
        "final_sigmas_type": "sigma_min",
    }
    field = Field(seed)
    assert_close(our_run(config, steps, field), diffusers_run(config, steps, field))


@pytest.mark.parametrize("order", [1, 2])
def test_agrees_with_diffusers_without_lowering_the_last_order(order: int) -> None:
    config = {
        **WAN,
        "flow_shift": 5.0,
        "solver_order": order,
        "lower_order_final": False,
        "final_sigmas_type": "sigma_min" if order > 1 else "zero",
    }
    field = Field(order)
    assert_close(our_run(config, 12, field), diffusers_run(config, 12, field))


@settings(max_examples=100, deadline=None)
@given(
    steps=st.integers(1, 200), shift=st.floats(0.1, 20.0), train=st.sampled_from([200, 500, 1000])
)
def test_levels_and_timesteps_are_those_of_diffusers(steps: int, shift: float, train: int) -> None:
    config = {**WAN, "flow_shift": shift, "num_train_timesteps": train}
    theirs = Oracle(**config)
    theirs.set_timesteps(steps)
    ours = make_scheduler({"_class_name": "UniPCMultistepScheduler", **config}, steps)
    assert ours.timesteps.dtype == torch.int64
    assert torch.equal(ours.timesteps, theirs.timesteps)
    assert ours.sigmas.dtype == torch.float32
    assert torch.equal(ours.sigmas, theirs.sigmas)


def test_bh1_ends_at_the_clean_sample_it_saw_last() -> None:
    config = {**WAN, "flow_shift": 5.0, "solver_type": "bh1"}
    ours = make_scheduler({"_class_name": "UniPCMultistepScheduler", **config}, 10)
    field = Field(3)
    sample, state = field.noise, ours.start()
    for index in range(10):
        sigma = float(ours.sigmas[index])
        velocity = field(sample, sigma)
        clean = sample - sigma * velocity
        sample, state = ours.step(state, velocity, sample)
    assert torch.allclose(sample, clean, atol=1e-6)


# Data from a normal distribution of variance 1/4: the flow's velocity is linear in the sample, and
# a sample keeps its distance from the mean in units of the spread at each level.
VARIANCE = 0.25


def spread(sigma: float) -> float:
    return math.sqrt((1 - sigma) ** 2 * VARIANCE + sigma**2)


def gaussian_error(steps: int, order: int, basis: Any, corrected: bool) -> float:
    """Relative error at the end of a run over even steps of log signal-to-noise from -2 to 2."""
    levels = [1 / (1 + math.exp(-2 + 4 * i / steps)) for i in range(steps + 1)]
    uncorrected = frozenset() if corrected else frozenset(range(steps))
    sigmas = torch.tensor(levels)
    solver = UniPC(sigmas, torch.arange(steps), order, basis, False, uncorrected)
    sample, state = torch.tensor([spread(levels[0])]), solver.start()
    for index in range(steps):
        sigma = float(sigmas[index])
        velocity = (sigma - (1 - sigma) * VARIANCE) / spread(sigma) ** 2 * sample
        sample, state = solver.step(state, velocity, sample)
    return abs(sample.item() / spread(float(sigmas[-1])) - 1)


@pytest.mark.parametrize("basis", ["bh1", "bh2"])
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize(("order", "steps"), [(1, 40), (2, 40), (3, 10)])
def test_error_falls_with_the_order(order: int, steps: int, corrected: bool, basis: str) -> None:
    # the corrector adds one order (theorem 3.1 of the paper)
    coarse = gaussian_error(steps, order, basis, corrected)
    fine = gaussian_error(2 * steps, order, basis, corrected)
    assert coarse < 0.1
    assert math.log2(coarse / fine) >= order + corrected - 0.3


def test_a_step_can_be_taken_again() -> None:
    ours = make_scheduler({"_class_name": "UniPCMultistepScheduler", **WAN, "solver_order": 3}, 8)
    field = Field(7)
    whole = our_run({**WAN, "solver_order": 3}, 8, field)
    sample, state = field.noise, ours.start()
    for index in range(8):
        velocity = field(sample, float(ours.sigmas[index]))
        kept = sample.clone()
        ours.step(state, torch.full_like(sample, 9.0), sample)  # a step that is thrown away
        again = State(state.index, state.predictions, state.sample)
        assert torch.equal(sample, kept)
        sample, state = ours.step(again, velocity, sample)
        assert torch.equal(sample, whole[index])


def test_a_bfloat16_velocity_is_used_in_float32() -> None:
    ours = make_scheduler({"_class_name": "UniPCMultistepScheduler", **WAN}, 4)
    noise = Field(1).noise
    velocity = torch.randn(noise.shape, generator=torch.Generator().manual_seed(0)).bfloat16()
    sample, state = ours.step(ours.start(), velocity, noise)
    expected, _ = ours.step(ours.start(), velocity.float(), noise)
    assert torch.equal(sample, expected)
    assert sample.dtype == torch.float32
    assert all(prediction.dtype == torch.float32 for prediction in state.predictions)


def test_refuses_a_step_that_cannot_be() -> None:
    ours = make_scheduler({"_class_name": "UniPCMultistepScheduler", **WAN}, 1)
    noise = torch.zeros(2, 3)
    _, state = ours.step(ours.start(), noise, noise)
    with pytest.raises(ValueError, match="step 1 of a run of 1 steps"):
        ours.step(state, noise, noise)
    with pytest.raises(ValueError, match=r"float32, got torch\.float64"):
        ours.step(ours.start(), noise, noise.double())
    with pytest.raises(ValueError, match=r"shape \[2, 3\], got torch\.float32 \[3\]"):
        ours.step(ours.start(), torch.zeros(3), noise)
    with pytest.raises(ValueError, match=r"torch\.int64"):
        ours.step(ours.start(), noise.long(), noise)


@pytest.mark.parametrize(
    ("levels", "order", "lowered", "message"),
    [
        ([1.0, 0.5, 0.0], 2, True, "below 1"),
        ([0.9, 0.9, 0.0], 2, True, "must fall"),
        ([0.9, 0.0, 0.0], 2, True, "must fall"),
        ([0.5, 0.4, 0.45], 2, True, "must fall"),
        ([0.9, 0.5, 0.0], 2, False, "lower_order_final"),
        ([0.9, 0.5, 0.0], 4, True, "order must be 1 to 3, got 4"),
        ([0.9, 0.5], 2, True, "one longer"),
    ],
)
def test_refuses_levels_it_cannot_run(
    levels: list[float], order: int, lowered: bool, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        UniPC(torch.tensor(levels), torch.arange(2), order, "bh2", lowered)
