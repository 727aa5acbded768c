"""Every two features that go together, together, against a run on one rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from rank_processes import run_ranks
from safetensors.torch import save_file
from torch import Tensor

from wantrn.model.execution import Execution
from wantrn.model.features import (
    APART,
    NEEDS,
    Feature,
    check_together,
    covering_sets,
    pairs,
    partners,
)
from wantrn.model.info import ModelKind, read_model_info
from wantrn.model.lora import LoraChoice
from wantrn.model.parallelism import Parallelism
from wantrn.model.pipeline import WanPipeline
from wantrn.model.quantization import QuantizationOptions
from wantrn.model.quantization.run import QuantizationJob
from wantrn.model.settings import VideoRequest, resolve
from wantrn.model.tiny import write_tiny_checkpoint
from wantrn.model.vae_tiles import Tiling
from wantrn.parallel import Degrees, Group, Groups
from wantrn.parallel.attention import Strategy

F = Feature
ALONE = Groups.single()
MOST_RANKS = 4
# of one rank to several, of the largest value. FP8: a code that flips is 1/16 of its value.
WITHIN = {torch.float32: 1e-5, torch.bfloat16: 0.08}


@dataclass(frozen=True)
class Files:
    """Checkpoints by (kind, whether it is FP8), and a LoRA for all of them."""

    models: dict[tuple[ModelKind, bool], Path]
    lora: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    root = tmp_path_factory.mktemp("pairs")
    models = {}
    for kind in (ModelKind.T2V, ModelKind.I2V):
        # two heads are too few to be shared twice
        models[kind, False] = write_tiny_checkpoint(root / kind.value, kind, heads=4)
        models[kind, True] = root / f"{kind.value}-fp8"
        options = QuantizationOptions()
        job = QuantizationJob.plan(models[kind, False], models[kind, True], options)
        job.run(lambda done: None)
    config = read_model_info(models[ModelKind.T2V, False]).config
    generator = torch.Generator().manual_seed(5)
    tensors = {}
    for layer in ("attn1.to_q", "attn1.to_out.0", "attn2.to_v", "attn2.to_out.0"):
        for name in ("A", "B"):
            shape = (4, config.hidden_size) if name == "A" else (config.hidden_size, 4)
            key = f"transformer.blocks.0.{layer}.lora_{name}.weight"
            tensors[key] = torch.randn(shape, generator=generator) * 0.1
    save_file(tensors, root / "lora.safetensors")
    return Files(models, root / "lora.safetensors")


def degrees(features: Collection[Feature]) -> Degrees:
    def two(feature: Feature) -> int:
        return 2 if feature in features else 1

    return Degrees(
        tp=two(F.TP),
        ring=two(F.RING),
        ulysses=two(F.ULYSSES),
        cfg=two(F.CFG_PARALLEL),
        sequence_sharding=F.SEQUENCE_SHARDING in features,
    )


def execution(features: Collection[Feature], groups: Groups) -> Execution:
    parallel = Parallelism(
        groups,
        Strategy.ALL_GATHER if F.ALL_GATHER in features else Strategy.RING,
        F.STRICT_TOKENS in features,
        F.REPLICATE_CROSS_ATTENTION in features,
    )
    shared = F.VAE_PARALLEL in features
    return Execution(
        parallel,
        batched_guidance=F.BATCH_GUIDANCE in features,
        tiling=Tiling(3, 1) if shared or F.TILE_VAE in features else None,
        vae_group=groups.world if shared else Group.single(),
    )


def video(files: Files, features: Collection[Feature], groups: Groups) -> tuple[Tensor, Tensor]:
    """Latents and frames, of 16 tokens where they must be shared evenly, else of 18.

    A step cache has something to reuse where there are some steps of one expert, not far from each
    other."""
    kind = ModelKind.I2V if F.FIRST_FRAME in features else ModelKind.T2V
    fp8 = F.FP8 in features
    dtype = torch.bfloat16 if fp8 else torch.float32
    pipeline = WanPipeline.load(files.models[kind, fp8], dtype, execution(features, groups))
    request = VideoRequest(
        prompt="a red ball",
        image=Image.new("RGB", (48, 48), "red") if kind is ModelKind.I2V else None,
        size=(64, 64) if F.STRICT_TOKENS in features else (48, 48),
        frames=5,
        steps=6 if F.STEP_CACHE in features else 2,
        shift=60.0 if F.STEP_CACHE in features else None,
        seed=3,
        loras=(LoraChoice.of(files.lora),) if F.LORA in features else (),
        step_cache=1.0 if F.STEP_CACHE in features else None,
    )
    run = pipeline.prepare(resolve(request, pipeline.info))
    while not run.done:
        pipeline.step(run)
    assert run.cached is None or run.cached.steps_reused > 0
    return run.latents, pipeline.decode(run)


def plans() -> dict[int, list[frozenset[Feature]]]:
    """What is run, by the number of ranks that it takes: sets in which every pair is at least once,
    on no more ranks than a pair needs. What FP8 is in is compared with less, so nothing else is
    left to those."""
    all_pairs = {frozenset(pair) for pair in pairs()}
    with_fp8 = {pair for pair in all_pairs if F.FP8 in pair}
    found: dict[int, list[frozenset[Feature]]] = defaultdict(list)
    for wanted in (all_pairs - with_fp8, with_fp8):
        for features in covering_sets(wanted, lambda found: degrees(found).world <= MOST_RANKS):
            found[degrees(features).world].append(features)
    return dict(sorted(found.items()))


PLANS = plans()


def on_a_rank(files: Files, plan: list[frozenset[Feature]]) -> list[Any]:
    made: dict[Degrees, Groups] = {}
    found = []
    for features in plan:
        wanted = degrees(features)
        if wanted not in made:
            made[wanted] = Groups.build(wanted)
        found.append(video(files, features, made[wanted]))
    return found


def what_one_rank_has(features: Collection[Feature]) -> frozenset[Feature]:
    """Of ``features``, those that change what a single rank computes by more than rounding."""
    kept = {F.FP8, F.LORA, F.FIRST_FRAME, F.STRICT_TOKENS, F.TILE_VAE, F.STEP_CACHE}
    tiles = {F.TILE_VAE} if F.VAE_PARALLEL in features else set()
    return frozenset(kept.intersection(features) | tiles)


def alone(files: Files, features: frozenset[Feature]) -> tuple[Tensor, Tensor]:
    """The run on one rank. Tokens that it shares with nobody are shared evenly."""
    pipeline_features = features - {F.STRICT_TOKENS}
    if F.STRICT_TOKENS not in features:
        return video(files, pipeline_features, ALONE)
    return video(files, features, ALONE)


def close(ours: tuple[Tensor, Tensor], one: tuple[Tensor, Tensor], dtype: torch.dtype) -> bool:
    for mine, wanted in zip(ours, one, strict=True):
        if not (mine - wanted).abs().max() <= WITHIN[dtype] * wanted.abs().max():
            return False
    return True


@pytest.mark.parametrize("world", PLANS)
def test_pairs(files: Files, world: int) -> None:
    plan = PLANS[world]
    references: dict[frozenset[Feature], tuple[Tensor, Tensor]] = {}
    ranks = run_ranks(world, on_a_rank, files, plan)
    faults = []
    for place, features in enumerate(plan):
        same = what_one_rank_has(features)
        if same not in references:
            references[same] = alone(files, same)
        dtype = torch.bfloat16 if F.FP8 in features else torch.float32
        if not all(close(found[place], references[same], dtype) for found in ranks):
            difference = max(
                float((found[place][0] - references[same][0]).abs().max()) for found in ranks
            )
            faults.append(f"{' + '.join(sorted(features))}: {difference:.2e}")
    assert faults == []


def test_every_pair_is_in_the_plans() -> None:
    planned = [features for plan in PLANS.values() for features in plan]
    for first, second in pairs():
        assert any({first, second} <= features for features in planned), (first, second)
    assert len(pairs()) == len(Feature) * (len(Feature) - 1) // 2 - len(APART)
    for feature in Feature:
        assert set(partners(feature)) == {
            other for pair in pairs() if feature in pair for other in pair if other is not feature
        }


def test_the_lora_and_the_first_frame_matter(files: Files) -> None:
    """Or the pairs with them would show nothing."""
    plain = video(files, (), ALONE)[0]
    with_lora = video(files, (F.LORA,), ALONE)[0]
    assert (with_lora - plain).abs().max() > 1e-3 * plain.abs().max()


def test_what_does_not_go_together_is_refused() -> None:
    check_together(())
    for feature, needs in NEEDS.items():
        with pytest.raises(ValueError, match=f"{feature} needs"):
            check_together((feature,))
        for need in needs:
            check_together((feature, need))
    for pair, reason in APART.items():
        with pytest.raises(ValueError, match=reason):
            check_together(pair)
