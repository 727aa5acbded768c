"""The engine of vLLM-Omni behind the jobs: its events, its videos, and what it survives."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from omni_environment import needs_omni, run_with_omni
from PIL import Image

from wantrn.model.info import ModelKind
from wantrn.model.media import read_video
from wantrn.model.tiny import write_tiny_checkpoint
from wantrn.serving.cli import main

pytestmark = needs_omni

ENDS = {"Finished", "Failed", "Cancelled"}


class Answer:
    """What the program says of one trial."""

    def __init__(self, folder: Path, kind: ModelKind, ranks: dict[str, Any], kill: bool) -> None:
        self.folder, self.model = folder, folder / "model"
        self.picture: Path | None = None
        write_tiny_checkpoint(self.model, kind)
        if kind is ModelKind.I2V:
            self.picture = folder / "picture.png"
            Image.linear_gradient("L").resize((48, 48)).convert("RGB").save(self.picture)
        question = {
            "model": str(self.model),
            "folder": str(folder),
            "ranks": ranks,
            "picture": None if self.picture is None else str(self.picture),
            "kill": kill,
        }
        answer = run_with_omni("omni_jobs.py", question, folder, seconds=580)
        self.events: list[tuple[str, str | None, dict[str, Any]]] = [
            (kind, id, values) for kind, id, values in answer["events"]
        ]
        self.seen: dict[str, Any] = answer["seen"]

    def of(self, id: str) -> list[tuple[str, dict[str, Any]]]:
        return [(kind, values) for kind, whose, values in self.events if whose == id]

    def end(self, id: str) -> tuple[str, dict[str, Any]]:
        (end,) = [event for event in self.of(id) if event[0] in ENDS]
        return end


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    """T2V on two ranks, of which one dies."""
    return Answer(tmp_path_factory.mktemp("two"), ModelKind.T2V, {"ring": 2}, kill=True)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    """I2V on one rank."""
    return Answer(tmp_path_factory.mktemp("one"), ModelKind.I2V, {}, kill=False)


@pytest.fixture(params=["one", "two"])
def either(request: pytest.FixtureRequest) -> Answer:
    answer: Answer = request.getfixturevalue(request.param)
    return answer


def generated(answer: Answer) -> npt.NDArray[np.uint8]:
    """The work ``plain`` by the command."""
    output = answer.folder / "generated"
    arguments = ["generate", "a cat", "--model", str(answer.model), "--output", str(output)]
    arguments += ["--size", "48x48", "--frames", "5", "--steps", "4", "--guidance", "3"]
    arguments += ["--seed", "5", "--threads", "1"]
    if answer.picture is not None:
        arguments += ["--image", str(answer.picture)]
    assert main(arguments) == 0
    return read_video(output)[0]


def test_one_rank_makes_the_video_that_the_command_makes(one: Answer) -> None:
    made, _, metadata = read_video(one.folder / "plain")
    assert np.array_equal(made, generated(one))
    assert metadata["made"] == "plain"


def test_two_ranks_make_that_video_but_for_rounding(two: Answer) -> None:
    made, wanted = read_video(two.folder / "plain")[0].astype(int), generated(two).astype(int)
    assert np.abs(made - wanted).max() <= 1
    # differences of 1e-5 change one level of 256 in less than one of 100 values
    assert (made != wanted).mean() < 0.01


def test_events_come_in_order(either: Answer) -> None:
    kinds = [kind for kind, _ in either.of("plain") if kind != "Previewed"]
    assert kinds == ["Started", *4 * ["Stepped"], "Decoding", "Finished"]
    steps = [values for kind, values in either.of("plain") if kind == "Stepped"]
    assert [(s["step"], s["steps"]) for s in steps] == [(n, 4) for n in range(1, 5)]
    assert all(s["seconds"] > 0 for s in steps)
    experts = [s["expert"] for s in steps]
    assert experts == sorted(experts) and set(experts) == {0, 1}
    seconds = either.end("plain")[1]["seconds"]
    assert list(seconds) == ["text and noise", "denoise", "decode", "write"]
    assert all(value > 0 for value in seconds.values())


def test_long_work_is_shown_while_it_is_made(either: Answer) -> None:
    shown = [values["bytes"] for _, _, values in either.events if "bytes" in values]
    assert shown and min(shown) > 0


def test_work_that_cannot_be_made_fails_alone(either: Answer) -> None:
    kind, values = either.end("unreadable")
    assert (kind, values["code"]) == ("Failed", "invalid_input")
    assert "nothing-there.png" in values["reason"]
    kind, values = either.end("infinite")
    assert (kind, values["code"]) == ("Failed", "not_finite")
    assert re.match(r"latents are not finite after step \d of 3 ", values["reason"])
    assert not (either.folder / "infinite.mp4").exists()


def test_quick_work_does_not_wait_for_slow_work_of_another_shape(either: Answer) -> None:
    assert either.end("quick")[0] == "Finished"
    assert read_video(either.folder / "quick.mp4")[0].shape == (5, 32, 64, 3)
    # a step of each in turn
    assert 6 <= either.seen["slow when quick ended"] < 900


def test_work_is_dropped_at_the_next_step(either: Answer) -> None:
    assert either.end("slow")[0] == "Cancelled"
    # one may have been under way, and one told of in the same moment
    assert either.seen["slow when cancelled"] - either.seen["slow when told to stop"] <= 2
    assert not (either.folder / "slow.mp4").exists()


def test_what_cannot_be_taken_is_refused(either: Answer) -> None:
    assert either.seen["refused early"] == "the engine is starting"
    assert either.seen["refused full"] == "all 2 slots are taken"


def test_a_dead_rank_is_noticed_and_all_are_started_again(two: Answer) -> None:
    (lost,) = [values for kind, _, values in two.events if kind == "Lost"]
    assert lost == {"reason": "rank 1 of 2 ended by SIGKILL", "broken": False}
    assert two.seen["seconds to notice"] < 10
    assert two.seen["health when lost"] == "restarting"
    assert two.seen["refused when lost"] == "the engine is restarting"
    for id in ("doomed", "doomed too"):
        assert not ENDS & {kind for kind, _ in two.of(id)}
        assert not (two.folder / f"{id}.mp4").exists()
    kinds = [kind for kind, _, _ in two.events if kind in ("Lost", "Ready")]
    assert kinds == ["Ready", "Lost", "Ready"]
    assert two.end("after")[0] == "Finished"
    before, after = (read_video(two.folder / id)[0] for id in ("plain", "after"))
    assert np.array_equal(before, after)


def test_nothing_is_left_when_it_has_stopped(either: Answer) -> None:
    ranks = either.seen["ranks"]
    assert ranks == either.seen["pids"] == (1 if either.picture else 2)
    assert either.seen["ranks left"] == []
    assert either.seen["shared memory left"] == []
    assert not ENDS & {kind for kind, _ in either.of("unfinished")}
    assert not (either.folder / "unfinished.mp4").exists()


def test_it_says_how_it_computes(either: Answer) -> None:
    assert either.seen["described"]["engine"].startswith("vllm-omni 0.30.")


def test_ranks_end_when_the_process_of_the_engine_is_killed(tmp_path: Path) -> None:
    write_tiny_checkpoint(tmp_path / "model", ModelKind.T2V)
    question = {"model": str(tmp_path / "model"), "folder": str(tmp_path)}
    answer = run_with_omni("omni_killed.py", question, tmp_path, seconds=400)
    assert answer == {"status": -signal.SIGKILL, "ranks": 2, "left": []}
