"""What a capture holds, and how it comes to be there whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from capture_runs import STEPS, captured, files, prepared
from torch import Tensor, nn

from wantrn.model.capture import (
    DEFAULT_MODULES,
    CaptureError,
    CapturePlan,
    Selection,
    recording,
)
from wantrn.model.capture.points import capturable, matching
from wantrn.model.denoising import DenoisingError
from wantrn.model.execution import Execution
from wantrn.model.info import ModelKind
from wantrn.model.pipeline import WanPipeline
from wantrn.model.quantization import QuantizationOptions
from wantrn.model.quantization.run import QuantizationJob
from wantrn.model.tiny import tiny_config

TOKENS, HIDDEN = 3 * 4 * 4, 256
GUIDED = ("prompt", "negative")


@pytest.fixture(scope="module")
def t2v(checkpoints: dict[ModelKind, Path]) -> WanPipeline:
    return WanPipeline.load(checkpoints[ModelKind.T2V], torch.float32)


def test_all_points_of_a_step(t2v: WanPipeline, tmp_path: Path) -> None:
    everything = ("*", *DEFAULT_MODULES)
    capture = captured(CapturePlan.of(t2v, prepared(t2v), Selection(everything)), tmp_path / "c")
    names = {"patch_embedding@both", "blocks.0.self_attention@both"}
    names |= {f"blocks.1.self_attention@{branch}" for branch in GUIDED}
    for block in ("blocks.0", "blocks.1"):
        for part in ("", ".cross_attention", ".feed_forward"):
            names |= {f"{block}{part}@{branch}" for branch in GUIDED}
    for index, tensors in enumerate(files(capture)):
        states = {"start.latents"}
        if index:
            states |= {"start.sample", *(f"start.prediction.{k}" for k in range(min(index, 2)))}
        assert tensors.keys() == names | states | {"velocity@both", "latents@both"}
        for name in names:
            assert tensors[name].shape == (1, TOKENS, HIDDEN), name
            assert tensors[name].dtype == torch.float32
        assert tensors["latents@both"].shape == tensors["start.latents"].shape == (1, 16, 3, 8, 8)
    assert [step.expert for step in capture.description.steps] == [0, 1, 1]
    timesteps = prepared(t2v).scheduler.timesteps.tolist()
    assert [step.timestep for step in capture.description.steps] == timesteps


def test_a_capture_changes_nothing(t2v: WanPipeline, tmp_path: Path) -> None:
    run, watched = prepared(t2v), prepared(t2v)
    capture = captured(CapturePlan.of(t2v, watched), tmp_path / "c")
    for tensors in files(capture):
        assert torch.equal(tensors["start.latents"], run.latents)
        t2v.step(run)
        assert torch.equal(tensors["latents@both"], run.latents)
        assert run.velocity is not None
        assert torch.equal(tensors["velocity@both"], run.velocity)
    assert torch.equal(run.latents, watched.latents)
    for expert in t2v.experts:
        assert not any(module._forward_hooks for module in expert.modules())


def test_tensors_are_what_the_modules_give(t2v: WanPipeline, tmp_path: Path) -> None:
    """By the sums that a block is made of: what a module adds is the difference of streams."""
    modules = ("patch_embedding", *DEFAULT_MODULES)
    plan = CapturePlan.of(t2v, prepared(t2v), Selection(modules, steps=(0,)))
    (tensors,) = files(captured(plan, tmp_path / "c"))
    expert, run = t2v.experts[0], prepared(t2v)
    _, rows = expert.time_embedding(run.scheduler.timesteps[:1].view(1, 1))
    for branch in GUIDED:
        stream = tensors["patch_embedding@both"]
        for index, block in enumerate(expert.blocks):
            gates = (block.modulation + rows)[0, 0]
            own = "both" if index == 0 else branch
            stream = stream + gates[2] * tensors[f"blocks.{index}.self_attention@{own}"]
            stream = stream + tensors[f"blocks.{index}.cross_attention@{branch}"]
            stream = stream + gates[5] * tensors[f"blocks.{index}.feed_forward@{branch}"]
            given = tensors[f"blocks.{index}@{branch}"]
            assert (stream - given).abs().max() <= 1e-5 * given.abs().max()
            stream = given
    assert not torch.equal(tensors["blocks.1@prompt"], tensors["blocks.1@negative"])


def test_both_branches_as_a_batch(checkpoints: dict[ModelKind, Path], tmp_path: Path) -> None:
    folder = checkpoints[ModelKind.TI2V]
    one = WanPipeline.load(folder, torch.float32)
    batch = WanPipeline.load(folder, torch.float32, Execution(batched_guidance=True))
    found = [
        files(captured(CapturePlan.of(pipeline, prepared(pipeline, steps=2)), tmp_path / name))
        for pipeline, name in ((one, "one"), (batch, "batch"))
    ]
    for alone, together in zip(*found, strict=True):
        assert alone.keys() == together.keys()
        for name, tensor in alone.items():
            assert together[name].shape == tensor.shape
            assert (together[name] - tensor).abs().max() <= 1e-4 * tensor.abs().max(), name


def test_without_guidance_there_is_one_branch(t2v: WanPipeline, tmp_path: Path) -> None:
    run = prepared(t2v, guidance=1.0, guidance_2=3.0)
    first, second, _ = files(captured(CapturePlan.of(t2v, run), tmp_path / "c"))
    assert not any(name.endswith("@negative") for name in first)
    assert "blocks.1@prompt" in first and "blocks.0.self_attention@both" in first
    assert "blocks.1@negative" in second


@pytest.mark.parametrize("kind", [ModelKind.I2V, ModelKind.TI2V])
def test_other_kinds(checkpoints: dict[ModelKind, Path], kind: ModelKind, tmp_path: Path) -> None:
    pipeline = WanPipeline.load(checkpoints[kind], torch.bfloat16)
    run = prepared(pipeline, steps=1)
    capture = captured(CapturePlan.of(pipeline, run), tmp_path / "c")
    (tensors,) = files(capture)
    assert tensors["blocks.1@prompt"].dtype == torch.bfloat16
    assert tensors["blocks.1@prompt"].shape == (1, TOKENS, HIDDEN)
    assert ("sha256:" in str(capture.description.settings.get("image"))) == (kind is ModelKind.I2V)


def test_a_model_in_fp8(checkpoints: dict[ModelKind, Path], tmp_path: Path) -> None:
    """Its modules read packed rows, and give none."""
    fp8 = tmp_path / "fp8"
    QuantizationJob.plan(checkpoints[ModelKind.T2V], fp8, QuantizationOptions()).run(
        lambda done: None
    )
    pipeline = WanPipeline.load(fp8, torch.bfloat16)
    plan = CapturePlan.of(pipeline, prepared(pipeline), Selection(steps=(1,)))
    capture = captured(plan, tmp_path / "c")
    (tensors,) = files(capture)
    for name, tensor in tensors.items():
        if name.startswith("blocks."):
            assert (tensor.shape, tensor.dtype) == ((1, TOKENS, HIDDEN), torch.bfloat16)
    assert "FP8 self_attention" in capture.description.what()


def test_some_modules_steps_and_tokens(t2v: WanPipeline, tmp_path: Path) -> None:
    whole = files(captured(CapturePlan.of(t2v, prepared(t2v)), tmp_path / "whole"))
    selection = Selection(("blocks.1.*", "latents"), steps=(2, 1), every_token=5)
    plan = CapturePlan.of(t2v, prepared(t2v), selection)
    assert plan.steps_to_make == (0, 1, 2)
    capture = captured(plan, tmp_path / "part")
    assert [step.index for step in capture.description.steps] == [1, 2]
    for part, all_of_it in zip(files(capture), whole[1:], strict=True):
        points = {name for name in part if "@" in name}
        parts = ("self_attention", "cross_attention", "feed_forward")
        assert points == {"latents@both"} | {
            f"blocks.1.{one}@{branch}" for one in parts for branch in GUIDED
        }
        for name in points - {"latents@both"}:
            assert torch.equal(part[name], all_of_it[name][:, ::5])
        assert torch.equal(part["latents@both"], all_of_it["latents@both"])


def test_the_inputs_of_another(t2v: WanPipeline, tmp_path: Path) -> None:
    """The same model makes the same steps of them, in any selection; another makes its own, each
    from where the first one stood."""
    first = captured(CapturePlan.of(t2v, prepared(t2v)), tmp_path / "first")
    again = CapturePlan.of(t2v, prepared(t2v), Selection(steps=(0, 2)), first)
    assert again.steps_to_make == (0, 2)
    second = captured(again, tmp_path / "second")
    assert second.description.inputs_of == first.description.id != second.description.id
    for one, other in zip(files(first)[::2], files(second), strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    bf16 = WanPipeline.load(t2v.info.directory, torch.bfloat16)
    third = captured(CapturePlan.of(bf16, prepared(bf16), inputs=first), tmp_path / "third")
    for one, other in zip(files(first), files(third), strict=True):
        assert torch.equal(one["start.latents"], other["start.latents"])
        assert not torch.equal(one["velocity@both"], other["velocity@both"])


@pytest.mark.parametrize(
    ("modules", "found"),
    [
        (["blocks.*"], ["blocks.0", "blocks.1"]),
        (["latents", "blocks.1"], ["blocks.1", "latents"]),
        (["*.*.feed_*"], ["blocks.0.feed_forward", "blocks.1.feed_forward"]),
        (["blocks.[!0].*_attention"], ["blocks.1.self_attention", "blocks.1.cross_attention"]),
        (["*"], ["patch_embedding", "velocity", "latents"]),
        (["*", "*.*", "*.*.*"], list(capturable(tiny_config(ModelKind.T2V)))),
    ],
)
def test_patterns(modules: Sequence[str], found: Sequence[str]) -> None:
    assert matching(modules, tiny_config(ModelKind.T2V)) == tuple(found)


def test_what_can_be_captured_is_there(t2v: WanPipeline) -> None:
    *modules, velocity, latents = capturable(t2v.info.config)
    assert (velocity, latents) == ("velocity", "latents")
    for module in modules:
        assert isinstance(t2v.experts[0].get_submodule(module), nn.Module)


@pytest.mark.parametrize("modules", [DEFAULT_MODULES, ("velocity",), ("blocks.1", "latents")])
@pytest.mark.parametrize("every_token", [1, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_its_size_is_known_before(
    checkpoints: dict[ModelKind, Path],
    tmp_path: Path,
    modules: Sequence[str],
    every_token: int,
    dtype: torch.dtype,
) -> None:
    pipeline = WanPipeline.load(checkpoints[ModelKind.T2V], dtype)
    run = prepared(pipeline, guidance=1.0)
    plan = CapturePlan.of(pipeline, run, Selection(modules, every_token=every_token))
    assert plan.nbytes == sum(map(plan.step_nbytes, range(STEPS)))
    capture = captured(plan, tmp_path / "c")
    for step, tensors in enumerate(files(capture)):
        nbytes = sum(tensor.nbytes for tensor in tensors.values())
        assert nbytes <= plan.step_nbytes(step) <= nbytes + 2 * run.latents.nbytes


# What is refused


@pytest.mark.parametrize(
    ("selection", "text"),
    [
        ({"modules": ()}, "modules must be at least one"),
        ({"modules": ("blocks.*", "blocks.2")}, "'blocks.2' matches none of patch_embedding"),
        ({"modules": ("blocks.0.self_attention.qkv",)}, "self_attention.qkv' matches none"),
        ({"steps": ()}, "steps must be at least one"),
        ({"steps": (0, 3)}, "steps must be 0 to 2, got 3"),
        ({"every_token": 0}, "every_token must be at least 1, got 0"),
    ],
)
def test_a_wrong_selection(t2v: WanPipeline, selection: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text.replace("[", r"\[")):
        CapturePlan.of(t2v, prepared(t2v), Selection(**selection))


def test_wrong_inputs(t2v: WanPipeline, tmp_path: Path) -> None:
    first = captured(CapturePlan.of(t2v, prepared(t2v), Selection(steps=(0, 1))), tmp_path / "one")
    with pytest.raises(CaptureError, match="one: step 2 is not captured"):
        CapturePlan.of(t2v, prepared(t2v), Selection(steps=(0, 2)), first)
    with pytest.raises(CaptureError, match="seed is 1 and 2"):
        CapturePlan.of(t2v, prepared(t2v, seed=2), inputs=first)
    forced = captured(CapturePlan.of(t2v, prepared(t2v), inputs=first), tmp_path / "two")
    with pytest.raises(CaptureError, match="two: has itself taken the inputs"):
        CapturePlan.of(t2v, prepared(t2v), inputs=forced)
    begun = prepared(t2v)
    t2v.step(begun)
    with pytest.raises(CaptureError, match="has made 1 steps"):
        CapturePlan.of(t2v, begun)


def test_a_step_that_fails_leaves_nothing(t2v: WanPipeline, tmp_path: Path) -> None:
    plan = CapturePlan.of(t2v, prepared(t2v))

    def fail(module: nn.Module, inputs: object, output: Tensor) -> None:
        raise RuntimeError("broken")

    low_noise = t2v.experts[1].get_submodule("blocks.1")
    hook = low_noise.register_forward_hook(fail)
    try:
        with pytest.raises(RuntimeError, match="broken"):
            captured(plan, tmp_path / "c")
    finally:
        hook.remove()
    assert list(tmp_path.iterdir()) == []
    assert not any(module._forward_hooks for e in t2v.experts for module in e.modules())


def test_what_is_not_finite_is_named(checkpoints: dict[ModelKind, Path], tmp_path: Path) -> None:
    pipeline = WanPipeline.load(checkpoints[ModelKind.T2V], torch.float32)
    weight = pipeline.experts[1].get_parameter("blocks.1.cross_attention.out.weight")
    weight[7, 7] = torch.inf
    plan = CapturePlan.of(pipeline, prepared(pipeline))
    text = "after step 2 of 3 .*; blocks.1.cross_attention is the first module whose output is not"
    with pytest.raises(DenoisingError, match=text):
        captured(plan, tmp_path / "c")
    assert list(tmp_path.iterdir()) == []


def test_a_capture_that_ends_early_leaves_nothing(t2v: WanPipeline, tmp_path: Path) -> None:
    def two_files_short() -> None:
        with recording(CapturePlan.of(t2v, prepared(t2v)), tmp_path / "c") as recorder:
            recorder.make()
            (hidden,) = tmp_path.iterdir()
            assert [file.name for file in (hidden / "c").iterdir()] == ["step-0000.safetensors"]

    with pytest.raises(CaptureError, match="step 1 was not made"):
        two_files_short()
    assert list(tmp_path.iterdir()) == []


def test_no_more_steps_than_there_are(t2v: WanPipeline, tmp_path: Path) -> None:
    plan = CapturePlan.of(t2v, prepared(t2v), Selection(("latents",), steps=(0,)))
    with recording(plan, tmp_path / "c") as recorder:
        recorder.make()
        with pytest.raises(ValueError, match="all steps are made"):
            recorder.make()


def test_a_module_that_a_step_leaves_out_is_named(
    t2v: WanPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_block_only(model: Any, stream: Tensor, *arguments: Any) -> list[Tensor]:
        return [stream, stream]

    monkeypatch.setattr(type(t2v.experts[0]), "_streams", first_block_only)
    plan = CapturePlan.of(t2v, prepared(t2v), Selection(("blocks.1",)))
    with pytest.raises(CaptureError, match=r"blocks.1 has given \[\] in a step"):
        captured(plan, tmp_path / "c")


def test_where_there_is_no_place(
    t2v: WanPipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = CapturePlan.of(t2v, prepared(t2v))
    (tmp_path / "old").mkdir()
    with pytest.raises(CaptureError, match="old: is there already"):
        captured(plan, tmp_path / "old")
    with pytest.raises(CaptureError, match="there is no folder"):
        captured(plan, tmp_path / "none" / "c")
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10**6))
    with pytest.raises(CaptureError, match=r"takes about 0.0 GB, and 0.0 GB are free"):
        captured(plan, tmp_path / "c")
    assert plan.run.step_index == 0


def test_a_step_cache(t2v: WanPipeline, tmp_path: Path) -> None:
    """What is computed with it in every step can be captured, and compared with a run without."""
    run, always = prepared(t2v, step_cache=0.1), ("blocks.0", "blocks.0.*", "velocity", "latents")
    with pytest.raises(CaptureError, match=r"not every step computes blocks.1.self_attention"):
        CapturePlan.of(t2v, run)
    cached = captured(CapturePlan.of(t2v, run, Selection(always)), tmp_path / "cached")
    whole = captured(CapturePlan.of(t2v, prepared(t2v), Selection(always)), tmp_path / "whole")
    assert cached.description.what() == "float32, torch, step cache 0.1"
    assert cached.description.settings == whole.description.settings
    with pytest.raises(CaptureError, match="step_cache must be off where steps take the inputs"):
        CapturePlan.of(t2v, prepared(t2v, step_cache=0.1), Selection(always), whole)
