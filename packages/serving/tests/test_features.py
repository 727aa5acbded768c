"""What a deployment uses, and what is refused because nobody ever ran it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from scripted_engine import tiny_info

from wantrn.model.features import Feature
from wantrn.model.info import ModelInfo, ModelKind
from wantrn.serving.deployment import Deployment
from wantrn.serving.features import describe_features, features_of
from wantrn.serving.rank_options import RankOptions

OTHER_VALUES: dict[str, Any] = {"tp": 2, "ring": 2, "ulysses": 2, "context": "all_gather"}
NAMES = {"context": Feature.ALL_GATHER}


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    return tiny_info(tmp_path_factory.mktemp("tiny"))


def test_every_option_about_ranks_is_a_feature() -> None:
    assert RankOptions().features() == frozenset()
    for field in fields(RankOptions):
        options = RankOptions(**{field.name: OTHER_VALUES.get(field.name, True)})
        feature = NAMES.get(field.name) or Feature(field.name)
        assert options.features() == {feature}, field.name


def test_what_a_deployment_uses_is_said(tmp_path: Path, info: ModelInfo) -> None:
    one = Deployment()
    assert features_of(one, info) == frozenset()
    said = describe_features(one, info)
    assert said["features"] == "one rank, nothing else"
    assert "cfg_parallel" not in said["  batch_guidance with"].split(", ")
    several = Deployment(ranks=RankOptions(tp=2, batch_guidance=True), loras=tmp_path)
    assert features_of(several, info) == {Feature.TP, Feature.BATCH_GUIDANCE, Feature.LORA}
    said = describe_features(several, info)
    assert said["features"] == "batch_guidance, lora, tp"
    assert set(said) == {"features", "  batch_guidance with", "  lora with", "  tp with"}
    assert "ring" in said["  tp with"].split(", ")
    image_info = tiny_info(tmp_path, ModelKind.I2V)
    assert features_of(one, image_info) == {Feature.FIRST_FRAME}


def test_what_vllm_omni_has_no_groups_for_is_not_said_to_go_together(info: ModelInfo) -> None:
    ranks = RankOptions(ring=2, context="all_gather")
    for engine, wanted in (("local", True), ("omni", False)):
        deployment = Deployment(engine=engine, ranks=ranks)  # type: ignore[arg-type]
        said = describe_features(deployment, info)
        assert ("ulysses" in said["  all_gather with"].split(", ")) is wanted
        assert {"lora", "fp8", "vae_parallel"} <= set(said["  ring with"].split(", "))
