"""What a deployment uses, and what is refused because nobody ever ran it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from scripted_engine import tiny_info

from wantrn.model.errors import RequestError
from wantrn.model.features import Feature
from wantrn.model.info import ModelInfo, ModelKind
from wantrn.serving.deployment import Deployment
from wantrn.serving.features import OMNI_TESTED, check_features, describe_features, features_of
from wantrn.serving.rank_options import RankOptions
from wantrn.serving.shapes import Shape

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


def test_what_was_never_run_on_vllm_omni_is_refused(tmp_path: Path, info: ModelInfo) -> None:
    for field in fields(RankOptions):
        options = RankOptions(**{field.name: OTHER_VALUES.get(field.name, True)})
        (feature,) = options.features()
        deployment = Deployment(engine="omni", ranks=options)
        if feature in OMNI_TESTED:
            check_features(deployment, info)
        else:
            with pytest.raises(RequestError, match=f"engine: omni was never tested with {feature}"):
                check_features(deployment, info)
        check_features(Deployment(ranks=options), info)
    with pytest.raises(RequestError, match="never tested with lora"):
        check_features(Deployment(engine="omni", loras=tmp_path), info)
    with pytest.raises(RequestError, match="does not warm up"):
        check_features(Deployment(engine="omni", buckets=(Shape(64, 64, 5),)), info)
