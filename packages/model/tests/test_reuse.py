"""Which steps reuse: scripted changes, and what must hold for any."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wantrn.model.reuse import Reuse
from wantrn.model.step_cache import MAX_THRESHOLD, StepCache

BOUND = 2


def plan(
    cache: StepCache,
    changes: list[float],
    drifts: dict[int, float] | None = None,
    distances: list[float] | None = None,
) -> str:
    """What the steps of one expert do: F in full, r reuse. ``changes[i]`` is what step ``i`` turns
    out to have changed, known before step ``i + 1``; the first has nothing to be compared with.
    ``drifts`` are told before the step that they stand at. ``distances[i]`` lies before step
    ``i``."""
    reuse, made = Reuse(cache), ""
    distances = [1.0] * len(changes) if distances is None else distances
    for step in range(len(changes)):
        change = None if step < 2 else changes[step - 1]
        if step > 0:
            reuse = reuse.heard(change, distances[step - 1], (drifts or {}).get(step))
        reuses = reuse.next_reuses(distances[step], step == len(changes) - 1)
        reuse = reuse.made(reuses)
        made += "r" if reuses else "F"
    assert (reuse.full, reuse.reused) == (made.count("F"), made.count("r"))
    return made


EVEN = StepCache(0.1, BOUND, 0.3)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        # two at first, as nothing is known; two in a row at most; the last in full
        ([9, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01], "FFrrFrrF"),
        # one step of 0.06 is within 0.1, two are not
        ([9, 0.06, 0.06, 0.06, 0.06, 0.06, 0.06, 0.06], "FFrFrFrF"),
        # what a step has changed is known one step late
        ([9, 0.01, 0.5, 0.01, 0.01, 0.01, 0.01, 0.01], "FFrFrrFF"),
        ([9, 0.5, 0.5, 0.5, 0.5, 0.5], "FFFFFF"),
        ([9, 0.01], "FF"),
        ([9, 0.01, 0.01], "FFF"),
        ([9, math.nan, math.inf, 0.01, math.nan, 0.01, 0.01], "FFFFrFF"),
    ],
)
def test_a_script_of_changes(changes: list[float], wanted: str) -> None:
    assert plan(EVEN, changes) == wanted


def test_a_change_is_in_proportion_to_the_distance() -> None:
    changes = [9, 0.06, 0.06, 0.06, 0.06, 0.06, 0.06]
    assert plan(EVEN, changes, distances=[1, 1, 1.6, 1, 1, 1, 1]) == "FFrrFrF"
    assert plan(EVEN, changes, distances=[1, 1, 1.7, 1, 1, 1, 1]) == "FFFrFrF"
    assert plan(EVEN, changes, distances=[1, 0, 0, 1, 1, 1, 1]) == "FFFFrFF"  # none to go by


def test_a_drift_above_the_limit_ends_it() -> None:
    small = [9.0] + [0.01] * 9
    assert plan(EVEN, small) == "FFrrFrrFrF"
    assert plan(EVEN, small, {6: 0.3}) == "FFrrFrrFrF"
    assert plan(EVEN, small, {6: 0.31}) == "FFrrFrFFFF"
    assert plan(EVEN, small, {6: math.nan}) == "FFrrFrFFFF"


def test_without_the_guard() -> None:
    small = [9.0] + [0.01] * 9
    assert plan(replace(EVEN, guard=False), small, {6: 5.0}) == "FFrrrrrrrr"


def test_the_largest_drift_is_kept() -> None:
    reuse = Reuse(EVEN)
    for drift in (0.1, 0.2, 0.05):
        reuse = reuse.heard(0.1, 1.0, drift)
    assert reuse.drift == 0.2 and not reuse.stopped
    reuse = reuse.heard(None, 1.0, 0.4).heard(None, 1.0, 0.1)
    assert reuse.drift == 0.4 and reuse.stopped


@given(
    threshold=st.floats(1e-6, MAX_THRESHOLD),
    bound=st.integers(1, 5),
    guard=st.booleans(),
    steps=st.lists(
        st.tuples(
            st.floats(0, 1, width=32) | st.just(math.nan) | st.just(math.inf),
            st.floats(0, 2, width=32),
            st.none() | st.floats(0, 1, width=32) | st.just(math.nan),
        ),
        min_size=1,
        max_size=40,
    ),
)
def test_for_any_changes(
    threshold: float, bound: int, guard: bool, steps: list[tuple[float, float, float | None]]
) -> None:
    cache = StepCache(threshold, bound, 0.5, guard)
    changes, distances, drifts = zip(*steps, strict=True)
    told = {step: drift for step, drift in enumerate(drifts) if drift is not None and step}
    made = plan(cache, list(changes), told, list(distances))
    assert made[:2] in ("F", "FF")
    for step, what in enumerate(made):
        if what == "F":
            continue
        last_full = made.rindex("F", 0, step)
        # what had been measured since then, up to the step before, was within the threshold
        assert math.fsum(changes[last_full + 1 : step]) <= threshold * (1 + 1e-9)
        assert math.isfinite(changes[step - 1])
        if guard:
            assert step - last_full <= bound
            assert step < len(made) - 1
            assert all(drift <= 0.5 for at, drift in told.items() if at <= step)


@given(st.lists(st.floats(0.001, 1), min_size=3, max_size=30), st.floats(0.001, 0.5))
def test_a_larger_threshold_makes_the_first_reuse_no_later(
    changes: list[float], threshold: float
) -> None:
    less, more = (plan(StepCache(each, BOUND), changes) for each in (threshold, 2 * threshold))
    assert "r" not in less or more.index("r") <= less.index("r")


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"threshold": 0.0}, "threshold must be above 0 and at most 1, got 0.0"),
        ({"threshold": 1.01}, "threshold must be above 0 and at most 1, got 1.01"),
        ({"threshold": math.nan}, "threshold must be above 0 and at most 1, got nan"),
        ({"most_reused": 0}, "most_reused must be at least 1, got 0"),
        ({"drift_limit": 0.0}, "drift_limit must be above 0, got 0.0"),
        ({"drift_limit": math.inf}, "drift_limit must be above 0, got inf"),
    ],
)
def test_what_a_step_cache_cannot_be(values: dict[str, float], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        StepCache(**values)  # type: ignore[arg-type]
