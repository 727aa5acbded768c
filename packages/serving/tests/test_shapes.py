"""A server that is ready for certain shapes only."""

from __future__ import annotations

from pathlib import Path

import pytest
from http_server import serving
from PIL import Image
from scripted_engine import tiny_info

from wantrn.model.errors import RequestError
from wantrn.model.info import ModelInfo, ModelKind
from wantrn.model.schedulers import make_scheduler
from wantrn.model.settings import VideoRequest, resolve
from wantrn.serving.cli import main
from wantrn.serving.shapes import Shape, Shapes, trial_request
from wantrn.serving.warm_up import fewest_steps

WIDE, TALL, LONG = Shape(96, 64, 5), Shape(64, 96, 5), Shape(64, 64, 13)


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    return tiny_info(tmp_path_factory.mktemp("tiny"))


def test_what_is_left_open_is_chosen_from_the_shapes(info: ModelInfo) -> None:
    shapes = Shapes((WIDE, TALL, LONG), info)

    def chosen(**asked: object) -> tuple[object, object]:
        request = shapes.choose(VideoRequest("a", **asked))  # type: ignore[arg-type]
        return request.size, request.frames

    assert chosen() == ((96, 64), 5)
    assert chosen(frames=13) == ((64, 64), 13)
    assert chosen(size=(64, 96)) == ((64, 96), 5)
    assert chosen(image=Image.new("RGB", (30, 50))) == ((64, 96), 5)
    assert chosen(image=Image.new("RGB", (50, 50)), frames=5) == ((96, 64), 5)
    assert chosen(size=(64, 64), frames=5) == ((64, 64), 5)  # refused later, by name
    assert Shapes((), info).choose(VideoRequest("a")) == VideoRequest("a")


def test_shapes_that_the_model_cannot_make(info: ModelInfo) -> None:
    with pytest.raises(RequestError, match="buckets: 100x64x5: size: 100x64 cannot be made"):
        Shapes((WIDE, Shape(100, 64, 5)), info)
    with pytest.raises(RequestError, match="frames: 6 cannot be made"):
        Shapes((Shape(96, 64, 6),), info)


def test_as_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("96x64", "96x64x5x1", "ax64x5", "", "-96x64x5", "96x64x"):
        with pytest.raises(SystemExit):
            main(["precompile", f"--bucket={text}"])
        assert "no shape such as 832x480x81" in capsys.readouterr().err
    assert main(["precompile"]) == 2
    assert "--bucket: there must be at least one" in capsys.readouterr().err


def test_precompiling_makes_each_shape(
    tmp_path: Path, info: ModelInfo, capfd: pytest.CaptureFixture[str]
) -> None:
    model = ["--model", str(info.directory), "--threads", "1"]
    assert main(["precompile", *model, "--bucket=96x64x5", "--bucket=64x64x13"]) == 0
    said = capfd.readouterr().err
    assert "warmed up 96x64x5" in said and "warmed up 64x64x13" in said
    assert "2 shapes were made" in said


def test_shapes_that_the_ranks_cannot_make(
    info: ModelInfo, capfd: pytest.CaptureFixture[str]
) -> None:
    """Before any rank is started."""
    model = ["--model", str(info.directory)]
    ring = ["--ring", "2", "--strict-tokens"]
    for command in ("precompile", "serve"):
        assert main([command, *model, "--bucket=48x48x9", *ring]) == 2
        assert "--strict-tokens: Sequence length 27 is not divisible" in capfd.readouterr().err
        assert main([command, *model, "--bucket=50x48x9"]) == 2
        assert "--bucket: 50x48x9: size: 50x48 cannot be made" in capfd.readouterr().err


def test_over_http(tmp_path: Path, info: ModelInfo) -> None:
    with (
        serving(tmp_path, info, buckets=(WIDE, LONG)) as server,
        server.client() as client,
    ):
        model = client.get("/v1/models").json()["data"][0]
        assert model["buckets"] == ["96x64x5", "64x64x13"]
        made = client.post("/v1/videos", json={"prompt": "a"}).json()
        assert (made["size"], made["num_frames"], made["adjusted"]) == ("96x64", 5, {})
        body = {"prompt": "a", "size": "64x64", "num_frames": 5}
        reply = client.post("/v1/videos", json=body)
        assert reply.status_code == 400 and reply.json()["error"]["param"] == "size"
        assert "96x64x5, 64x64x13" in reply.text
        made = client.post("/v1/videos", json={**body, "fit": "nearest"}).json()
        assert (made["size"], made["num_frames"]) == ("96x64", 5)
        assert made["adjusted"] == {"size": "64x64"}
        made = client.post("/v1/videos", json={**body, "num_frames": 12, "fit": "nearest"}).json()
        assert (made["size"], made["num_frames"]) == ("64x64", 13)
        assert made["adjusted"] == {"num_frames": "12"}


@pytest.mark.parametrize("kind", list(ModelKind))
def test_a_trial_uses_every_expert(
    tmp_path_factory: pytest.TempPathFactory, kind: ModelKind
) -> None:
    info = tiny_info(tmp_path_factory.mktemp("kind"), kind)
    steps = fewest_steps(info)
    settings = resolve(trial_request(WIDE, info, steps), info)
    timesteps = make_scheduler(info.scheduler_config, settings.steps).timesteps
    if info.boundary_ratio is None:
        assert steps == 1
    else:
        below = (timesteps < info.boundary_ratio * 1000).tolist()
        assert any(below) and not all(below)
