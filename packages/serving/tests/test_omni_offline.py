"""Our plugin under vLLM-Omni's own offline API: every layout makes the video of one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omni_environment import needs_omni, run_with_omni

from wantrn.model.info import ModelKind
from wantrn.model.tiny import write_tiny_checkpoint

EXECUTOR = "wantrn.serving.engines.omni.executor.RankExecutor"
# 27 tokens: no two ranks can share them evenly
ODD = {"size": [48, 48], "frames": 9, "steps": 3, "shift": 4.0}
EVEN = {"size": [64, 96], "frames": 5, "steps": 2, "shift": 4.0}
PICTURE = {**EVEN, "picture": 40}
# steps that are near enough to each other for random weights to have something to reuse
CACHED = {"steps": 8, "shift": 100.0, "step_cache": 1.0}


Case = tuple[ModelKind, dict[str, Any], dict[str, Any]]
"""A model, a request and the stage's options."""

ONE_RANK: list[Case] = [
    (ModelKind.T2V, ODD, {}),
    (ModelKind.I2V, PICTURE, {}),
    (ModelKind.TI2V, EVEN, {}),
    (ModelKind.TI2V, PICTURE, {}),
]
ITS_EXECUTOR: list[Case] = [(ModelKind.T2V, ODD, {"tensor_parallel_size": 2})]
OURS = {"distributed_executor_backend": EXECUTOR}
OUR_EXECUTOR: list[Case] = [
    (ModelKind.T2V, ODD, {"ring_degree": 2, **OURS}),
    (ModelKind.T2V, ODD, {"ulysses_degree": 2, **OURS}),
    (ModelKind.T2V, ODD, {"allgather_degree": 2, **OURS}),
    (ModelKind.T2V, ODD, {"cfg_parallel_size": 2, **OURS}),
    (ModelKind.I2V, PICTURE, {"tensor_parallel_size": 2, **OURS}),
    (ModelKind.TI2V, PICTURE, {"ring_degree": 2, **OURS}),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[ModelKind, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {kind: write_tiny_checkpoint(folder / kind.value, kind) for kind in ModelKind}


@needs_omni
@pytest.mark.parametrize(
    ("cases", "bound"),
    [(ONE_RANK, 0.0), (ITS_EXECUTOR, 1e-5), (OUR_EXECUTOR, 1e-5)],
    ids=["one rank", "two ranks, its executor", "two ranks, our executor"],
)
def test_the_video_is_that_of_one_rank(
    cases: list[Case], bound: float, models: dict[ModelKind, Path], tmp_path: Path
) -> None:
    """Also with a step cache."""
    asked: list[dict[str, Any]] = [
        {
            "model": str(models[kind]),
            "dtype": "float32",
            "tiled": False,
            "stage": stage,
            "requests": [request, {**request, **CACHED}],
        }
        for kind, request, stage in cases
    ]
    answers = run_with_omni("omni_offline.py", {"cases": asked}, tmp_path, seconds=600)
    requests = [request for case in asked for request in case["requests"]]
    for request, answer in zip(requests, answers, strict=True):
        width, height = request["size"]
        assert answer["shape"] == [request["frames"], height, width, 3], request
        assert answer["dtype"] == "float32"
        assert answer["difference"] <= bound, request
