from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ring_report
from kernel_report import CASES, Case, attention_figures, qkv_figures

import nkisim
from wantrn.kernels.attention import Options, attention_cte
from wantrn.kernels.ring import ring_attention, ring_attention_online

SMALL = Case("small", 2, 300, 700, 64, True, 2)


def test_figures_of_attention(capsys: pytest.CaptureFixture[str]) -> None:
    figures = dict(attention_figures((SMALL,), None))
    assert set(figures) == {"attention_cte.small.us", "attention_cte.small.mfu"}
    assert figures["attention_cte.small.us"] == SMALL.ours().kernel_us > 0
    assert 0 < figures["attention_cte.small.mfu"] < 1
    assert "small" in capsys.readouterr().out


@nkisim.jit
def library(
    q: Any, k: Any, v: Any, scale: float, causal_mask: bool, tp_q: bool, tp_k: bool, tp_out: bool
) -> Any:
    """Ours, by the names that the library's kernel has for its arguments."""
    options = Options(scale=scale, causal=causal_mask, tp_q=tp_q, tp_k=tp_k, tp_out=tp_out)
    return attention_cte(q, k, v, options)


def test_beside_another_kernel() -> None:
    figures = dict(attention_figures((SMALL,), library))
    assert figures["attention_cte.small.ours_over_library"] == 1.0


def test_names_of_cases_differ() -> None:
    assert len({case.name for case in CASES}) == len(CASES) == 8


def test_figures_of_the_projection() -> None:
    figures = dict(qkv_figures("row_mx.cross_v"))
    assert figures["qkv_cte.row_mx.cross_v.weight_tile_loads"] == 10
    assert 1 <= figures["qkv_cte.row_mx.cross_v.time_over_bound"] < 1.25


@pytest.mark.parametrize("kernel", [ring_attention, ring_attention_online])
def test_figures_of_a_ring(kernel: object) -> None:
    one = ring_report.report(kernel, 200, 2, heads=ring_report.HEADS)
    figures = dict(ring_report.figures("ring.200", one, 200, 2))
    assert figures["ring.200.us"] == one.kernel_us
    # what attention asks for is less than what is multiplied, with padding and sums
    assert 0 < figures["ring.200.useful_mfu"] < figures["ring.200.mfu"] < 1
    assert 0 <= figures["ring.200.exposed_comm"] < 1
    assert figures["ring.200.sbuf_peak_bytes"] <= one.json()["sbuf_limit_bytes"]


def test_a_picture(tmp_path: Path) -> None:
    ring_report.draw(tmp_path / "new")
    assert (tmp_path / "new" / "ring_attention.png").read_bytes().startswith(b"\x89PNG")
