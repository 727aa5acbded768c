from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import step_cache_quality
from step_cache_quality import Compared, Made, figures

from wantrn.model.info import ModelKind
from wantrn.model.tiny import write_tiny_checkpoint


def test_figures_are_of_all_videos_and_rounds() -> None:
    frames = np.zeros((2, 4, 4, 3), np.uint8)
    off = frames + np.uint8(16)
    plain = Made(frames, 6.0)
    same = Compared.of(plain, Made(frames, 4.0, reused=1))
    other = Compared.of(plain, Made(off, 2.0, reused=4, drift=0.25))
    worse = Compared.of(plain, Made(2 * off, 3.0, reused=3, drift=0.75, stopped=True))
    assert figures([same, other, worse]) == {
        "speed": 2.0,
        "psnr.min": pytest.approx(20 * math.log10(255 / 32)),
        "psnr.median": pytest.approx(20 * math.log10(255 / 16)),
        "steps_reused": 3,
        "drift.max": 0.75,
        "stopped": pytest.approx(1 / 3),
    }
    alike = figures([same])
    assert (alike["psnr.min"], alike["psnr.median"]) == (None, None)


def test_a_table_of_thresholds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny_checkpoint(tmp_path / "model", ModelKind.T2V)
    arguments = ["--model", str(tmp_path / "model"), "--thresholds", "0.001", "1"]
    arguments += ["--steps", "40", "--prompts", "1", "--rounds", "1", "--unguarded", "--json"]
    monkeypatch.setattr(sys, "argv", ["step_cache_quality.py", *arguments])
    step_cache_quality.main()
    *lines, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    assert found["threshold_0.001.steps_reused"] == 0
    assert found["threshold_0.001.psnr.min"] is None
    assert found["threshold_1.steps_reused"] > 0 and found["threshold_1.drift.max"] > 0.5
    # without the guard, nothing ends it
    assert found["threshold_1.stopped"] == 0 and found["threshold_1.psnr.min"] < 60
    careful, keen = (line.split() for line in lines[-2:])
    assert careful[0] == "0.001" and careful[2:5] == ["same", "same", "0"]
    assert keen[0] == "1" and keen[2] == f"{found['threshold_1.psnr.min']:.1f}"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--rounds", "0"], "--rounds is 0; it must be at least 1"),
        (["--thresholds", "0"], "--thresholds are [0.0]; all must be in 0 to 1"),
    ],
)
def test_what_cannot_be(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    told: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["step_cache_quality.py", *arguments])
    with pytest.raises(SystemExit):
        step_cache_quality.main()
    assert told in capsys.readouterr().err
