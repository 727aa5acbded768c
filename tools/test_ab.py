"""One setting against another, on a tiny checkpoint whose channels differ."""

from __future__ import annotations

import json
import math
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import ab
import numpy as np
import pytest
import torch
from ab_settings import CACHES, REFERENCE, SETTINGS
from ab_videos import PROMPTS, Asked, videos_of
from fp8_quality import write_checkpoint
from PIL import Image
from train_tiny.captions import all_words, held_out, phrases
from train_tiny.world import COLOURS, GROUNDS, Size, Words

from wantrn.kernels.backend import Backend, setting
from wantrn.model.info import DEFAULTS_FILE, ModelKind
from wantrn.model.media import to_uint8
from wantrn.model.pipeline import WanPipeline
from wantrn.model.quality import compare_videos, psnr
from wantrn.model.quantization import QuantizationOptions
from wantrn.model.quantization.run import QuantizationJob
from wantrn.model.step_cache import DEFAULT_THRESHOLD, StepCache
from wantrn.tiny import CHECKPOINT

STEPS = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its videos are 48 x 32, of 5 frames."""
    folder = tmp_path_factory.mktemp("model")
    write_checkpoint(folder, ModelKind.T2V, 0)
    defaults = folder / DEFAULTS_FILE
    small = {"size": [48, 32], "frames": 5}
    defaults.write_text(json.dumps(json.loads(defaults.read_text()) | small))
    return folder


def run_tool(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["ab.py", *map(str, arguments)])
    ab.main()


def test_the_prompts_are_of_the_world_and_none_was_trained_on() -> None:
    def means(prompt: str) -> set[Words]:
        article, *rest = prompt.split()
        named, _, ground = " ".join(rest).removesuffix(" ground").rpartition(" on a ")
        return {
            words
            for words in all_words()
            for phrase in phrases(words.shape, words.motion)
            if (words.ground, named)
            == (ground, f"{words.size.value} {words.colour} {words.shape} {phrase}".strip())
            and article == ("an" if named[0] in "aeiou" else "a")
        }

    found = [means(prompt) for prompt in PROMPTS]
    assert all(len(words) == 1 and held_out(*words) for words in found)
    scenes = [next(iter(words)) for words in found]
    assert len({words.colour for words in scenes}) == len(COLOURS) == len(PROMPTS)
    assert {words.ground for words in scenes} == set(GROUNDS)
    assert {words.size for words in scenes} == set(Size)
    assert len({words.motion for words in scenes}) == 7


def test_each_setting_against_fp32(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    usual = [name for name, one in SETTINGS.items() if not one.slow]
    picture = tmp_path / "ab.png"
    arguments = ("--model", model, "--prompts", 2, "--steps", STEPS, "--json")
    run_tool(monkeypatch, *arguments, "--picture", picture)
    *lines, last = capsys.readouterr().out.splitlines()
    figures = json.loads(last, parse_constant=lambda name: pytest.fail(name))
    shown = {line.split()[0]: line.split()[1:7] for line in lines[2:]}
    assert [name for name in shown if name in SETTINGS] == usual
    for name in usual:
        values = [figures[f"{name}.{key}"] for key in ("psnr.min", "psnr.median")]
        expected = ["equal" if value is None else f"{value:.1f}" for value in values]
        assert shown[name][:2] == expected
        assert shown[name][2] == f"{figures[f'{name}.ssim.min']:.4f}"
        assert shown[name][5] == f"{figures[f'{name}.flicker.median']:.3f}"

    def least(name: str) -> float:
        value = figures[f"{name}.psnr.min"]
        return math.inf if value is None else value

    # other sums, rounding, coarser rounding, and that with scales that most channels do not need
    assert min(least("ring"), least("all_gather")) > 60
    assert 60 > least("bf16") > least("fp8_channel") > 30
    assert 50 > least("fp8_tensor") > 30
    assert figures["fp8_channel.psnr.min"] != figures["fp8_tensor.psnr.min"]

    with Image.open(picture) as image:
        assert image.format == "PNG"
        # a row for each and for fp32, of frames that are drawn at three times their size
        assert image.height > (len(usual) + 1) * 96
        assert image.width > 2 * 4 * 144


def test_the_settings_are_what_they_say(model: Path, tmp_path: Path) -> None:
    """A video by each of the rows on one rank, made again by other means."""
    asked = Asked(model, PROMPTS[:1], STEPS)
    fp8 = tmp_path / "fp8"
    QuantizationJob.plan(model, fp8, QuantizationOptions()).run(lambda done: None)
    for make, folder, dtype in (
        (REFERENCE.make, model, torch.float32),
        (SETTINGS["bf16"].make, model, torch.bfloat16),
        (SETTINGS["fp8_channel"].make, fp8, torch.bfloat16),
    ):
        (expected,) = videos_of(WanPipeline.load(folder, dtype), asked)
        (found,) = make(asked)
        assert np.array_equal(found.frames, expected.frames)


def test_by_kernels_in_the_simulator(model: Path) -> None:
    asked = Asked(model, PROMPTS[:1], steps=1)
    (exact,), (bf16,) = (one.make(asked) for one in (REFERENCE, SETTINGS["bf16"]))
    videos = SETTINGS["sim"].make(asked)
    found = next(videos)
    assert setting().backend is Backend.AUTO, "it holds for these videos only"
    assert not np.array_equal(found.frames, bf16.frames)
    assert psnr(found.frames, exact.frames) > 40


def test_a_step_cache_is_that_of_a_request(model: Path) -> None:
    """And without its guard, it reuses more of a random model than it should."""
    pipeline, cache = WanPipeline.load(model, torch.float32), StepCache(0.9)
    asked = Asked(model, PROMPTS[:1], steps=40)
    (settings,) = asked.settings()
    job = pipeline.prepare(replace(settings, step_cache=cache.threshold))
    while not job.done:
        pipeline.step(job)
    (found,) = videos_of(pipeline, asked, cache=cache)
    (free,) = videos_of(pipeline, asked, cache=replace(cache, guard=False))
    assert job.cached is not None
    assert found.reused == job.cached.steps_reused > 0
    assert np.array_equal(found.frames, to_uint8(pipeline.decode(job)))
    assert free.reused > found.reused
    assert not np.array_equal(free.frames, found.frames)


def test_caches_are_what_they_are_called() -> None:
    guarded = [name for name, cache in CACHES.items() if cache.guard]
    assert [CACHES[name].threshold for name in guarded] == [
        DEFAULT_THRESHOLD / 2,
        DEFAULT_THRESHOLD,
        DEFAULT_THRESHOLD * 2,
    ]
    for name, cache in CACHES.items():
        kind, threshold = name.split("_")
        assert (kind, float(threshold)) == (
            "cache" if cache.guard else "unguarded",
            cache.threshold,
        )
        assert f"{cache.threshold:g}" in SETTINGS[name].words
        assert ("guard" in SETTINGS[name].words) == (not cache.guard)


def test_figures_are_of_all_videos() -> None:
    rng = np.random.default_rng(0)
    exact = rng.integers(60, 180, (3, 16, 16, 3), dtype=np.uint8)
    found = [compare_videos(exact, exact + np.uint8(more) * (exact % 2)) for more in (1, 9, 30)]
    figures = ab.figures(found)
    assert figures["psnr.min"] == min(one.psnr for one in found) == found[2].psnr
    assert figures["psnr.median"] == statistics.median(one.psnr for one in found) == found[1].psnr
    assert figures["ssim.min"] == found[2].ssim
    assert figures["ssim.median"] == found[1].ssim
    assert figures["flicker.max"] == found[2].flicker
    assert figures["flicker.median"] == found[1].flicker


def test_only_what_is_named_is_made(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--model", model, "--prompts", 1, "--steps", 1, "--json")
    run_tool(monkeypatch, "--only", "bf16", "bf16", *arguments)
    *lines, last = capsys.readouterr().out.splitlines()
    assert {name.partition(".")[0] for name in json.loads(last)} == {"bf16"}
    assert len(lines) == 3


def test_each_prompt_may_have_several_videos(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = Asked(model, PROMPTS[:2], rounds=2)
    assert Asked.from_json(asked.to_json()) == asked
    made = [(one.prompt, one.seed) for one in asked.settings()]
    assert made == [(PROMPTS[0], 0), (PROMPTS[1], 1), (PROMPTS[0], 2), (PROMPTS[1], 3)]
    # on ranks, too, which hear of it by another way
    arguments = ("--model", model, "--prompts", 1, "--seeds", 2, "--steps", 1)
    run_tool(monkeypatch, *arguments, "--only", "ring")
    assert "ring" in capsys.readouterr().out


def test_without_a_model_it_is_the_tiny_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for model in ((), ("--model", CHECKPOINT)):
        run_tool(monkeypatch, *model, "--only", "bf16", "--prompts", 1, "--steps", 1, "--json")
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["--prompts", "0"], ["--prompts is 0", "1 to 8"]),
        (["--prompts", "9"], ["--prompts is 9"]),
        (["--seeds", "0"], ["--seeds is 0", "at least 1"]),
        (["--steps", "0"], ["steps: ", "0"]),
        (["--only", "fp4"], ["--only", "'fp4'"]),
        (["--picture", "ab.jpg"], ["picture: ab.jpg", ".png"]),
        (["--picture", "absent/ab.png"], ["there is no folder absent"]),
        (["--model", "absent"], ["absent/model_index.json"]),
    ],
)
def test_wrong_arguments_are_named(
    model: Path,
    wrong: list[str],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        run_tool(monkeypatch, "--model", model, *wrong)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert all(word in err.splitlines()[-1] for word in words), err


def test_ranks_that_fail_end_the_run(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = Asked(tmp_path / "absent", PROMPTS[:1])
    with pytest.raises(RuntimeError, match="the ranks of ring ended with status 1"):
        list(SETTINGS["ring"].make(broken))
    assert "absent" in capfd.readouterr().err
