"""The HTTP contract, by plain requests and by OpenAI's own client, with a scripted engine."""

from __future__ import annotations

import base64
import io
import json
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from http_server import HttpServer, serving
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from scripted_engine import tiny_info

from wantrn.model.info import ModelInfo, ModelKind
from wantrn.model.media import write_video
from wantrn.serving.engines.protocol import Cancelled, Failed, Lost, Previewed, Ready, Started
from wantrn.serving.jobs.limits import Limits

# OpenAI has withdrawn its own service; its client's shape is what others kept.
pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")

SMALL = {"size": "64x64", "num_frames": 5, "num_inference_steps": 4, "seed": 7}


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    return tiny_info(tmp_path_factory.mktemp("t2v"))


@pytest.fixture(scope="module")
def image_info(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    return tiny_info(tmp_path_factory.mktemp("i2v"), ModelKind.I2V)


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A real MP4 file of nine frames, each of another grey."""
    frames = np.repeat(np.arange(9, dtype=np.uint8) * 20, 64 * 96 * 3).reshape(9, 64, 96, 3)
    file = tmp_path_factory.mktemp("video") / "v.mp4"
    write_video(file, frames, 8, {})
    return file.read_bytes()


@pytest.fixture
def server(tmp_path: Path, info: ModelInfo) -> Iterator[HttpServer]:
    with serving(tmp_path / "store", info) as made:
        yield made


@pytest.fixture
def client(server: HttpServer) -> Iterator[httpx.Client]:
    with server.client() as made:
        yield made


def sdk(server: HttpServer, key: str = "unused") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def create(client: httpx.Client, **values: Any) -> dict[str, Any]:
    reply = client.post("/v1/videos", json={"prompt": "a red ball", **SMALL, **values})
    assert reply.status_code == 200, reply.text
    made: dict[str, Any] = reply.json()
    return made


def refused(reply: httpx.Response, status: int, param: str | None = None) -> str:
    """The message of an error, which has the form that all have."""
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["param"] == param
    kind = "server_error" if status >= 500 else "invalid_request_error"
    assert error["type"] == kind
    assert error["code"] is None or isinstance(error["code"], str)
    assert "Traceback" not in reply.text and "File " not in reply.text
    message: str = error["message"]
    return message


def picture(size: tuple[int, int] = (40, 20)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (200, 30, 30)).save(file, "PNG")
    return file.getvalue()


def test_the_whole_contract_with_openais_client(server: HttpServer, video: bytes) -> None:
    with sdk(server) as client:
        made = client.videos.create(prompt="a red ball", size="64x64", extra_body={"seed": 7})  # type: ignore[arg-type]
        assert (made.status, made.progress, made.object) == ("queued", 0, "video")
        assert made.prompt == "a red ball" and str(made.size) == "64x64"
        assert made.seconds == "1" and made.model == "tiny"
        server.run_to(made.id, 5, 20)
        now = client.videos.retrieve(made.id)
        assert (now.status, now.progress) == ("in_progress", 25)
        with pytest.raises(openai.NotFoundError, match="in_progress"):
            client.videos.download_content(made.id)
        server.finish(made.id, video)
        now = client.videos.retrieve(made.id)
        assert (now.status, now.progress, now.error) == ("completed", 100, None)
        assert now.completed_at and now.expires_at and now.expires_at > now.completed_at
        assert client.videos.download_content(made.id).read() == video
        assert [one.id for one in client.videos.list()] == [made.id]
        assert client.videos.delete(made.id).deleted
        with pytest.raises(openai.NotFoundError):
            client.videos.retrieve(made.id)


@pytest.mark.parametrize("end", ["completed", "failed"])
def test_openais_client_waits_for_the_end(server: HttpServer, video: bytes, end: str) -> None:
    """A job that failed is a reply like others, or the client's own loop would break."""

    def work() -> None:
        server.run_to(server.call(first()), 2, 4)
        id = next(iter(server.engine.has))
        if end == "completed":
            server.finish(id, video)
        else:
            server.say(Failed(id, "not_finite", "latents are not finite after step 2 of 4"))

    async def first() -> str:
        import asyncio

        while not server.engine.has:
            await asyncio.sleep(0.01)
        return next(iter(server.engine.has))

    worker = threading.Thread(target=work)
    worker.start()
    with sdk(server) as client:
        made = client.videos.create_and_poll(prompt="a", size="64x64")  # type: ignore[arg-type]
    worker.join(30)
    assert made.status == end
    if end == "failed":
        assert made.error is not None and made.error.code == "not_finite"
        assert "step 2" in made.error.message
        with server.client() as plain:
            assert plain.get(f"/v1/videos/{made.id}").status_code == 200
            assert "step 2" in refused(plain.get(f"/v1/videos/{made.id}/content"), 422)


def test_openais_client_sends_a_picture(tmp_path: Path, image_info: ModelInfo) -> None:
    with serving(tmp_path, image_info) as server, sdk(server) as client:
        made = client.videos.create(prompt="a", input_reference=("../../x.png", picture()))
        work = server.engine.has[server.work_of(made.id)]
        assert work.image is not None and work.image.read_bytes() == picture()
        # about the picture's shape, as no size was asked for
        assert (work.settings.width, work.settings.height) == (176, 96)


def test_a_picture_as_a_data_url(tmp_path: Path, image_info: ModelInfo) -> None:
    url = "data:image/png;base64," + base64.b64encode(picture()).decode()
    with serving(tmp_path, image_info) as server, server.client() as client:
        replies = [
            client.post("/v1/videos", json={"prompt": "a", "input_reference": {"image_url": url}}),
            client.post("/v1/videos", data={"prompt": "a", "input_reference[image_url]": url}),
        ]
        for reply in replies:
            assert reply.status_code == 200 and reply.json()["has_image"], reply.text
            work = server.engine.has[server.work_of(reply.json()["id"])]
            assert work.image is not None and work.image.read_bytes() == picture()


@pytest.mark.parametrize("form", ["json", "multipart", "urlencoded"])
def test_fields_in_each_form_of_a_body(server: HttpServer, form: str) -> None:
    values = {
        "prompt": "a red ball",
        "negative_prompt": "blur",
        "size": "96x64",
        "num_frames": 9,
        "fps": 8,
        "num_inference_steps": 6,
        "guidance_scale": 3.5,
        "guidance_scale_2": 2.0,
        "flow_shift": 5.0,
        "scheduler": "euler",
        "seed": 2**40,
        "step_cache": 0.25,
        "model": "tiny",
    }
    with server.client() as client:
        if form == "json":
            reply = client.post("/v1/videos", json=values)
        elif form == "multipart":
            parts = {name: (None, str(value)) for name, value in values.items()}
            reply = client.post("/v1/videos", files=parts)
        else:
            reply = client.post("/v1/videos", data=values)
    assert reply.status_code == 200, reply.text
    made = reply.json()
    assert {name: made[name] for name in values} == values
    assert made["seconds"] == "1" and made["adjusted"] == {} and made["queue_position"] == 0
    settings = server.engine.has[server.work_of(made["id"])].settings
    assert (settings.width, settings.height, settings.frames, settings.fps) == (96, 64, 9, 8)
    assert (settings.steps, settings.guidance, settings.guidance_2) == (6, 3.5, 2.0)
    assert (settings.shift, settings.scheduler, settings.seed) == (5.0, "euler", 2**40)
    assert settings.step_cache == 0.25
    assert settings.negative_prompt == "blur"


def test_lines_of_a_form_end_as_those_of_json(client: httpx.Client) -> None:
    parts = {"prompt": (None, "one\r\ntwo"), "size": (None, "64x64")}
    assert client.post("/v1/videos", files=parts).json()["prompt"] == "one\ntwo"
    assert create(client, prompt="one\r\ntwo")["prompt"] == "one\r\ntwo"


def test_a_seed_is_drawn_once_and_told(client: httpx.Client, server: HttpServer) -> None:
    made = [create(client, seed=None) for _ in range(2)]
    assert made[0]["seed"] != made[1]["seed"]
    for one in made:
        assert server.engine.has[server.work_of(one["id"])].settings.seed == one["seed"]
        assert client.get(f"/v1/videos/{one['id']}").json()["seed"] == one["seed"]


@pytest.mark.parametrize(
    ("values", "param", "told"),
    [
        ({"prompt": ""}, "prompt", "at least 1 character"),
        ({"prompt": None}, "prompt", "string"),
        ({"prompt": "x" * 20_001}, "prompt", "at most 20000"),
        ({"size": "100x70"}, "size", "96x64 and 112x80"),
        ({"size": "8x8"}, "size", "16x16"),
        ({"size": "64"}, "size", "match pattern"),
        ({"size": "64x64\n"}, "size", "match pattern"),
        ({"size": "9999999x1"}, "size", "match pattern"),
        ({"size": "1024x1024"}, "size", "the most here are 1114112"),
        ({"num_frames": 10}, "num_frames", "9 and 13"),
        ({"num_frames": 0}, "num_frames", "1 and 5"),
        ({"num_frames": None, "seconds": "0.3"}, "seconds", "0.25 (5 frames) and 0.5 (9 frames)"),
        ({"seconds": "1"}, "seconds", "give one"),
        ({"seconds": "-1", "num_frames": None}, "seconds", "match pattern"),
        ({"num_inference_steps": 0}, "num_inference_steps", "1 and 2"),
        ({"num_inference_steps": 1001}, "num_inference_steps", "999 and 1000"),
        ({"guidance_scale": 0.5}, "guidance_scale", "from 1"),
        ({"guidance_scale_2": -1}, "guidance_scale_2", "from 1"),
        ({"flow_shift": 0}, "flow_shift", "above 0"),
        ({"step_cache": 0}, "step_cache", "above 0 and at most 1"),
        ({"step_cache": 1.5}, "step_cache", "above 0 and at most 1"),
        ({"step_cache": "often"}, "step_cache", "number"),
        ({"scheduler": "ddim"}, "scheduler", "unipc and euler"),
        ({"seed": -1}, "seed", "0..9223372036854775807"),
        ({"seed": 2**63}, "seed", "0..9223372036854775807"),
        ({"fps": 0}, "fps", "1 and 2"),
        ({"fit": "crop"}, "fit", "'exact' or 'nearest'"),
        ({"model": "sora-2"}, "model", "this server has 'tiny'"),
        ({"colour": "red"}, "colour", "allowed are prompt, model, size"),
        ({"input_reference": "x"}, "input_reference", "valid dictionary"),
        ({"input_reference": {"file_id": "1"}}, "input_reference.image_url", "required"),
        ({"input_reference": {"image_url": "http://x/y.png"}}, "input_reference", "data URL"),
        (
            {"input_reference": {"image_url": "data:image/png;base64,*"}},
            "input_reference",
            "base64",
        ),
    ],
)
def test_what_cannot_be_made_is_refused_with_its_field(
    client: httpx.Client, server: HttpServer, values: dict[str, Any], param: str, told: str
) -> None:
    reply = client.post("/v1/videos", json={"prompt": "a", **SMALL, **values})
    assert told in refused(reply, 400, param)
    assert client.get("/v1/videos").json()["data"] == [] and server.engine.given == []
    assert list((server.store.folder / "jobs").iterdir()) == []


def test_numbers_that_are_none(client: httpx.Client) -> None:
    for text in ("NaN", "Infinity", "1e999", '"x"', "[]", "true"):
        body = f'{{"prompt": "a", "num_frames": {text}}}'
        reply = client.post(
            "/v1/videos", content=body, headers={"Content-Type": "application/json"}
        )
        if text != "true":  # JSON's true is a whole number to Python: one frame
            refused(reply, 400, "num_frames")


def test_fit_nearest_makes_what_can_be_and_says_what_was_asked(
    client: httpx.Client, server: HttpServer
) -> None:
    made = create(client, size="100x70", num_frames=10, fit="nearest")
    assert (made["size"], made["num_frames"]) == ("96x64", 9)
    assert made["adjusted"] == {"size": "100x70", "num_frames": "10"}
    settings = server.engine.has[server.work_of(made["id"])].settings
    assert (settings.width, settings.height, settings.frames) == (96, 64, 9)
    made = create(client, num_frames=None, seconds="0.3", fit="nearest")
    assert made["seconds"] == "0.25" and made["adjusted"] == {"seconds": "0.3"}
    assert create(client, fit="nearest")["adjusted"] == {}


@pytest.mark.parametrize(("seconds", "fps", "frames"), [("5", 16, 81), ("5", 24, 121), (2, 2, 5)])
def test_seconds_are_from_the_first_frame_to_the_last(
    client: httpx.Client, seconds: str | int, fps: int, frames: int
) -> None:
    made = create(client, num_frames=None, seconds=seconds, fps=fps)
    assert (made["num_frames"], made["seconds"]) == (frames, str(seconds))


def test_what_the_engine_cannot_make_is_refused(client: httpx.Client, server: HttpServer) -> None:
    server.engine.refused = "27 tokens cannot be shared by 2 ranks"
    reply = client.post("/v1/videos", json={"prompt": "a", **SMALL})
    assert "27 tokens" in refused(reply, 400, "strict_tokens")


def test_progress_never_falls_and_says_when_to_ask_again(
    client: httpx.Client, server: HttpServer, video: bytes
) -> None:
    id = create(client, num_inference_steps=20)["id"]
    server.run_to(id, 0, 20)
    seen = []
    from wantrn.serving.engines.protocol import Stepped

    for step in range(1, 21):
        server.say(Stepped(id, step, 20, 3.0, 0, reused=step % 5 == 0))
        reply = client.get(f"/v1/videos/{id}")
        assert reply.headers["openai-poll-after-ms"] == "1500"
        assert reply.json()["steps_reused"] == step // 5
        seen.append(reply.json()["progress"])
        assert reply.json()["step"] == step
    assert seen == [5 * step for step in range(1, 20)] + [99]
    server.finish(id, video)
    reply = client.get(f"/v1/videos/{id}")
    assert reply.json()["progress"] == 100 and "openai-poll-after-ms" not in reply.headers
    assert reply.json()["steps_reused"] == 4 and reply.json()["step_cache"] is None
    assert client.get(f"/v1/videos/{id}/content").content == video


def test_the_queue_is_told_and_has_an_end(tmp_path: Path, info: ModelInfo) -> None:
    with (
        serving(tmp_path, info, slots=1, limits=Limits(queued=2)) as server,
        server.client() as client,
    ):
        first = create(client)
        server.work_of(first["id"])
        waiting = [create(client) for _ in range(2)]
        now = [client.get(f"/v1/videos/{one['id']}").json() for one in waiting]
        assert [one["queue_position"] for one in now] == [0, 1]
        reply = client.post("/v1/videos", json={"prompt": "a", **SMALL})
        assert "2 jobs are waiting" in refused(reply, 429)
        assert int(reply.headers["retry-after"]) >= 1
        assert client.delete(f"/v1/videos/{waiting[0]['id']}").status_code == 200
        assert client.get(f"/v1/videos/{waiting[1]['id']}").json()["queue_position"] == 0
        create(client)


def test_while_ranks_start_again_nothing_is_taken_and_all_is_told(
    client: httpx.Client, server: HttpServer
) -> None:
    id = create(client)["id"]
    assert client.get("/health").status_code == 200
    server.say(Started(server.work_of(id)), Lost("rank 1 of 2 was ended by SIGKILL"))
    reply = client.get("/health")
    assert (reply.status_code, reply.json()) == (503, {"status": "restarting"})
    reply = client.post("/v1/videos", json={"prompt": "a", **SMALL})
    refused(reply, 503)
    assert int(reply.headers["retry-after"]) >= 1
    failed = client.get(f"/v1/videos/{id}").json()
    assert failed["status"] == "failed" and failed["error"]["code"] == "ranks_lost"
    server.say(Ready())
    assert client.get("/health").status_code == 200
    create(client)


def test_cancel_keeps_the_record_and_delete_does_not(
    client: httpx.Client, server: HttpServer
) -> None:
    ids = [create(client)["id"] for _ in range(2)]
    for id in ids:
        server.say(Started(server.work_of(id)))
    assert client.post(f"/v1/videos/{ids[0]}/cancel").json()["status"] == "in_progress"
    reply = client.delete(f"/v1/videos/{ids[1]}")
    assert reply.json() == {"id": ids[1], "object": "video.deleted", "deleted": True}
    assert server.engine.asked_to_cancel == ids
    server.say(*(Cancelled(id) for id in ids))
    ended = client.get(f"/v1/videos/{ids[0]}").json()
    assert (ended["status"], ended["error"]["code"]) == ("failed", "cancelled")
    assert "failed already" in refused(client.post(f"/v1/videos/{ids[0]}/cancel"), 409)
    refused(client.get(f"/v1/videos/{ids[1]}"), 404)
    refused(client.delete(f"/v1/videos/{ids[1]}"), 404)


def test_pages(client: httpx.Client) -> None:
    ids = [create(client)["id"] for _ in range(5)]
    page = client.get("/v1/videos", params={"limit": 2}).json()
    assert [one["id"] for one in page["data"]] == ids[:2:-1] and page["has_more"]
    assert (page["first_id"], page["last_id"]) == (ids[4], ids[3])
    rest = client.get("/v1/videos", params={"after": ids[3], "order": "desc"}).json()
    assert [one["id"] for one in rest["data"]] == ids[2::-1] and not rest["has_more"]
    oldest = client.get("/v1/videos", params={"order": "asc", "limit": 1}).json()
    assert [one["id"] for one in oldest["data"]] == ids[:1]
    refused(client.get("/v1/videos", params={"limit": 0}), 400, "limit")
    refused(client.get("/v1/videos", params={"order": "up"}), 400, "order")
    refused(client.get("/v1/videos", params={"after": "video_0"}), 400, "after")


def test_pictures_of_a_video(client: httpx.Client, server: HttpServer, video: bytes) -> None:
    id = create(client)["id"]
    server.run_to(id, 1, 4)
    refused(client.get(f"/v1/videos/{id}/preview"), 404)
    server.say(Previewed(id, picture((8, 8))))
    reply = client.get(f"/v1/videos/{id}/preview")
    assert reply.headers["content-type"] == "image/png" and reply.content == picture((8, 8))
    server.finish(id, video)
    refused(client.get(f"/v1/videos/{id}/preview"), 404)
    reply = client.get(f"/v1/videos/{id}/content", params={"variant": "thumbnail"})
    assert reply.headers["content-type"] == "image/webp"
    thumbnail = Image.open(io.BytesIO(reply.content))
    assert thumbnail.size == (96, 64)
    grey = np.asarray(thumbnail.convert("L")).astype(int)
    assert abs(grey - 80).max() < 12  # the middle one of nine
    reply = client.get(f"/v1/videos/{id}/content", params={"variant": "spritesheet"})
    sheet = Image.open(io.BytesIO(reply.content))
    assert reply.headers["content-type"] == "image/jpeg" and sheet.size == (288, 192)
    cells = np.asarray(sheet.convert("L")).astype(int)[32::64, 48::96].ravel()
    assert abs(cells - np.arange(9) * 20).max() < 12
    refused(client.get(f"/v1/videos/{id}/content", params={"variant": "gif"}), 400, "variant")
    part = client.get(f"/v1/videos/{id}/content", headers={"Range": "bytes=4-7"})
    assert (part.status_code, part.content) == (206, b"ftyp")


def test_keys(tmp_path: Path, info: ModelInfo) -> None:
    with serving(tmp_path, info, api_keys=("one", "zwei-ü")) as server:
        with server.client() as client:
            for header in ({}, {"Authorization": "Bearer on"}, {"Authorization": "one"}):
                reply = client.get("/v1/videos", headers=header)
                refused(reply, 401)
                assert reply.headers["www-authenticate"] == "Bearer"
            reply = client.post("/v1/videos", content=b"x" * 1000)
            refused(reply, 401)
            assert client.get("/health").status_code == 200
            assert client.get("/v1/models", headers={"Authorization": "bearer one"}).is_success
        with sdk(server, "one") as good:
            assert good.models.list().data[0].id == "tiny"
        with sdk(server, "two") as bad, pytest.raises(openai.AuthenticationError):
            bad.videos.list()


def test_bodies_that_are_too_large_or_none(tmp_path: Path, info: ModelInfo) -> None:
    limits = Limits(upload_megabytes=0.2)
    with serving(tmp_path, info, limits=limits) as server, server.client() as client:
        big = {"input_reference": ("x.png", b"0" * 300_000)}
        refused(client.post("/v1/videos", data={"prompt": "a"}, files=big), 413)

        def stream() -> Iterator[bytes]:  # without a length that could be looked at
            yield b'{"prompt": "'
            for _ in range(30):
                yield b"a" * 10_000

        reply = client.post(
            "/v1/videos", content=stream(), headers={"Content-Type": "application/json"}
        )
        refused(reply, 413)
        for content, kind, status in (
            (b"{", "application/json", 400),
            (b"[1]", "application/json", 400),
            (b"\xff\xfe", "application/json", 400),
            (b"[" * 100_000, "application/json", 400),
            (b"x", "text/plain", 415),
            (b"x", "multipart/form-data", 400),
            (b"x", "multipart/form-data; boundary=a", 400),
            (b"--a\r\n\r\nx\r\n--a--", "multipart/form-data; boundary=a", 400),
            (b"prompt=%ff", "application/x-www-form-urlencoded", 200),
            (b"prompt=a&prompt=b", "application/x-www-form-urlencoded", 400),
        ):
            reply = client.post("/v1/videos", content=content, headers={"Content-Type": kind})
            assert reply.status_code == status, (content[:20], kind, reply.text)
        assert refused(client.post("/v1/videos"), 415)
        many = {f"f{place}": "x" for place in range(1000)}
        assert client.post("/v1/videos", data=many).status_code == 400


def bomb() -> bytes:
    """A PNG of some kilobytes that has 400 million pixels."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Image.new("1", (20_000, 20_000)).save(file, "PNG")
    return file.getvalue()


def test_pictures_that_are_none_or_too_much(tmp_path: Path, image_info: ModelInfo) -> None:
    with serving(tmp_path, image_info) as server, server.client() as client:
        for content, told in (
            (b"", "not a picture"),
            (b"GIF89a", "not a picture"),
            (picture()[:50], "cannot be read"),
            (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a picture"),
            (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a picture"),
            (bomb(), "pixels"),
        ):
            files = {"input_reference": ("a.png", content, "image/png")}
            reply = client.post("/v1/videos", data={"prompt": "a"}, files=files)
            message = refused(reply, 400, "input_reference")
            assert told in message and "/" not in message.replace("not a picture (", "")
        reply = client.post("/v1/videos", json={"prompt": "a"})
        assert "from an image" in refused(reply, 400, "input_reference")
        assert list((server.store.folder / "jobs").iterdir()) == []


def test_a_model_that_takes_no_picture(client: httpx.Client) -> None:
    files = {"input_reference": ("a.png", picture())}
    reply = client.post("/v1/videos", data={"prompt": "a"}, files=files)
    assert "text alone" in refused(reply, 400, "input_reference")
    reply = client.post("/v1/videos", data={"prompt": "a"}, files={"other": ("a", b"x")})
    assert "must not be a file" in refused(reply, 400, "other")


@pytest.mark.parametrize(
    "name",
    ["../../../../x", "..\\..\\x", "/etc/cron.d/x", "a\x00.png", ".", "~/.ssh/x", "x" * 500],
)
def test_the_name_of_an_uploaded_file_is_nobodys_path(
    tmp_path: Path, image_info: ModelInfo, name: str
) -> None:
    with serving(tmp_path / "store", image_info) as server, server.client() as client:
        before = sorted(path for path in tmp_path.rglob("*") if "store" not in path.parts)
        files = {"input_reference": (name, picture())}
        reply = client.post("/v1/videos", data={"prompt": "a"}, files=files)
        assert reply.status_code == 200, reply.text
        folder = server.store.files(server.work_of(reply.json()["id"]))
        assert [path.name for path in folder.iterdir()] == ["image.image"]
        after = sorted(path for path in tmp_path.rglob("*") if "store" not in path.parts)
        assert after == before


@pytest.mark.parametrize(
    "id",
    ["..", "%2e%2e", "..%2f..%2fjobs.sqlite3", "video_0", "%00", "a" * 3000, "'; DROP TABLE jobs"],
)
@pytest.mark.parametrize("rest", ["", "/content", "/preview"])
def test_ids_that_are_none(client: httpx.Client, id: str, rest: str) -> None:
    reply = client.get(f"/v1/videos/{id}{rest}")
    assert reply.status_code in (404, 200) and "SQLite" not in reply.text
    if reply.status_code == 200:  # .. leads to another route
        assert reply.json()["object"] == "list"


def test_routes_that_are_none(client: httpx.Client) -> None:
    refused(client.get("/v1/nothing"), 404)
    refused(client.put("/v1/videos"), 405)
    for away in ("/docs", "/redoc"):  # they load scripts from elsewhere
        assert client.get(away).status_code == 404


def test_the_document_of_the_interface(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    create = document["paths"]["/v1/videos"]["post"]
    kinds = create["requestBody"]["content"]
    assert set(kinds) == {"multipart/form-data", "application/json"}
    assert "prompt" in kinds["application/json"]["schema"]["properties"]
    assert "$ref" not in json.dumps(create["requestBody"])


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(prompt=st.text(st.characters(), min_size=1, max_size=200))
def test_any_prompt_is_kept_as_it_is(client: httpx.Client, server: HttpServer, prompt: str) -> None:
    body = json.dumps({"prompt": prompt, **SMALL})  # ASCII: lone surrogates stay as \\ud800
    reply = client.post("/v1/videos", content=body, headers={"Content-Type": "application/json"})
    if any(0xD800 <= ord(letter) <= 0xDFFF for letter in prompt):
        refused(reply, 400, "prompt")
        return
    assert reply.status_code == 200, reply.text
    id = reply.json()["id"]
    assert client.get(f"/v1/videos/{id}").json()["prompt"] == prompt
    client.delete(f"/v1/videos/{id}")
    if id in server.engine.has:
        server.say(Cancelled(id))
