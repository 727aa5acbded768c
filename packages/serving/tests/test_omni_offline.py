"""Our plugin under vLLM-Omni's own offline API: every layout makes the video of one rank."""

from __future__ import annotations

from itertools import combinations
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


def case(kind: ModelKind, request: dict[str, Any], **stage: Any) -> dict[str, Any]:
    """The request, and the same with a step cache."""
    return {"kind": kind.value, "requests": [request, {**request, **CACHED}], "stage": stage}


ONE_RANK = [
    case(ModelKind.T2V, ODD),
    case(ModelKind.I2V, PICTURE),
    case(ModelKind.TI2V, EVEN),
    case(ModelKind.TI2V, PICTURE),
]
ITS_EXECUTOR = [case(ModelKind.T2V, ODD, tensor_parallel_size=2)]
OUR_EXECUTOR = [
    case(kind, request, distributed_executor_backend=EXECUTOR, **degrees)
    for kind, request, degrees in (
        (ModelKind.T2V, ODD, {"ring_degree": 2}),
        (ModelKind.T2V, ODD, {"ulysses_degree": 2}),
        (ModelKind.T2V, ODD, {"allgather_degree": 2}),
        (ModelKind.T2V, ODD, {"cfg_parallel_size": 2}),
        (ModelKind.I2V, PICTURE, {"tensor_parallel_size": 2}),
        (ModelKind.TI2V, PICTURE, {"ring_degree": 2}),
    )
]
DEGREES = ("tensor_parallel_size", "ring_degree", "ulysses_degree", "cfg_parallel_size")
FOUR_RANKS = [
    case(ModelKind.T2V, ODD, distributed_executor_backend=EXECUTOR, **dict.fromkeys(pair, 2))
    for pair in combinations(DEGREES, 2)
    if pair != ("tensor_parallel_size", "ulysses_degree")  # with two heads, tp leaves one to share
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    for kind in ModelKind:
        write_tiny_checkpoint(folder / kind.value, kind)
    return {kind.value: str(folder / kind.value) for kind in ModelKind}


@needs_omni
@pytest.mark.parametrize(
    ("cases", "bound"),
    [(ONE_RANK, 0.0), (ITS_EXECUTOR, 1e-5), (OUR_EXECUTOR, 1e-5), (FOUR_RANKS, 1e-5)],
    ids=["one rank", "two ranks, its executor", "two ranks, our executor", "every two axes"],
)
def test_the_video_is_that_of_one_rank(
    cases: list[dict[str, Any]], bound: float, models: dict[str, str], tmp_path: Path
) -> None:
    question = {"models": models, "cases": cases}
    answers = run_with_omni("omni_offline.py", question, tmp_path, seconds=600)
    requests = [request for asked in cases for request in asked["requests"]]
    for asked, answer in zip(requests, answers, strict=True):
        width, height = asked["size"]
        assert answer["shape"] == [asked["frames"], height, width, 3], asked
        assert answer["dtype"] == "float32"
        assert answer["difference"] <= bound, asked
