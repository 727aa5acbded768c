"""Flow-matching Euler against diffusers and against straight paths, which it follows exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from hypothesis import given, settings
from hypothesis import strategies as st

from wantrn.model.schedulers import make_scheduler

Oracle: Any = FlowMatchEulerDiscreteScheduler
CLASS = {"_class_name": "FlowMatchEulerDiscreteScheduler"}


@settings(max_examples=100, deadline=None)
@given(
    steps=st.integers(1, 200), shift=st.floats(1.0, 20.0), train=st.sampled_from([200, 500, 1000])
)
def test_levels_and_timesteps_are_those_of_diffusers(steps: int, shift: float, train: int) -> None:
    theirs = Oracle(num_train_timesteps=train, shift=shift)
    theirs.set_timesteps(steps)
    ours = make_scheduler({**CLASS, "shift": shift, "num_train_timesteps": train}, steps)
    assert ours.sigmas.dtype == ours.timesteps.dtype == torch.float32
    assert ours.sigmas.shape == (steps + 1,)
    # diffusers shifts in fp32 at first: an ulp or two (more for a shift below 1)
    assert (ours.sigmas - theirs.sigmas).abs().max() <= 2 * np.spacing(np.float32(1))
    assert (ours.timesteps - theirs.timesteps).abs().max() <= 2 * np.spacing(np.float32(train))


@settings(max_examples=40, deadline=None)
@given(steps=st.integers(1, 60), shift=st.floats(1.0, 12.0), seed=st.integers(0, 1000))
def test_agrees_with_diffusers_over_whole_runs(steps: int, shift: float, seed: int) -> None:
    theirs = Oracle(shift=shift)
    theirs.set_timesteps(steps)
    ours = make_scheduler({**CLASS, "shift": shift}, steps)
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(12, 12, generator=generator) / 4
    sample = reference = torch.randn(12, generator=generator)
    state = ours.start()
    for index, time in enumerate(theirs.timesteps):
        velocity = torch.sin(mix @ reference + float(time) / 300)
        reference = theirs.step(velocity, time, reference, return_dict=False)[0]
        velocity = torch.sin(mix @ sample + float(ours.timesteps[index]) / 300)
        sample, state = ours.step(state, velocity, sample)
        assert (sample - reference).abs().max() <= 1e-5 * max(1.0, float(reference.abs().max()))


@pytest.mark.parametrize("shift", [1.0, 5.0])
def test_the_levels_spelled_out(shift: float) -> None:
    def shifted(x: Any) -> Any:
        return shift * x / (1 + (shift - 1) * x)

    expected = np.append(shifted(np.linspace(1, shifted(0.001), 5)), 0)
    ours = make_scheduler({**CLASS, "shift": shift}, 5)
    np.testing.assert_allclose(ours.sigmas.numpy(), expected, atol=1e-7)


@pytest.mark.parametrize("steps", [1, 3, 17])
def test_a_straight_path_is_followed_exactly(steps: int) -> None:
    generator = torch.Generator().manual_seed(steps)
    clean, noise = torch.randn(2, 4, 4, generator=generator)
    ours = make_scheduler({**CLASS, "shift": 3.0}, steps)
    sample, state = noise, ours.start()
    for index in range(steps):
        sample, state = ours.step(state, noise - clean, sample)
        sigma = ours.sigmas[index + 1]
        assert torch.allclose(sample, (1 - sigma) * clean + sigma * noise, atol=1e-5)
    assert torch.allclose(sample, clean, atol=1e-5)
    with pytest.raises(ValueError, match=f"step {steps} of a run of {steps} steps"):
        ours.step(state, noise, sample)
