"""The command as it is run, with a double that answers in the place of vLLM-Omni."""

from __future__ import annotations

import json
import sys
from importlib.metadata import distributions
from pathlib import Path

import bench_parallel
import numpy as np
import omni_cpu
import omni_wan_worker
import pytest
import torch
from diffusers import WanTransformer3DModel
from omni_wan_worker import Task, Work
from safetensors.torch import load_file, save_file

# Answers as the worker does: with a velocity made before, and two ranks cannot.
DOUBLE = """
import json
import shutil
import sys

task = json.loads(sys.stdin.readline())
work = task["work"]
if work["world"] > 1:
    print(json.dumps({"error": f"no {work['degrees']['tensor_parallel_size']} ranks"}))
    sys.exit(1)
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    shutil.copy("VELOCITY", task["velocity"])
    print(json.dumps({"seconds": 0.5}), flush=True)
"""


def write_double(python: Path) -> None:
    """An interpreter that runs ``DOUBLE``, whatever it is told to."""
    script = python.with_name("double.py")
    script.write_text(DOUBLE.replace("VELOCITY", str(python.with_name("velocity"))))
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}"\n')
    python.chmod(0o755)


def write_velocity(path: Path, folder: Path) -> None:
    """What diffusers' model makes of the files in ``folder``, which are for vLLM-Omni."""
    weights = folder / "weights.safetensors"
    bench_parallel.write_random_weights(weights)
    bench_parallel.Omni(Path("python"), folder).prepare(weights)
    model = WanTransformer3DModel.from_pretrained(folder / "diffusers").eval()
    inputs = load_file(folder / "inputs.safetensors")
    with torch.inference_mode():
        cond, uncond = (
            model(inputs["noise"], inputs["timestep"], text, return_dict=False)[0]
            for text in inputs["texts"]
        )
    save_file({"velocity": uncond + bench_parallel.GUIDANCE * (cond - uncond)}, path)


def test_the_command_times_two_ranks_and_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "python"
    write_double(python)
    write_velocity(tmp_path / "velocity", tmp_path)
    command = ["--json", "--rounds", "1", "--layout", "tp2", "--threads", "2"]
    monkeypatch.setattr(sys, "argv", ["bench_parallel.py", *command, "--vllm-omni", str(python)])
    bench_parallel.main()
    printed = capfd.readouterr()
    figures = json.loads(printed.out.splitlines()[-1])
    assert set(figures) == {
        "one.step_s",
        "one.texts_s",
        "tp2.step_s",
        "tp2.over_one",
        "tp2.max_difference",
        "omni_one.step_s",
        "omni_one.max_difference",
        "ours_over_omni.one",
    }
    assert all(value > 0 for value in figures.values())
    assert figures["tp2.over_one"] == pytest.approx(figures["tp2.step_s"] / figures["one.step_s"])
    assert figures["ours_over_omni.one"] == pytest.approx(figures["one.step_s"] / 0.5)
    assert figures["tp2.max_difference"] < 1e-4
    assert figures["omni_one.max_difference"] < 1e-4
    assert "vLLM-Omni does not run tp2: no 2 ranks" in printed.err


def test_another_velocity_makes_the_comparison_void() -> None:
    ours = np.array([1.0, -2.0], np.float32)
    seconds = {"one": 1.0, "omni_one": 2.0}
    figures = bench_parallel.figures_of(seconds, {"one": ours, "omni_one": ours + 1e-4})
    assert figures["ours_over_omni.one"] == 0.5
    for wrong in (ours + 1e-3, ours * np.nan):
        with pytest.raises(SystemExit, match="void: omni_one differs by"):
            bench_parallel.figures_of(seconds, {"one": ours, "omni_one": wrong})


WORK = Work("weights", "inputs", 4.0, {"tensor_parallel_size": 2}, world=2, threads=1)


def test_an_environment_without_vllm_omni_is_reported(tmp_path: Path) -> None:
    task = Task(WORK, "velocity", rank=0, port=1)
    assert Task.read(task.line()) == task
    ranks = omni_wan_worker.OmniRanks(Path("/bin/false"), tmp_path / "plugin", WORK)
    try:
        with pytest.raises(omni_wan_worker.OmniError, match="ended with status 1"):
            ranks.wait()
    finally:
        ranks.stop()


def test_the_plugin_is_found_by_its_entry_points(tmp_path: Path) -> None:
    omni_cpu.write_plugin(tmp_path / "plugin")
    (found,) = distributions(path=[str(tmp_path / "plugin")])
    named = {point.group: point.load()() for point in found.entry_points}
    assert named == {
        "vllm.platform_plugins": "vllm.platforms.cpu.CpuPlatform",
        "vllm_omni.platform_plugins": "omni_cpu.StockCpu",
    }


@pytest.mark.parametrize("wrong", [["--threads", "3"], ["--vllm-omni", "nowhere"]])
def test_wrong_options_are_refused(
    wrong: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_parallel.py", *wrong])
    with pytest.raises(SystemExit) as ended:
        bench_parallel.main()
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert f"{wrong[0]} must be" in printed
    assert wrong[1] in printed
