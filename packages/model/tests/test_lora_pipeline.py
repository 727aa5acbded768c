"""LoRAs through the pipeline: per expert, per run, and what is kept of them."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lora_files import Made, made, merged, write_lora
from rank_processes import run_ranks
from torch import Tensor

from wantrn.model.caches import CacheLimits
from wantrn.model.checkpoints import TensorStore, save_sharded
from wantrn.model.denoising import Denoising
from wantrn.model.errors import RequestError
from wantrn.model.execution import Execution
from wantrn.model.info import ModelKind
from wantrn.model.lora import LoraChoice
from wantrn.model.parallelism import Parallelism
from wantrn.model.pipeline import WanPipeline
from wantrn.model.settings import Settings, VideoRequest, resolve
from wantrn.model.tiny import tiny_config
from wantrn.parallel import Degrees, Groups

CONFIG = tiny_config(ModelKind.T2V)
EXPERTS = ("transformer", "transformer_2")
STEPS = 4  # of which the high-noise expert makes some


def weights(folder: Path) -> dict[str, Tensor]:
    store = TensorStore.open(folder)
    return {name: store.load(name) for name in store.names}


@pytest.fixture(scope="module")
def loras(checkpoints: dict[ModelKind, Path]) -> tuple[Made, Made]:
    one = weights(checkpoints[ModelKind.T2V] / EXPERTS[0])
    return (
        made(one, CONFIG, seed=1, differences=True),
        made(one, CONFIG, rank=2, alpha=None, seed=2),
    )


@pytest.fixture(scope="module")
def files(loras: tuple[Made, Made], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("loras")
    one, two = (
        write_lora(folder / f"{name}.safetensors", lora, CONFIG)
        for name, lora in zip(("one", "two"), loras, strict=True)
    )
    return one, two


@pytest.fixture(scope="module")
def t2v(checkpoints: dict[ModelKind, Path]) -> WanPipeline:
    return WanPipeline.load(checkpoints[ModelKind.T2V], torch.float32)


def settings(pipeline: WanPipeline, *loras: LoraChoice, prompt: str = "a red ball") -> Settings:
    request = VideoRequest(prompt=prompt, size=(32, 32), frames=5, steps=STEPS, seed=3, loras=loras)
    return resolve(request, pipeline.info)


def latents(pipeline: WanPipeline, of: Settings) -> Tensor:
    return finished(pipeline, pipeline.prepare(of)).latents


def finished(pipeline: WanPipeline, run: Denoising) -> Denoising:
    while not run.done:
        pipeline.step(run)
    return run


def with_merged(
    folder: Path, source: Path, changes: Mapping[str, list[tuple[Made, float]]]
) -> Path:
    """A checkpoint whose experts have LoRAs in their weights."""
    shutil.copytree(source, folder)
    for expert, loras in changes.items():
        config = (source / expert / "config.json").read_text()
        shutil.rmtree(folder / expert)
        save_sharded(merged(weights(source / expert), *loras), folder / expert)
        (folder / expert / "config.json").write_text(config)
    return folder


def error(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).abs().max() / exact.abs().max())


def test_each_expert_has_its_own(
    t2v: WanPipeline,
    checkpoints: dict[ModelKind, Path],
    loras: tuple[Made, Made],
    files: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    """Against checkpoints with the LoRAs in their weights."""
    one, two = loras
    cases: dict[str, tuple[list[LoraChoice], dict[str, list[tuple[Made, float]]]]] = {
        "both alike": (
            [LoraChoice.of(files[0], 0.6)],
            {"transformer": [(one, 0.6)], "transformer_2": [(one, 0.6)]},
        ),
        "high alone": (
            [LoraChoice("one", files[0], None, 0.6)],
            {"transformer": [(one, 0.6)]},
        ),
        "two files, two scales, and another": (
            [LoraChoice("pair", files[0], files[1], 0.6, -0.3), LoraChoice.of(files[1], 0.5)],
            {"transformer": [(one, 0.6), (two, 0.5)], "transformer_2": [(two, 0.2)]},
        ),
    }
    plain = latents(t2v, settings(t2v))
    for name, (choices, changes) in cases.items():
        folder = with_merged(tmp_path / name, checkpoints[ModelKind.T2V], changes)
        other = WanPipeline.load(folder, torch.float32)
        exact = latents(other, settings(other))
        found = latents(t2v, settings(t2v, *choices))
        # of the fp64 merge rounded to fp32, over all steps
        assert error(found, exact) <= 2e-5, name
        assert error(plain, exact) > 1e-2, name


def test_runs_alternate_on_one_pipeline(t2v: WanPipeline, files: tuple[Path, Path]) -> None:
    """A run has the bits that it has alone, whichever others take steps in between."""
    each = [
        settings(t2v, LoraChoice.of(files[0], 0.6)),
        settings(t2v, LoraChoice("low", None, files[1])),
        settings(t2v),
        settings(t2v, LoraChoice.of(files[0], 0.3), LoraChoice.of(files[1])),
    ]
    alone = [latents(t2v, one) for one in each]
    runs = [t2v.prepare(one) for one in each]
    for _ in range(STEPS):
        for run in runs:
            t2v.step(run)
    for run, expected in zip(runs, alone, strict=True):
        assert torch.equal(run.latents, expected)
    for index, one in enumerate(alone):
        assert all(not torch.equal(one, other) for other in alone[index + 1 :])


def test_scale_zero_has_the_bits_of_no_lora(t2v: WanPipeline, files: tuple[Path, Path]) -> None:
    assert torch.equal(
        latents(t2v, settings(t2v, LoraChoice.of(files[0], 0.0))), latents(t2v, settings(t2v))
    )


def test_the_description_names_them(t2v: WanPipeline, files: tuple[Path, Path]) -> None:
    one, two = files
    chosen = (
        LoraChoice.of(one, 0.75),
        LoraChoice("split", one, one, 1.0, 0.5),
        LoraChoice("pair", one, two),
        LoraChoice("half", None, two, low_scale=2.0),
    )
    described = settings(t2v, *chosen).describe()
    assert described["lora"] == (
        "one.safetensors=0.75, split (high=1, low=0.5), "
        "pair (high one.safetensors=1, low two.safetensors=1), half (low=2)"
    )
    assert "lora" not in settings(t2v).describe()


def test_what_cannot_be_is_refused_before_weights_are_read(
    t2v: WanPipeline,
    checkpoints: dict[ModelKind, Path],
    files: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    one, two = files
    missing = tmp_path / "missing.safetensors"
    for choice, fault in {
        LoraChoice.of(missing): "lora: missing.safetensors: no such file or folder",
        LoraChoice.of(one, math.nan): "lora: one.safetensors: the scale must be finite, got nan",
        LoraChoice("x", one, two, 1.0, math.inf): "lora: x: the scale must be finite, got inf",
        LoraChoice("x", None, None): "lora: x: names no file, so it changes nothing",
        LoraChoice("x", one, missing): "lora: x: no such file or folder",
    }.items():
        with pytest.raises(RequestError) as raised:
            settings(t2v, choice)
        assert str(raised.value) == fault
        assert raised.value.field == "lora"
    with pytest.raises(RequestError, match="at most 16 can be given, got 17"):
        settings(t2v, *[LoraChoice.of(one)] * 17)
    ti2v = WanPipeline.load(checkpoints[ModelKind.TI2V], torch.float32)
    for choice in (LoraChoice("x", one, two), LoraChoice("x", one, None)):
        with pytest.raises(RequestError, match="x: tells two experts apart, but the model has one"):
            settings(ti2v, choice)
    with pytest.raises(RequestError, match=r"one.safetensors: .*does not fit the model"):
        settings(ti2v, LoraChoice.of(one))


def test_a_file_that_is_gone_is_a_fault_of_the_request(
    t2v: WanPipeline, files: tuple[Path, Path], tmp_path: Path
) -> None:
    file = Path(shutil.copy(files[0], tmp_path / "gone.safetensors"))
    checked = settings(t2v, LoraChoice.of(file))
    file.unlink()
    with pytest.raises(RequestError, match="lora: gone.safetensors: no such file"):
        t2v.prepare(checked)


def test_files_are_read_once_until_they_change(
    checkpoints: dict[ModelKind, Path], loras: tuple[Made, Made], tmp_path: Path
) -> None:
    pipeline = WanPipeline.load(checkpoints[ModelKind.T2V], torch.float32)
    file = write_lora(tmp_path / "lora.safetensors", loras[0], CONFIG)
    chosen = settings(pipeline, LoraChoice("x", file, file, 1.0, 0.5))
    first = latents(pipeline, chosen)
    counts = pipeline.cache_counts["loras"]
    # the experts share the file
    assert (counts.hits, counts.misses, counts.entries) == (1, 1, 1)
    assert counts.nbytes >= file.stat().st_size * 0.9
    assert torch.equal(latents(pipeline, chosen), first)
    assert pipeline.cache_counts["loras"].misses == 1
    file.unlink()
    write_lora(file, loras[1], CONFIG)
    assert not torch.equal(latents(pipeline, chosen), first)
    assert pipeline.cache_counts["loras"].misses == 2


def test_nothing_is_kept_without_room(
    checkpoints: dict[ModelKind, Path], files: tuple[Path, Path], t2v: WanPipeline
) -> None:
    none = WanPipeline.load(
        checkpoints[ModelKind.T2V], torch.float32, caches=CacheLimits(prompts=0, loras=0)
    )
    chosen = settings(none, LoraChoice.of(files[0]))
    assert torch.equal(latents(none, chosen), latents(t2v, chosen))
    for counts in none.cache_counts.values():
        assert (counts.hits, counts.entries, counts.nbytes) == (0, 0, 0)
        assert counts.misses == 2  # two experts; a prompt and a negative prompt
    with pytest.raises(ValueError, match="prompts must be 0 or more bytes, got -1"):
        CacheLimits(prompts=-1)


def on_a_rank(folder: Path, file: Path, degrees: dict[str, Degrees]) -> dict[str, Tensor]:
    found = {}
    for name, one in degrees.items():
        execution = Execution(Parallelism(Groups.build(one)))
        pipeline = WanPipeline.load(folder, torch.float32, execution)
        chosen = settings(pipeline, LoraChoice("x", file, file, 0.6, 0.3))
        found[name] = latents(pipeline, chosen)
        # from the caches
        assert torch.equal(latents(pipeline, chosen), found[name])
        assert pipeline.cache_counts["prompts"].hits == 2
        assert pipeline.cache_counts["loras"].hits == 3
    return found


def test_two_ranks(
    t2v: WanPipeline, checkpoints: dict[ModelKind, Path], files: tuple[Path, Path]
) -> None:
    degrees = {"tp": Degrees(tp=2), "ring": Degrees(ring=2), "cfg": Degrees(cfg=2)}
    alone = latents(t2v, settings(t2v, LoraChoice("x", files[0], files[0], 0.6, 0.3)))
    for found in run_ranks(2, on_a_rank, checkpoints[ModelKind.T2V], files[0], degrees):
        assert error(found["tp"], alone) <= 1e-5
        assert error(found["ring"], alone) <= 1e-5
        assert torch.equal(found["cfg"], alone)


def test_settings_keep_their_choices(t2v: WanPipeline, files: tuple[Path, Path]) -> None:
    chosen = settings(t2v, LoraChoice.of(files[0]))
    assert chosen.loras == (LoraChoice("one.safetensors", files[0], files[0]),)
    assert replace(chosen, loras=()) == settings(t2v)
