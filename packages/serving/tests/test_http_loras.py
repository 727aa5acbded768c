"""LoRAs of a server: known by name, per expert, and nobody's path."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from http_server import HttpServer, serving
from safetensors.torch import save_file
from scripted_engine import tiny_info

from wantrn.model.info import ModelInfo
from wantrn.serving.settings_json import settings_from_json, settings_to_json

BODY = {"prompt": "a", "size": "64x64", "num_frames": 5}


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    return tiny_info(tmp_path_factory.mktemp("tiny"))


def lora_file(path: Path, info: ModelInfo, layer: str = "blocks.0.attn1.to_q") -> None:
    hidden = info.config.hidden_size
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(
        {
            f"transformer.{layer}.lora_A.weight": torch.ones(2, hidden),
            f"transformer.{layer}.lora_B.weight": torch.ones(hidden, 2),
        },
        path,
    )


@pytest.fixture
def folder(tmp_path: Path, info: ModelInfo) -> Path:
    made = tmp_path / "loras"
    lora_file(made / "style.safetensors", info)
    lora_file(made / "motion" / "high.safetensors", info)
    lora_file(made / "motion" / "low.safetensors", info)
    lora_file(made / "half" / "low.safetensors", info)
    (made / "notes.txt").write_text("not one")
    (made / "empty").mkdir()
    return made


@pytest.fixture
def server(tmp_path: Path, info: ModelInfo) -> Iterator[HttpServer]:
    with serving(tmp_path / "store", info) as made:
        yield made


def test_names_are_told_and_used(tmp_path: Path, info: ModelInfo, folder: Path) -> None:
    with serving(tmp_path / "store", info, loras=folder) as server, server.client() as client:
        names = client.get("/v1/models").json()["data"][0]["loras"]
        assert names == ["half", "motion", "style"]
        lora = [{"name": "style", "scale": 0.5}, {"name": "motion", "scale_2": 0.25}]
        by_json = client.post("/v1/videos", json={**BODY, "lora": lora})
        by_form = client.post("/v1/videos", data={**BODY, "lora": json.dumps(lora)})
        for reply in (by_json, by_form):
            assert reply.status_code == 200, reply.text
            assert reply.json()["lora"] == [
                {"name": "style", "scale": 0.5, "scale_2": 0.5},
                {"name": "motion", "scale": 1.0, "scale_2": 0.25},
            ]
            settings = server.engine.has[server.work_of(reply.json()["id"])].settings
            style, motion = settings.loras
            assert style.high == style.low == folder / "style.safetensors"
            assert (motion.high, motion.low) == (
                folder / "motion" / "high.safetensors",
                folder / "motion" / "low.safetensors",
            )
            assert settings_from_json(settings_to_json(settings)) == settings
        lora_file(folder / "late.safetensors", info)
        assert "late" in client.get("/v1/models").json()["data"][0]["loras"]


@pytest.mark.parametrize(
    ("lora", "told"),
    [
        ([{"name": "other"}], "this server has broken, half, motion, style"),
        ([{"name": "../loras/style"}], "is not here"),
        ([{"name": "style.safetensors"}], "is not here"),
        ([{"name": "/etc/passwd"}], "is not here"),
        ([{"name": "notes"}], "is not here"),
        ([{"name": "broken"}], "unknown: transformer.blocks.0.nothing"),
        ([{"path": "x"}], "lora.0.name"),
        ([{"name": "style", "path": "x"}], "lora.0.path"),
        ([{"name": "style"}] * 17, "at most 16"),
        ("style", "list"),
    ],
)
def test_what_is_no_lora_of_this_server(
    tmp_path: Path, info: ModelInfo, folder: Path, lora: object, told: str
) -> None:
    lora_file(folder / "broken.safetensors", info, "blocks.0.nothing")
    with serving(tmp_path / "store", info, loras=folder) as server, server.client() as client:
        reply = client.post("/v1/videos", json={**BODY, "lora": lora})
        assert reply.status_code == 400 and reply.json()["error"]["param"].startswith("lora")
        assert told in reply.text and str(tmp_path) not in reply.text
        assert server.engine.given == []


def test_a_form_whose_loras_are_no_json(server: HttpServer) -> None:
    with server.client() as client:
        reply = client.post("/v1/videos", data={**BODY, "lora": "style"})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "lora"


def test_a_server_without_a_folder_has_none(server: HttpServer) -> None:
    with server.client() as client:
        assert client.get("/v1/models").json()["data"][0]["loras"] == []
        reply = client.post("/v1/videos", json={**BODY, "lora": [{"name": "style"}]})
    assert reply.status_code == 400 and "this server has none" in reply.text
