"""``wantrn client``: against a scripted server, a server that is no such one, and a real one."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from collector import Collector, collecting
from http_server import HttpServer, serving
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from scripted_engine import tiny_info
from server_process import PYTHON_PATH, ServerProcess, server_process, video, wait, wait_status

from wantrn.model.info import ModelInfo, ModelKind
from wantrn.model.media import read_video
from wantrn.model.step_cache import DEFAULT_THRESHOLD
from wantrn.serving import cli
from wantrn.serving.client_command import KEY_VARIABLE
from wantrn.serving.engines.protocol import Failed
from wantrn.serving.http.create import CreateVideo
from wantrn.serving.jobs.limits import Limits

SECRET = "swordfish"
SMALL = ["--size", "64x64", "--frames", "5", "--seed", "7"]


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    return tiny_info(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def server(tmp_path: Path, info: ModelInfo) -> Iterator[HttpServer]:
    with serving(tmp_path / "store", info) as made:
        yield made


@dataclass(frozen=True)
class Said:
    status: int
    out: str
    err: str


class Client:
    """The command in this process."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self._capsys = capsys

    def __call__(self, action: str, *arguments: str) -> Said:
        try:
            status = cli.main(["client", action, "--server", self.url, *arguments])
        except SystemExit as error:
            assert isinstance(error.code, int)
            status = error.code
        said = self._capsys.readouterr()
        return Said(status, said.out, said.err)


@pytest.fixture
def client(server: HttpServer, capsys: pytest.CaptureFixture[str]) -> Client:
    return Client(server.url, capsys)


def only(server: HttpServer) -> str:
    """The id of the first video, as soon as there is one."""
    with server.client() as http:
        wait(lambda: bool(http.get("/v1/videos").json()["data"]))
        id: str = http.get("/v1/videos").json()["data"][0]["id"]
    return id


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """``work`` in a thread; what it raises is raised at the end."""
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(work)
        yield
        future.result(60)


def test_create_waits_and_fetches_the_video(
    server: HttpServer, client: Client, tmp_path: Path
) -> None:
    def make() -> None:
        id = only(server)
        server.run_to(id, 4, 4)
        server.finish(id, b"a video")

    with meanwhile(make):
        file = tmp_path / "ball.mp4"
        said = client("create", "a red ball", "--steps", "4", *SMALL, "--output", str(file))
    assert said.status == 0, said.err
    assert said.out == f"{file}\n"
    assert file.read_bytes() == b"a video"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ball.mp4", "store"]
    assert "4/4" in said.err and only(server) in said.err


def test_every_option_of_create_reaches_the_server(server: HttpServer, client: Client) -> None:
    options = ["--negative-prompt", "blue", "--size", "96x64", "--frames", "9", "--fps", "12"]
    options += ["--steps", "6", "--guidance", "3.5", "--guidance-2", "2.5", "--shift", "4.5"]
    options += ["--scheduler", "euler", "--seed", "11", "--model", "tiny", "--step-cache", "0.25"]
    said = client("create", "a red ball", "--no-wait", *options)
    assert said.status == 0, said.err
    id = said.out.strip()
    with server.client() as http:
        made = video(http, id)
    assert (made["prompt"], made["negative_prompt"]) == ("a red ball", "blue")
    assert (made["size"], made["num_frames"], made["fps"]) == ("96x64", 9, 12)
    assert (made["num_inference_steps"], made["seed"]) == (6, 11)
    assert (made["guidance_scale"], made["guidance_scale_2"]) == (3.5, 2.5)
    assert (made["flow_shift"], made["scheduler"]) == (4.5, "euler")
    assert made["step_cache"] == 0.25
    said = client("create", "a", "--no-wait", *SMALL, "--step-cache")
    with server.client() as http:
        assert video(http, said.out.strip())["step_cache"] == DEFAULT_THRESHOLD
    said = client("create", "a", "--no-wait", *SMALL, "--step-cache", "2")
    assert said.status == 2 and "--step-cache: threshold must be above 0" in said.err
    said = client("create", "a", "--no-wait", "--size", "99x64", "--fit", "nearest")
    with server.client() as http:
        assert video(http, said.out.strip())["size"] == "96x64"
    said = client("create", "a", "--no-wait", *SMALL[:2], "--seconds", "0.5", "--fps", "8")
    with server.client() as http:
        assert video(http, said.out.strip())["num_frames"] == 5


def test_create_has_an_option_for_every_field_of_the_interface(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["client", "create", "--help"])
    shown = set(re.findall(r"--([a-z0-9-]+)", capsys.readouterr().out))
    names = {
        "num_frames": "frames",
        "num_inference_steps": "steps",
        "guidance_scale": "guidance",
        "guidance_scale_2": "guidance-2",
        "flow_shift": "shift",
        "input_reference": "image",
    }
    fields = {names.get(name, name.replace("_", "-")) for name in CreateVideo.model_fields}
    assert fields - {"prompt"} <= shown


def test_a_picture_is_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info = tiny_info(tmp_path / "tiny", ModelKind.I2V)
    file = tmp_path / "first.png"
    Image.new("RGB", (64, 64), "red").save(file)
    with serving(tmp_path / "store", info) as server:
        client = Client(server.url, capsys)
        said = client("create", "a", "--no-wait", *SMALL, "--image", str(file))
        assert said.status == 0, said.err
        with server.client() as http:
            assert video(http, said.out.strip())["has_image"]
        said = client("create", "a", "--no-wait", "--image", str(tmp_path / "none.png"))
        assert said.status == 2 and said.err.startswith("wantrn client: error: --image: ")
        file.write_bytes(b"no picture")
        said = client("create", "a", "--no-wait", *SMALL, "--image", str(file))
        assert said.status == 2 and said.err.startswith("wantrn client: error: --image: ")


def test_a_video_that_fails_is_exit_status_1_with_its_reason(
    server: HttpServer, client: Client, tmp_path: Path
) -> None:
    def fail() -> None:
        id = only(server)
        server.run_to(id, 1, 4)
        server.say(Failed(id, "not_finite", "step 2 made values\nthat are not finite"))

    with meanwhile(fail):
        file = tmp_path / "x.mp4"
        said = client("create", "a", "--steps", "4", *SMALL, "--output", str(file))
    assert (said.status, said.out, file.exists()) == (1, "", False)
    last = said.err.strip().splitlines()[-1]
    assert last == "wantrn client: failed: step 2 made values that are not finite (not_finite)"


def test_what_the_server_refuses_is_named_as_it_was_typed(client: Client) -> None:
    for options, start in (
        (["--size", "100x70"], "--size: 100x70 cannot be made"),
        (["--frames", "10"], "--frames: 10 cannot be made"),
        (["--steps", "0"], "--steps: 0 is not in"),
        (["--scheduler", "magic"], "--scheduler: 'magic' is unknown"),
        (["--guidance", "0"], "--guidance: must be"),
        (["--model", "other"], "--model: 'other' is not here"),
        (["--seconds", "soon"], "--seconds: "),
    ):
        said = client("create", "a", "--no-wait", *options)
        assert said.status == 2 and said.out == ""
        assert said.err.startswith(f"wantrn client: error: {start}"), said.err
        assert said.err.count("\n") == 1


def test_an_output_that_cannot_be_is_refused_before_anything_is_asked(
    client: Client, server: HttpServer, tmp_path: Path
) -> None:
    folder = tmp_path / "folder.mp4"
    folder.mkdir()
    for options in (
        ["--output", "a.gif"],
        ["--output", str(tmp_path / "none" / "a.mp4")],
        ["--output", str(folder)],
        ["--output", "a.mp4", "--no-wait"],
    ):
        said = client("create", "a", *options)
        assert said.status == 2 and said.err.startswith("wantrn client: error: --output: ")
    with server.client() as http:
        assert http.get("/v1/videos").json()["data"] == []


def test_videos_are_listed_shown_cancelled_deleted_and_fetched(
    server: HttpServer, client: Client, tmp_path: Path
) -> None:
    ids = [client("create", f"ball {i}", "--no-wait", *SMALL).out.strip() for i in range(3)]
    listed = client("list").out.splitlines()
    assert [line.split()[0] for line in listed] == ids[::-1]
    assert "ball 2" in listed[0] and "queued" in listed[0] and "64x64x5" in listed[0]
    assert [line.split()[0] for line in client("list", "--limit", "2").out.splitlines()] == ids[
        :0:-1
    ]

    assert client("cancel", ids[2]).err == f"wantrn client: {ids[2]} is cancelled\n"
    shown = dict(line.split("  ", 1) for line in client("show", ids[2]).out.splitlines())
    assert shown["status"].strip() == "failed" and "cancelled" in shown["error"]
    assert shown["prompt"].strip() == "ball 2"
    again = client("cancel", ids[2])
    assert again.status == 2 and "already" in again.err

    server.run_to(ids[0], 1, 50)
    assert "stops at its next step" in client("cancel", ids[0]).err
    early = client("download", ids[1], "--output", str(tmp_path / "b.mp4"))
    assert early.status == 2 and not (tmp_path / "b.mp4").exists()
    server.run_to(ids[1], 1, 50)
    server.finish(ids[1], b"video b")
    fetched = client("download", ids[1], "--output", str(tmp_path / "b.mp4"))
    assert (fetched.status, fetched.out) == (0, f"{tmp_path / 'b.mp4'}\n")
    assert (tmp_path / "b.mp4").read_bytes() == b"video b"
    wrong = client("download", ids[1], "--output", "b.mp4", "--variant", "thumbnail")
    assert wrong.status == 2 and ".webp" in wrong.err

    assert client("delete", ids[1]).status == 0
    for action in ("show", "cancel", "delete", "download"):
        gone = client(action, ids[1])
        assert gone.status == 2 and "there is no video" in gone.err


def test_a_list_longer_than_a_page_is_whole(
    tmp_path: Path, info: ModelInfo, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path / "store", info, limits=Limits(queued=200)) as server:
        with server.client() as http:
            body = {"prompt": "a", "size": "64x64", "num_frames": 5}
            ids = [http.post("/v1/videos", json=body).json()["id"] for _ in range(105)]
        listed = Client(server.url, capsys)("list", "--limit", "104").out.splitlines()
    assert [line.split()[0] for line in listed] == ids[:0:-1]


@pytest.mark.parametrize(
    "id", ["../../etc/passwd", "a/b", "?x=1", "#", "video 1", "\n", "%2e", "..", ""]
)
def test_an_id_is_never_a_path(client: Client, id: str) -> None:
    for action in ("show", "cancel", "delete", "download"):
        said = client(action, id)
        assert said.status == 2 and said.err.count("\n") == 1
        assert "is no id of a video" in said.err


def test_what_others_wrote_cannot_steer_the_terminal(client: Client) -> None:
    evil = "a\x1b]0;title\x07 \x1b[2Jb\u202ec"
    id = client("create", evil, "--no-wait", *SMALL).out.strip()
    for said in (client("list"), client("show", id)):
        assert id in said.out
        assert not any(char in said.out for char in "\x1b\x07\u202e")


def test_keys(
    tmp_path: Path,
    info: ModelInfo,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(tmp_path / "store", info, api_keys=[SECRET]) as server:
        client = Client(server.url, capsys)
        monkeypatch.delenv(KEY_VARIABLE, raising=False)
        assert client("list").status == 2
        monkeypatch.setenv(KEY_VARIABLE, "wrong")
        said = client("list")
        assert said.status == 2 and KEY_VARIABLE in said.err and "wrong" not in said.err
        monkeypatch.setenv(KEY_VARIABLE, SECRET)
        assert client("list").status == 0
        monkeypatch.setenv(KEY_VARIABLE, f"{SECRET}\nX-Other: 1")
        said = client("list")
        assert said.status == 2 and said.err.count("\n") == 1 and SECRET not in said.err


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://host", "http://", "http://[::1"])
def test_a_server_that_cannot_be_is_refused_by_its_option(
    capsys: pytest.CaptureFixture[str], url: str
) -> None:
    said = Client(url, capsys)("list")
    assert said.status == 2 and said.err.count("\n") == 1
    assert said.err.startswith("wantrn client: error: --server: ")


def test_nobody_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        said = Client(url, capsys)("create", "a", "--no-wait")
    assert said.status == 2
    assert said.err.startswith(f"wantrn client: error: {url} cannot be reached: ")
    assert said.err.count("\n") == 1


@dataclass
class Replies:
    """A server that gives these replies in turn, and the last for ever."""

    replies: list[tuple[int, dict[str, str], bytes]]
    asked: list[str] = field(default_factory=list)
    may_reply: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.may_reply.set()


@contextmanager
def replying(replies: Replies) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            replies.asked.append(f"{self.command} {self.path}")
            assert replies.may_reply.wait(60)
            status, headers, body = replies.replies[0]
            if len(replies.replies) > 1:
                replies.replies.pop(0)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *values: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def busy(status: int, **headers: str) -> tuple[int, dict[str, str], bytes]:
    error = {"message": "64 jobs are waiting", "type": "t", "param": None, "code": "c"}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, named, json.dumps({"error": error}).encode()


def made() -> tuple[int, dict[str, str], bytes]:
    names = "status progress step num_inference_steps queue_position error size num_frames "
    body = dict.fromkeys([*names.split(), "created_at", "prompt"]) | {"id": "video_1"}
    return 200, {}, json.dumps(body).encode()


def test_a_busy_server_is_asked_again_when_it_says_and_it_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    replies = Replies([busy(429, Retry_After="1"), busy(503, Retry_After="1"), made()])
    with replying(replies) as url:
        begun = time.monotonic()
        said = Client(url, capsys)("create", "a", "--no-wait")
    assert (said.status, said.out) == (0, "video_1\n")
    assert time.monotonic() - begun >= 2  # not before it was told to
    assert replies.asked == ["POST /v1/videos"] * 3
    again = "wantrn client: 64 jobs are waiting; trying again in 1 s\n"
    assert said.err == again * 2


def test_patience_has_an_end_and_a_wait_beyond_it_is_not_begun(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for reply, asked in ((busy(429, Retry_After="300"), 1), (busy(503, Retry_After="1"), 2)):
        replies = Replies([reply])
        with replying(replies) as url:
            said = Client(url, capsys)("list", "--patience", "1.5")
        assert said.status == 2 and len(replies.asked) == asked
        assert "64 jobs are waiting" in said.err and "--patience is 1.5 s" in said.err


@pytest.mark.parametrize(
    "reply",
    [
        (200, {}, b"<html>\x1b[2J"),
        (200, {}, b"[]"),
        (200, {}, b"{}"),
        (200, {}, b'{"id": "video_1", "object": "video", "status": "queued"}'),
        (200, {}, b'{"object": "list", "data": [{"id": "video_1"}]}'),
        (200, {}, b'{"object": "list", "data": 1}'),
        (302, {"Location": "http://elsewhere.invalid/"}, b""),
        (404, {}, b"<html>not found"),
        (500, {}, b'{"error": "text"}'),
        (500, {}, b'{"error": null}'),
        (500, {}, b"\xff" * 5000),
    ],
)
def test_what_is_no_such_server_is_one_line_without_a_traceback(
    capsys: pytest.CaptureFixture[str], reply: tuple[int, dict[str, str], bytes]
) -> None:
    with replying(Replies([reply])) as url:
        client = Client(url, capsys)
        for said in (client("create", "a", "--no-wait"), client("list"), client("show", "x")):
            assert said.status == 2 and said.err.count("\n") == 1 and "\x1b" not in said.err
            assert said.err.startswith("wantrn client: error: ") and len(said.err) < 500


def test_a_video_cut_short_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listening = socket.create_server(("127.0.0.1", 0))

    def cut() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")

    with listening, meanwhile(cut):
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        said = Client(url, capsys)("download", "x", "--output", str(tmp_path / "x.mp4"))
    assert said.status == 2 and said.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def start(url: str, *arguments: str, folder: Path) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "wantrn.serving.cli", "client", *arguments]
    return subprocess.Popen(
        [*command, "--server", url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": PYTHON_PATH, KEY_VARIABLE: SECRET},
    )


def test_ctrl_c_while_the_server_takes_the_request_leaves_no_video_behind(tmp_path: Path) -> None:
    replies = Replies([made()])
    replies.may_reply.clear()
    with replying(replies) as url, start(url, "create", "a", folder=tmp_path) as process:
        wait(lambda: bool(replies.asked))
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)  # as long as the signal would need to end it
        assert process.poll() is None
        replies.may_reply.set()
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert replies.asked == ["POST /v1/videos", "POST /v1/videos/video_1/cancel"]
    assert "video_1 is cancelled on the server" in err


# A real server: one for all that follows.


@dataclass(frozen=True)
class Real:
    server: ServerProcess
    collector: Collector

    def http(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {SECRET}"}
        return httpx.Client(base_url=self.server.url, headers=headers, timeout=60)

    def start(self, *arguments: str, folder: Path) -> subprocess.Popen[str]:
        return start(self.server.url, *arguments, folder=folder)

    def log(self) -> list[dict[str, Any]]:
        """The lines of the server's log that are its own; before them it tells its settings."""
        lines = io.StringIO(self.server.log.read_text())
        return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "keys").write_text(f"{SECRET}\n")
    with collecting() as (url, collector):
        model = tiny_info(folder).directory
        options = ["--model", str(model), "--threads", "1"]
        options += ["--log", "json", "--trace-endpoint", url]
        options += ["--api-keys-file", str(folder / "keys")]
        with server_process(folder, *options) as server:
            yield Real(server, collector)


def test_a_real_video_is_made_and_seen_by_metrics_trace_and_log(real: Real, tmp_path: Path) -> None:
    prompt = "an unmistakable walrus"
    options = [*SMALL, "--steps", "6", "--output", "walrus.mp4"]
    with real.start("create", prompt, *options, folder=tmp_path) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out == "walrus.mp4\n"
    frames, _, metadata = read_video(tmp_path / "walrus.mp4")
    assert frames.shape == (5, 64, 64, 3)
    assert (metadata["prompt"], metadata["seed"]) == (prompt, 7)
    id = re.search("video_[0-9a-f]{32}", err)
    assert id is not None and "6/6" in err

    samples = {}
    with real.http() as http:
        text = http.get("/metrics").text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples[sample.name, *sorted(sample.labels.values())] = sample.value
    steps = samples["wantrn_steps_total", "transformer"]
    steps += samples["wantrn_steps_total", "transformer_2"]
    assert steps == 6
    assert samples["wantrn_jobs_ended_total", "completed", "none"] == 1
    for stage in ("text and noise", "denoise", "decode", "write"):
        assert samples["wantrn_stage_seconds_count", stage] == 1
        assert samples["wantrn_stage_seconds_sum", stage] > 0

    wait(lambda: any(span.name == "video" for span in real.collector.spans()))
    spans = {span.name for span in real.collector.spans()}
    experts = {"steps of transformer", "steps of transformer_2"}
    assert spans == {"video", "queued", "text and noise", "decode", "write", *experts}

    log = [line for line in real.log() if line.get("job") == id[0]]
    stati = [line["status"] for line in log if line["logger"] == "wantrn.jobs"]
    assert stati == ["queued", "in_progress", "completed"]
    requests = [line for line in log if line["logger"] == "wantrn.access"]
    assert (requests[0]["method"], requests[0]["route"]) == ("POST", "/v1/videos")
    assert requests[-1]["route"] == "/v1/videos/{video_id}/content"
    assert {line["status"] for line in requests} == {200}
    assert all(line["ms"] > 0 for line in requests)
    whole = real.server.log.read_text()
    assert "walrus" not in whole and SECRET not in whole


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_a_signal_to_the_client_cancels_the_video_on_the_server(
    real: Real, tmp_path: Path, number: int, status: int
) -> None:
    options = [*SMALL, "--steps", "1000", "--output", "x.mp4"]
    with real.http() as http:
        before = {each["id"] for each in http.get("/v1/videos").json()["data"]}
        with real.start("create", "a", *options, folder=tmp_path) as process:

            def new() -> list[str]:
                found = http.get("/v1/videos").json()["data"]
                return [each["id"] for each in found if each["id"] not in before]

            wait(lambda: bool(new()))
            (id,) = new()
            wait(lambda: (video(http, id)["step"] or 0) >= 2)
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (status, "")
        assert f"{id} is cancelled on the server" in err and err.endswith("stopped\n")
        found = wait_status(http, id, "failed")
    assert found["error"]["code"] == "cancelled"
    assert list(tmp_path.iterdir()) == []
