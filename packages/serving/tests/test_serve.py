"""``wantrn serve`` as it is run: a real server, real ranks, real signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from server_process import (
    LARGER,
    PYTHON_PATH,
    ServerProcess,
    create,
    processes,
    server_process,
    video,
    wait,
    wait_status,
)

from wantrn.model.info import ModelKind
from wantrn.model.media import read_video
from wantrn.model.tiny import write_tiny_checkpoint
from wantrn.serving.cli import main


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), ModelKind.T2V)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Iterator[ServerProcess]:
    """One rank, two slots. Tests leave it with nothing to do."""
    folder = tmp_path_factory.mktemp("server")
    with server_process(folder, "--model", str(checkpoint), "--threads", "1") as made:
        yield made


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with server.client() as made:
        yield made


def generate(checkpoint: Path, output: Path, *options: str) -> None:
    """``wantrn generate`` of what ``create`` asks for."""
    command = [sys.executable, "-m", "wantrn.serving.cli", "generate", "a red ball"]
    command += ["--model", str(checkpoint), "--output", str(output), "--size", "64x64"]
    command += ["--frames", "5", "--seed", "7", "--steps", "4", "--threads", "1", *options]
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    subprocess.run(command, check=True, capture_output=True, env=environment)


def test_a_video_has_the_bits_of_generate(
    server: ServerProcess, client: httpx.Client, checkpoint: Path, tmp_path: Path
) -> None:
    id = create(client)
    wait_status(client, id, "completed")
    (tmp_path / "served.mp4").write_bytes(client.get(f"/v1/videos/{id}/content").content)
    generate(checkpoint, tmp_path / "generated.mp4")
    served, fps, metadata = read_video(tmp_path / "served.mp4")
    generated, _, wanted = read_video(tmp_path / "generated.mp4")
    assert np.array_equal(served, generated) and served.shape == (5, 64, 64, 3)
    for name in ("prompt", "size", "frames", "steps", "guidance", "shift", "seed", "dtype"):
        assert metadata[name] == wanted[name], name
    assert fps == wanted["fps"]


def test_without_a_model_it_is_the_one_that_knows_shapes(tmp_path: Path) -> None:
    with server_process(tmp_path, "--threads", "1") as server, server.client() as client:
        assert "a tiny one, which knows coloured shapes that move" in server.log.read_text()
        (model,) = client.get("/v1/models").json()["data"]
        assert model["kind"] == "ti2v"
        asked = {"prompt": "a blue square grows on a white ground", "num_inference_steps": 2}
        reply = client.post("/v1/videos", json=asked)
        assert reply.status_code == 200, reply.text
        found = wait_status(client, reply.json()["id"], "completed", "failed")
        assert (found["size"], found["num_frames"], found["fps"]) == ("64x64", 13, 8)
        made = tmp_path / "made.mp4"
        made.write_bytes(client.get(f"/v1/videos/{found['id']}/content").content)
    frames, fps, _ = read_video(made)
    assert (frames.shape, fps) == ((13, 64, 64, 3), 8)


def test_progress_rises_with_the_steps_to_a_file_that_is_there(client: httpx.Client) -> None:
    id = create(client, steps=20, **LARGER)
    seen = []
    while True:
        found = video(client, id)
        seen.append(found["progress"])
        if found["status"] in ("completed", "failed"):
            break
        assert found["progress"] < 100
        # 100 is for a file that can be had
        assert client.get(f"/v1/videos/{id}/content").status_code in (404, 200)
    assert found["status"] == "completed" and seen[-1] == 100
    assert seen == sorted(seen) and len(set(seen)) >= 5
    assert client.get(f"/v1/videos/{id}/content").content[4:8] == b"ftyp"


def test_a_short_video_behind_a_long_one_is_ready_first(client: httpx.Client) -> None:
    long = create(client, steps=80, **LARGER)
    wait_status(client, long, "in_progress")
    short = create(client, steps=6)
    wait_status(client, short, "completed")
    assert video(client, long)["status"] == "in_progress"
    assert client.delete(f"/v1/videos/{long}").status_code == 200


def test_what_is_deleted_makes_room_at_the_next_step(client: httpx.Client) -> None:
    running = [create(client, steps=1000, size="128x128") for _ in range(2)]
    for id in running:
        wait_status(client, id, "in_progress")
    wait(lambda: all((video(client, id)["step"] or 0) >= 2 for id in running))
    waiting = create(client)
    assert video(client, waiting)["status"] == "queued"
    before = video(client, running[0])["step"], time.monotonic()
    time.sleep(0.5)
    step_seconds = (time.monotonic() - before[1]) / max(
        1, video(client, running[0])["step"] - before[0]
    )
    assert client.delete(f"/v1/videos/{running[0]}").status_code == 200
    # the contract: within one step's time and a second
    wait_status(client, waiting, "in_progress", "completed", seconds=2 * step_seconds + 1.0)
    assert client.get(f"/v1/videos/{running[0]}").status_code == 404
    assert client.delete(f"/v1/videos/{running[1]}").status_code == 200
    wait_status(client, waiting, "completed")


def test_a_preview_is_seen_while_it_runs(client: httpx.Client) -> None:
    id = create(client, steps=1000)
    wait(lambda: client.get(f"/v1/videos/{id}/preview").status_code == 200)
    assert client.get(f"/v1/videos/{id}/preview").content.startswith(b"\x89PNG")
    assert client.post(f"/v1/videos/{id}/cancel").status_code == 200
    found = wait_status(client, id, "failed")
    assert found["error"]["code"] == "cancelled"


def test_a_rank_is_killed_with_one_video_running_and_two_waiting(
    tmp_path: Path, checkpoint: Path
) -> None:
    options = ["--model", str(checkpoint), "--slots", "1", "--tp", "2", "--threads", "1"]
    with server_process(tmp_path, *options) as server, server.client() as client:
        first = server.ranks()
        assert len(first) == 2
        running = create(client, steps=1000)
        wait_status(client, running, "in_progress")
        waiting = [create(client) for _ in range(2)]
        os.kill(first[1], signal.SIGKILL)
        found = wait_status(client, running, "failed", seconds=10)
        assert found["error"]["code"] == "ranks_lost" and "SIGKILL" in found["error"]["message"]
        reply = client.post("/v1/videos", json={"prompt": "a"})
        assert reply.status_code == 503 and int(reply.headers["retry-after"]) >= 1
        for id in waiting:
            wait_status(client, id, "completed")
        made = tmp_path / "served.mp4"
        made.write_bytes(client.get(f"/v1/videos/{waiting[0]}/content").content)
        generate(checkpoint, tmp_path / "generated.mp4", "--tp", "2")
        assert np.array_equal(read_video(made)[0], read_video(tmp_path / "generated.mp4")[0])
        second = server.ranks()
        assert len(second) == 2 and not set(first) & set(second)
        assert not set(first) & set(processes())


def test_the_whole_server_is_killed(tmp_path: Path, checkpoint: Path) -> None:
    options = ["--model", str(checkpoint), "--slots", "1", "--threads", "1"]
    server = ServerProcess(tmp_path, *options)
    server.wait_ready()
    with server.client() as client:
        finished = create(client)
        wait_status(client, finished, "completed")
        content = client.get(f"/v1/videos/{finished}/content").content
        running = create(client, steps=1000)
        wait_status(client, running, "in_progress")
        waiting = create(client)
    assert server.stop(signal.SIGKILL) == -signal.SIGKILL  # and its ranks end with it
    with server_process(tmp_path, *options) as again, again.client() as client:
        found = video(client, running)
        assert (found["status"], found["error"]["code"]) == ("failed", "server_stopped")
        assert video(client, finished)["status"] == "completed"
        assert client.get(f"/v1/videos/{finished}/content").content == content
        wait_status(client, waiting, "completed")
        listed = [one["id"] for one in client.get("/v1/videos").json()["data"]]
        assert listed == [waiting, running, finished]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_server_and_its_ranks(
    tmp_path: Path, checkpoint: Path, number: int, status: int
) -> None:
    server = ServerProcess(tmp_path, "--model", str(checkpoint))
    server.wait_ready()
    with server.client() as client:
        id = create(client, steps=1000)
        wait_status(client, id, "in_progress")
    assert server.stop(number) == status
    assert [path.name for path in (tmp_path / "store" / "jobs").iterdir()] == [id]
    assert "Traceback" not in server.log.read_text()


def test_latents_that_are_no_numbers_fail_their_video_at_their_step(
    tmp_path: Path, checkpoint: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(checkpoint, broken)
    (weights,) = (broken / "transformer_2").glob("*.safetensors")
    tensors = load_file(weights)
    tensors["proj_out.weight"].fill_(3e38)  # a number still, but no sum of it is
    save_file(tensors, weights)
    with server_process(tmp_path, "--model", str(broken)) as server, server.client() as client:
        found = wait_status(client, create(client, steps=4), "failed", "completed")
        assert found["status"] == "failed" and found["error"]["code"] == "not_finite"
        # the low-noise expert comes after two of four steps
        assert "after step 3 of 4" in found["error"]["message"]
        assert len(server.ranks()) == 1 and client.get("/health").status_code == 200


def test_what_cannot_be_served_is_said_before_anything_is_started(
    tmp_path: Path, checkpoint: Path, server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["--model", str(checkpoint)]
    store = ["--store", str(tmp_path / "store")]
    config = tmp_path / "config.yaml"
    config.write_text("slots: 2\nslot: 3\n")
    port = server.url.rpartition(":")[2]
    keys = tmp_path / "keys"
    keys.write_text("\n")
    taken = str(server.log.parent / "store")
    for options, told in (
        (["--model", str(tmp_path / "none")], "--model: there is no folder"),
        ([*model, "--tp", "3"], "--tp"),
        ([*model, "--slots", "0"], "--slots"),
        ([*model, "--port", "70000"], "--port"),
        ([*model, "--port", port], "cannot be listened at"),
        ([*model, "--port", "0", "--store", taken], "another server uses"),
        ([*model, "--config", str(config)], "slot: is no key that there is"),
        ([*model, "--api-keys-file", str(keys)], "has no key"),
        ([*model, "--keep-hours", "-1"], "--keep-hours: got -1.0"),
    ):
        assert main(["serve", *store, *options]) == 2
        said = capsys.readouterr()
        assert told in said.err and said.err.count("\n") == 1 and said.out == "", said
    assert not (tmp_path / "store").exists()


def test_a_checkpoint_whose_weights_cannot_be_read_ends_the_server(
    tmp_path: Path, checkpoint: Path
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(checkpoint, broken)
    (weights,) = (broken / "transformer").glob("*.safetensors")
    tensors = load_file(weights)
    del tensors["proj_out.bias"]
    save_file(tensors, weights)
    server = ServerProcess(tmp_path, "--model", str(broken))
    assert server.process.wait(120) == 1
    server.stop()
    assert "proj_out.bias" in server.log.read_text()


def test_json_logs_have_the_ids_of_jobs_and_no_prompts(tmp_path: Path, checkpoint: Path) -> None:
    with (
        server_process(tmp_path, "--model", str(checkpoint), "--log", "json") as server,
        server.client() as client,
    ):
        id = create(client, prompt="a secret prompt")
        wait_status(client, id, "completed")
    text = server.log.read_text()
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    changes = [line for line in lines if line["logger"] == "wantrn.jobs" and line.get("job") == id]
    assert [line["status"] for line in changes] == [
        "queued",
        "in_progress",
        "completed",
    ]
    assert "a secret prompt" not in text
