"""Reading published times of rmsnorm_quant out of the library's tests."""

from __future__ import annotations

from pathlib import Path

import time_rmsnorm_quant
from time_rmsnorm_quant import Point

TEST = """
class TestRmsNorm:
    rmsnorm_quant_lnc_params = "seqlen, quant_only, quant_type, tpbSgCyclesSum, tensor_gen, lower_bound, lnc_degree, batch, hidden"
    rmsnorm_quant_lnc_perms = [
        (128 // 64, True, QuantizationType.ROW, 50_000_000, generator(), 0.5, 2, 1, 16384),
        (160, False, QuantizationType.ROW, 100_000_000, generator(), 0.0, 2, 1, 4 * 1024),
        (160, False, QuantizationType.ROW, 101_000_000, others(all_ones=True), 0.0, 2, 1, 4096),
        (2, True, QuantizationType.STATIC, None, generator(), 0.0, 2, 1, 16384),
    ]
"""  # noqa: E501


def test_points_are_the_shapes_with_a_time(tmp_path: Path) -> None:
    path = tmp_path / time_rmsnorm_quant.TESTS
    path.parent.mkdir(parents=True)
    path.write_text(TEST)
    first, second = time_rmsnorm_quant.points(tmp_path)
    assert first == Point(2, 1, 2, 16384, True, 0.5, 50.0)
    assert second == Point(2, 1, 160, 4096, False, 0.0, 100.0)
    assert str(first) == "LNC2 1x2x16384 quant_only lower_bound 0.5"
    assert str(second) == "LNC2 1x160x4096"
