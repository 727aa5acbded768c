"""Reading published times out of tests, and what is said about the errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import time_attention
from time_attention import Point, Result

TEST = """
import pytest

unrelated = [1, 2]
some_perms = [[1, 2]]

class TestAttention:
    unit_params = "bs, seqlen_q, seqlen_kv, d, tp_q, tp_out, causal_mask, dtype, softmax_scale, tpbSgCyclesSum"
    unit_perms = [
        [2, 16 * 1024 + 16, 4096, 64, True, False, True, nl.bfloat16, 0.125, 1_250_000_000],
        [1, 2048, 2048, 128, False, True, False, np.float32, 1.0, (43_000_000, 40_000_000)],
        [1, 512, 512, 128, False, True, False, np.float32, 1.0, None],
    ]
    lnc_params = "vnc_degree, bs, seqlen_q, seqlen_kv, d, tp_q, tp_k, tp_out, causal_mask, dtype, \\
softmax_scale, sliding_window, sink, prior_len, prior_used_len, tpbSgCyclesSum"
    lnc_perms = [
        [2, 2, 1024, 2048, 64, True, False, True, True, nl.bfloat16, 1.0, 128, True, 512, 500, 9e7],
    ]
    untimed_params = "bs, seqlen_q"
    untimed_perms = [[1, 2]]
"""  # noqa: E501


@pytest.fixture
def points(tmp_path: Path) -> list[Point]:
    path = tmp_path / time_attention.TESTS
    path.parent.mkdir(parents=True)
    path.write_text(TEST)
    return list(time_attention.points(tmp_path))


def test_points_are_those_with_a_time(points: list[Point]) -> None:
    assert [point.published_us for point in points] == [1250, 43, 90]
    assert [point.lnc for point in points] == [1, 1, 2]
    assert [point.parameters["seqlen_q"] for point in points] == [16400, 2048, 1024]
    assert points[0].parameters["dtype"] == "bfloat16"
    assert str(points[2]) == (
        "LNC2 2x1024x2048 d64 bfloat16 causal_mask tp_q tp_out sink window 128 prior 500/512"
    )


def test_arguments_have_the_layout_that_the_flags_ask_for(points: list[Point]) -> None:
    plain, transposed, prior = (time_attention.arguments(point) for point in points)
    assert (plain["q"].shape, plain["k"].shape) == ((2, 16400, 64), (2, 64, 4096))
    assert transposed["q"].shape == (1, 128, 2048)
    assert "sink" not in plain and "k_prior" not in plain
    assert prior["sink"].shape == (2, 1)
    assert (prior["k_prior"].shape, prior["v_prior"].shape) == ((2, 64, 512), (2, 512, 64))
    assert prior["prior_used_len"].tolist() == [500]
    assert prior["sliding_window"] == 128


def result(published_us: float, kernel_us: float, launch_us: float = 35.0) -> Result:
    point = Point({"d": 64, "causal_mask": True}, published_us)
    return Result(point, kernel_us + launch_us, kernel_us, 10, 1.0)


def test_the_summary_counts_errors_of_both_signs() -> None:
    found = time_attention.summary([result(100, 55), result(200, 185), result(1000, 965)])
    assert found["points"] == 3
    assert found["median_error"] == pytest.approx(0.1)
    assert found["worst_error"] == pytest.approx(0.1)
    assert found["median_signed_error"] == pytest.approx(0)
    assert found["rms_error"] == pytest.approx((0.02 / 3) ** 0.5)


def test_the_best_launch_is_where_the_squares_are_smallest() -> None:
    exact = [result(published, published - 12.5) for published in (40, 100, 1000)]
    assert time_attention.best_launch_us(exact) == pytest.approx(12.5)
    rough = [result(60, 20), result(300, 270), result(900, 940)]

    def squares(launch: float) -> float:
        return sum(((r.kernel_us + launch) / r.point.published_us - 1) ** 2 for r in rough)

    best = time_attention.best_launch_us(rough)
    assert squares(best) < min(squares(best - 0.1), squares(best + 0.1))


def test_groups_name_what_a_point_has(points: list[Point]) -> None:
    kinds = [Result(point, 1, 1, 1, 1).kinds for point in points]
    assert kinds == [
        ["LNC1", "d 64", "causal"],
        ["LNC1", "d 128", "not causal"],
        ["LNC2", "d 64", "window", "prior"],
    ]
