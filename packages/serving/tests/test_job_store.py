"""Records and files of jobs: what is kept, in which order, and what a killed process leaves."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_engine import settings_of, tiny_info

from wantrn.model.info import ModelInfo
from wantrn.serving.jobs.job import Job, JobError, Status, new_id
from wantrn.serving.jobs.store import JobStore, StoreError

PYTHON_PATH = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> ModelInfo:
    return tiny_info(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[JobStore]:
    made = JobStore(tmp_path / "store")
    yield made
    made.close()


def job(info: ModelInfo, prompt: str = "a red ball", created_at: float = 1.0) -> Job:
    return Job(new_id(), "model", settings_of(info, prompt), created_at)


def test_a_record_comes_back_as_it_was_from_another_process_too(
    tmp_path: Path, info: ModelInfo
) -> None:
    waiting = job(info, "多言語 ' \" \\ \x00 🎬")
    ended = replace(
        job(info),
        status=Status.FAILED,
        started_at=2.5,
        ended_at=3.25,
        expires_at=9e9,
        error=JobError("not_finite", "step 3"),
        image="image.png",
        adjusted={"size": "100x70"},
        seconds={"denoise": 0.125},
    )
    store = JobStore(tmp_path / "store")
    store.add(waiting)
    store.add(replace(ended, status=Status.QUEUED))
    store.update(ended)
    store.close()
    again = JobStore(tmp_path / "store")
    assert [again.get(waiting.id), again.get(ended.id)] == [waiting, ended]
    assert again.get("video_0") is None
    assert again.having(Status.FAILED) == [ended]
    assert again.counts() == {
        Status.QUEUED: 1,
        Status.IN_PROGRESS: 0,
        Status.COMPLETED: 0,
        Status.FAILED: 1,
    }
    again.close()


@settings(max_examples=30, deadline=None)
@given(
    kept=st.lists(st.booleans(), max_size=12),
    limit=st.integers(1, 5),
    newest_first=st.booleans(),
    clock=st.sampled_from([0.0, 1.0]),
)
def test_pages_have_every_job_once_in_the_order_of_their_making(
    tmp_path_factory: pytest.TempPathFactory,
    info: ModelInfo,
    kept: list[bool],
    limit: int,
    newest_first: bool,
    clock: float,
) -> None:
    """Whatever was deleted meanwhile, and where the clock stood still or ran backwards."""
    store = JobStore(tmp_path_factory.mktemp("pages"))
    made = [job(info, created_at=-clock * place) for place in range(len(kept))]
    for one in made:
        store.add(one)
    for one, stays in zip(made, kept, strict=True):
        if not stays:
            store.remove(one.id)
    wanted = [one for one, stays in zip(made, kept, strict=True) if stays]
    seen: list[Job] = []
    while page := store.page(limit, seen[-1].id if seen else None, newest_first):
        assert len(page) <= limit
        seen += page
    assert seen == (wanted[::-1] if newest_first else wanted)
    store.close()


def test_a_page_after_nothing(store: JobStore) -> None:
    with pytest.raises(KeyError, match="video_x"):
        store.page(5, "video_x")


def test_files_go_with_their_job_and_what_nobody_knows_is_swept(
    store: JobStore, info: ModelInfo
) -> None:
    kept, dropped = job(info), job(info)
    for one in (kept, dropped):
        store.add(one)
        (store.files(one.id) / "video.mp4").write_bytes(b"x")
    store.remove(dropped.id)
    assert store.files(dropped.id).exists()
    store.sweep()
    assert not store.files(dropped.id).exists()
    assert (store.files(kept.id) / "video.mp4").read_bytes() == b"x"
    store.remove_files(kept.id)
    assert not store.files(kept.id).exists()


def test_what_has_expired(store: JobStore, info: ModelInfo) -> None:
    jobs = [replace(job(info), expires_at=when) for when in (None, 10.0, 20.0)]
    for one in jobs:
        store.add(one)
    assert store.expired(5.0) == []
    assert store.expired(10.0) == [jobs[1].id]
    assert store.expired(99.0) == [jobs[1].id, jobs[2].id]


def test_one_server_a_folder(store: JobStore) -> None:
    with pytest.raises(StoreError, match=f"another server uses {store.folder}"):
        JobStore(store.folder)


def test_folders_that_are_no_store(tmp_path: Path, info: ModelInfo) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be used"):
        JobStore(tmp_path / "file")
    damaged = tmp_path / "damaged"
    JobStore(damaged).close()
    (damaged / "jobs.sqlite3").write_bytes(b"no database, but long enough to look like one" * 40)
    with pytest.raises(StoreError, match="jobs.sqlite3 cannot be used"):
        JobStore(damaged)
    newer = tmp_path / "newer"
    JobStore(newer).close()
    with sqlite3.connect(newer / "jobs.sqlite3") as database:
        database.execute("PRAGMA user_version = 3")
    database.close()
    with pytest.raises(StoreError, match="has version 3, this one is 2"):
        JobStore(newer)
    # none of them is left locked
    (damaged / "jobs.sqlite3").unlink()
    JobStore(damaged).close()


def test_a_store_of_the_version_before_is_taken_over(tmp_path: Path, info: ModelInfo) -> None:
    store = JobStore(tmp_path)
    kept = replace(job(info), steps_reused=7)
    store.add(kept)
    assert store.get(kept.id) == kept
    store.close()
    with sqlite3.connect(tmp_path / "jobs.sqlite3") as database:
        database.execute("ALTER TABLE jobs DROP COLUMN steps_reused")
        database.execute("PRAGMA user_version = 1")
    database.close()
    for _ in range(2):
        store = JobStore(tmp_path)
        assert store.get(kept.id) == replace(kept, steps_reused=0)
        store.close()


def test_settings_of_another_version_are_told_and_not_guessed(
    store: JobStore, info: ModelInfo
) -> None:
    one = job(info)
    store.add(one)
    with sqlite3.connect(store.folder / "jobs.sqlite3") as database:
        database.execute("UPDATE jobs SET settings = json_set(settings, '$.colour', 'red')")
    database.close()
    with pytest.raises(ValueError, match="'colour' differs"):
        store.get(one.id)


def test_what_was_committed_survives_a_kill(tmp_path: Path) -> None:
    """A process that adds jobs, tells of each, and is killed in the middle of it."""
    program = """
import sys
from pathlib import Path
from test_job_store import job
from scripted_engine import tiny_info
from wantrn.serving.jobs.store import JobStore
info = tiny_info(Path(sys.argv[2]))
store = JobStore(Path(sys.argv[1]))
while True:
    one = job(info)
    store.add(one)
    print(one.id, flush=True)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "store"), str(tmp_path / "tiny")]
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": PYTHON_PATH}
    )
    assert child.stdout is not None
    told = [child.stdout.readline().strip() for _ in range(50)]
    child.send_signal(signal.SIGKILL)
    told += [line.strip() for line in child.stdout if line.endswith("\n")]
    child.stdout.close()
    assert child.wait() == -signal.SIGKILL
    store = JobStore(tmp_path / "store")
    found = [one.id for one in store.page(10_000, newest_first=False)]
    assert found[: len(told)] == told and len(found) - len(told) <= 1
    store.close()
