"""The programs that compare servers: what they make of what they are told, and short rounds."""

from __future__ import annotations

import json
import math
import sys
from importlib.metadata import distributions
from pathlib import Path

import bench_serving
import numpy as np
import omni_cpu
import pytest
import stock_omni
import torch
from bench_serving_faults import ACTS, Subject
from bench_serving_page import as_markdown, as_text, page
from hypothesis import given
from hypothesis import strategies as st
from served_video import Asked, write_checkpoint
from video_frames import max_difference, mean_difference, read_frames
from video_servers import LAYOUTS, Job, Launch, Layout, Place, Server, ServerError, running

from wantrn.model.media import write_video
from wantrn.serving.stages import Stages

SMALL = Asked(size="32x32", frames=1, steps=2)

# Answers as a server of videos does: each is ready at once, and is the file VIDEO.
DOUBLE = """
import http.server
import json
import sys

if "-c" in sys.argv:
    print(False)
    sys.exit()

job = {"id": "video_1", "status": "completed", "progress": 100}

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        content = json.dumps(job).encode()
        if self.path.endswith("/content"):
            content = open("VIDEO", "rb").read()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("serving")
    write_checkpoint(folder / "model")
    return Place(folder / "model", folder)


def job(total: float, running_s: float, denoise: float, decode: float) -> Job:
    stages = {"text and noise": 9.0, "denoise": denoise, "decode": decode, "write": 9.0}
    return Job({"stage_seconds": stages}, total, running_s)


names = st.lists(
    st.sampled_from(["load", "text and noise", "denoise", "decode", "write"]),
    unique=True,
    min_size=1,
)


@given(names, st.lists(st.floats(0, 1e4), min_size=5, max_size=5))
def test_the_stages_that_generate_prints_are_read(names: list[str], seconds: list[float]) -> None:
    stages = Stages()
    stages.seconds = dict(zip(names, seconds, strict=False))
    text = f"prompt: done in 5.0 s: load 9.0 s\n{stages.summary()}\n"
    read = bench_serving.stages_of(text)
    assert list(read) == names
    assert all(math.isclose(read[name], stages.seconds[name], abs_tol=0.051) for name in names)


def test_a_run_that_named_no_stages_is_refused() -> None:
    with pytest.raises(ValueError, match="Killed"):
        bench_serving.stages_of("denoising: 3/40\nKilled\n")


def test_ratios_to_generate_are_those_of_medians() -> None:
    commands = [{"load": 5.0, "denoise": d, "decode": 1.0} for d in (3.0, 4.0, 99.0)]
    jobs = [job(6.0, 5.5, 4.0, 0.5), job(7.0, 6.5, 4.5, 0.5), job(5.0, 4.5, 1.0, 0.5)]
    figures = bench_serving.over_generate(commands, jobs)
    assert figures["generate.denoise_decode_s"] == 5.0
    assert figures["serve.denoise_decode_over_generate"] == pytest.approx(4.5 / 5)
    assert figures["serve.running_over_generate"] == pytest.approx(5.5 / 5)
    assert figures["serve.job_over_generate"] == pytest.approx(6 / 5)


def test_ratios_to_stock_need_the_same_video() -> None:
    grey = np.full((2, 4, 4, 3), 100, np.uint8)
    seconds = {"serve": [3.0, 1.0, 2.0], "stock": [4.0, 4.0, 9.0]}
    figures = bench_serving.over_stock("tp2", seconds, {"serve": grey, "stock": grey + 1})
    assert figures["tp2.serve_over_stock"] == 0.5
    assert figures["tp2.serve.mean_difference"] == pytest.approx(1 / 255)
    with pytest.raises(SystemExit, match="void"):
        bench_serving.over_stock("tp2", seconds, {"serve": grey, "stock": grey + 50})


def test_frames_are_read_and_compared(tmp_path: Path) -> None:
    video = torch.full((5, 32, 48, 3), 90, dtype=torch.uint8)
    write_video(tmp_path / "one.mp4", video, 16, {})
    frames = read_frames(tmp_path / "one.mp4")
    assert frames.shape == (5, 32, 48, 3)
    brighter = (frames + 30).astype(np.uint8)
    assert max_difference(frames, brighter) == max_difference(brighter, frames) == 30
    assert mean_difference(frames, brighter) == pytest.approx(30 / 255)
    with pytest.raises(ValueError, match="5, 32, 48"):
        max_difference(frames, frames[1:])


cells = st.dictionaries(st.sampled_from(["a", "b|c", "d"]), st.text("xy|", max_size=5), min_size=1)


@given(cells)
def test_a_table_has_a_row_for_each_act_and_a_cell_for_each_server(seen: dict[str, str]) -> None:
    columns = {"stock": seen, "ours": dict.fromkeys(seen, "fine")}
    rows = as_markdown(columns).splitlines()
    assert len(rows) == 2 + len(seen)
    assert all(row.replace("\\|", "").count("|") == 4 for row in rows)
    text = as_text(columns)
    assert all(act in text and what in text for act, what in seen.items())


def test_the_page_has_the_table_and_the_ratios() -> None:
    columns = {"stock": {"an act": "fails"}, "ours": {"an act": "works"}}
    text = page(columns, {"one.serve_over_stock": 0.875, "one.stock.job_s": 7.0}, 2)
    assert "| an act | fails | works |" in text
    assert "| `one.serve_over_stock` | 0.88 |" in text
    assert "job_s" not in text
    assert "How long" not in page(columns, {}, 2)


def test_the_plugin_announces_what_there_is(tmp_path: Path) -> None:
    omni_cpu.write_plugin(tmp_path / "plugin")
    (found,) = distributions(path=[str(tmp_path / "plugin")])
    groups = {point.group: point for point in found.entry_points}
    assert set(groups) == {"vllm.platform_plugins", "vllm_omni.platform_plugins"}
    assert {point.name for point in found.entry_points} == {omni_cpu.PLUGIN}
    platform = groups["vllm_omni.platform_plugins"].load()()
    assert platform == "omni_cpu.StockCpu"
    allowed = stock_omni.variables(tmp_path, tmp_path, 1)["VLLM_PLUGINS"].split(",")
    assert omni_cpu.PLUGIN in allowed
    assert "wantrn" not in allowed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--faults"], "--faults needs --vllm-omni"),
        (["--markdown", "page.md"], "--markdown needs --faults"),
        (["--rounds", "-1"], "got -1"),
        (["--vllm-omni", "/nowhere/python"], "/nowhere/python"),
        (["--vllm-omni", sys.executable, "--threads", "3"], "got 3"),
    ],
)
def test_arguments_that_cannot_be_are_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        bench_serving.parse(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_round_against_generate(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--rounds", "1", "--threads", "1", "--json"]
    line += ["--size", SMALL.size, "--frames", str(SMALL.frames), "--steps", str(SMALL.steps)]
    bench_serving.main(line)
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert 0 < figures["serve.denoise_decode_s"] < figures["serve.job_s"]
    assert figures["serve.running_s"] <= figures["serve.job_s"]


class DoublePlace(Place):
    """Where our server is another process of the double."""

    def ours(self, name: str, layout: Layout, threads: int) -> Launch:
        return self.stock(name, self.model, layout, threads)


def test_two_servers_take_turns(tmp_path: Path) -> None:
    write_video(tmp_path / "video.mp4", torch.zeros((1, 32, 32, 3), dtype=torch.uint8), 16, {})
    script, python = tmp_path / "double.py", tmp_path / "python"
    script.write_text(DOUBLE.replace("VIDEO", str(tmp_path / "video.mp4")))
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    python.chmod(0o755)
    place = DoublePlace(python, tmp_path)
    figures = bench_serving.against_stock(place, SMALL, "tp2", python, 2, 2)
    assert figures["tp2.serve.mean_difference"] == 0
    ratio = figures["tp2.serve.job_s"] / figures["tp2.stock.job_s"]
    assert figures["tp2.serve_over_stock"] == pytest.approx(ratio)


def test_what_our_server_does_is_told(place: Place) -> None:
    subject = Subject(place, SMALL, lambda name, layout: place.ours(name, layout, 1), "acts")
    with subject.running("one") as server:
        assert "refused with 400" in ACTS["`size` 100x70"](subject, server)
        assert ACTS["content with `variant=thumbnail`"](subject, server) == "200, image/webp"
        with server.stopped(), server.awake():
            assert ACTS["no `flow_shift`; the checkpoint's is 3.0"](subject, server).endswith("3.0")
    assert server.descendants() == {}


def test_a_server_that_ends_is_told_of(tmp_path: Path) -> None:
    launch = Launch([sys.executable, "-c", "import sys; sys.exit('no such model')"], {})
    with pytest.raises(ServerError, match=r"(?s)status 1.*no such model"):
        Server(launch, tmp_path / "server")
    with (
        pytest.raises(ServerError, match=r"(?s)status 1.*no such model"),
        running(Launch(launch.command, {}, "http://127.0.0.1:9"), tmp_path / "other"),
    ):
        pass


def test_layouts_have_as_many_ranks_as_they_say(place: Place) -> None:
    for name, layout in LAYOUTS.items():
        line = place.ours(name, layout, 1).command
        product = math.prod(int(part) for part in layout.ours if part.isdecimal())
        assert product * (2 if "--cfg-parallel" in line else 1) == layout.ranks
