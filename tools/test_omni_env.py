"""The environment with vLLM-Omni: which of the wheels' requirements it has."""

from __future__ import annotations

import zipfile
from pathlib import Path

import omni_env
import pytest


def test_what_needs_a_gpu_is_left_out_and_the_rest_is_kept_as_it_stands() -> None:
    kept = [
        "pillow",
        "transformers<5.15,>=5.13.0",
        "mistral_common[image]>=1.11.6",
        'six>=1.16.0; python_version > "3.11"',
        "flask",
    ]
    left_out = [
        "torch==2.13.0",
        "torchvision (==0.28.0)",
        "nvidia-cudnn-frontend>=1",
        "flashinfer-python==0.6",
        "Flash_Attn>=2",
        "PyNvVideoCodec==2.0.4",
        'pytest>=8; extra == "test"',
        "pandas; (python_version > '3') and extra == 'bench'",
    ]
    mixed = [line for pair in zip(kept, left_out, strict=False) for line in pair]
    assert omni_env.needed(mixed + left_out[len(kept) :]) == kept


def test_a_line_that_is_no_requirement_is_not_passed_over() -> None:
    with pytest.raises(ValueError, match="'; x' is no requirement"):
        omni_env.needed(["; x"])


def test_requirements_are_read_from_the_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        head = "Name: a\nRequires-Dist: b>=1\nRequires-Dist: c; extra == 'd'\n"
        archive.writestr("a-1.dist-info/METADATA", f"{head}\nRequires-Dist: not of the head\n")
        archive.writestr("a/METADATA", "Requires-Dist: e\n")
    assert omni_env.requirements_of(wheel) == ["b>=1", "c; extra == 'd'"]


def test_it_says_which_wheel_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(omni_env, "ROOT", tmp_path)
    (tmp_path / "dist").mkdir()
    for name in omni_env.OURS[:-1]:
        (tmp_path / "dist" / f"{name}-0.1.0-py3-none-any.whl").touch()
    with pytest.raises(SystemExit, match=r"wantrn_serving, it holds 0: run \./pants package ::"):
        omni_env.own_wheels()


def test_an_existing_folder_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept"
    kept.touch()
    monkeypatch.setattr("sys.argv", ["omni_env.py", str(tmp_path)])
    with pytest.raises(SystemExit, match="DIR must be new"):
        omni_env.main()
    assert kept.exists()
