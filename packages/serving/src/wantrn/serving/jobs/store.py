"""The records in SQLite, and beside them a folder of files for each job.

One process at a time owns a store: a second one would run jobs twice. Everything is called from one
thread.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import sqlite3
from dataclasses import fields
from pathlib import Path

from wantrn.serving.jobs.job import Job, JobError, Status
from wantrn.serving.settings_json import settings_from_json, settings_to_json

_VERSION = 2
_UPGRADES = {1: "ALTER TABLE jobs ADD COLUMN steps_reused INTEGER NOT NULL DEFAULT 0"}
"""What makes the next version of a store, by its own."""
_TABLE = """
CREATE TABLE jobs (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    model TEXT NOT NULL,
    settings TEXT NOT NULL,
    created_at REAL NOT NULL,
    status TEXT NOT NULL,
    started_at REAL,
    ended_at REAL,
    expires_at REAL,
    percent INTEGER NOT NULL,
    error TEXT,
    image TEXT,
    adjusted TEXT NOT NULL,
    seconds TEXT NOT NULL,
    steps_reused INTEGER NOT NULL DEFAULT 0
) STRICT
"""
_COLUMNS = tuple(field.name for field in fields(Job))


class StoreError(RuntimeError):
    """The folder cannot be used as a store."""


class JobStore:
    """A folder with the records and files of jobs.

    Raises:
        StoreError: the folder cannot be used, or is another server's, or of another version.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = folder / "jobs"
        try:
            self._files.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / "lock").open("a")
        except OSError as error:
            raise StoreError(f"store: {folder} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise StoreError(f"store: another server uses {folder}") from error
        try:
            self._database = self._open(folder / "jobs.sqlite3")
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        self._database.close()
        self._lock.close()

    def files(self, id: str) -> Path:
        """The folder of a job's files, which exists from ``add`` to ``remove_files``."""
        return self._files / id

    def add(self, job: Job) -> None:
        """Keep a new job, whose folder is made if its files have not made it."""
        self.files(job.id).mkdir(exist_ok=True)
        marks = ", ".join("?" * len(_COLUMNS))
        self._database.execute(
            f"INSERT INTO jobs ({', '.join(_COLUMNS)}) VALUES ({marks})", _row(job)
        )

    def update(self, job: Job) -> None:
        """Keep what has become of a job that is there."""
        sets = ", ".join(f"{name} = ?" for name in _COLUMNS)
        self._database.execute(f"UPDATE jobs SET {sets} WHERE id = ?", (*_row(job), job.id))

    def advance(self, id: str, percent: int) -> None:
        """Keep how far a job is."""
        self._database.execute("UPDATE jobs SET percent = ? WHERE id = ?", (percent, id))

    def get(self, id: str) -> Job | None:
        row = self._database.execute("SELECT * FROM jobs WHERE id = ?", (id,)).fetchone()
        return None if row is None else _job(row)

    def page(self, limit: int, after: str | None = None, newest_first: bool = True) -> list[Job]:
        """Up to ``limit`` jobs in the order in which they were made, from the one after ``after``.

        Raises:
            KeyError: there is no job ``after``.
        """
        direction, beyond = ("DESC", "<") if newest_first else ("ASC", ">")
        where, values = "", []
        if after is not None:
            place = self._database.execute(
                "SELECT place FROM jobs WHERE id = ?", (after,)
            ).fetchone()
            if place is None:
                raise KeyError(after)
            where, values = f"WHERE place {beyond} ?", [place["place"]]
        rows = self._database.execute(
            f"SELECT * FROM jobs {where} ORDER BY place {direction} LIMIT ?", (*values, limit)
        )
        return [_job(row) for row in rows]

    def having(self, status: Status) -> list[Job]:
        """All jobs in this state, the oldest first."""
        rows = self._database.execute(
            "SELECT * FROM jobs WHERE status = ? ORDER BY place", (str(status),)
        )
        return [_job(row) for row in rows]

    def counts(self) -> dict[Status, int]:
        """How many jobs are in each state."""
        rows = self._database.execute("SELECT status, COUNT(*) AS n FROM jobs GROUP BY status")
        found = {row["status"]: row["n"] for row in rows}
        return {status: found.get(str(status), 0) for status in Status}

    def expired(self, now: float) -> list[str]:
        """The ids of jobs whose time is over."""
        rows = self._database.execute("SELECT id FROM jobs WHERE expires_at <= ?", (now,))
        return [row["id"] for row in rows]

    def remove(self, id: str) -> None:
        """Forget a job. Its files stay until ``remove_files``: an engine may be writing them."""
        self._database.execute("DELETE FROM jobs WHERE id = ?", (id,))

    def remove_files(self, id: str) -> None:
        shutil.rmtree(self.files(id), ignore_errors=True)

    def sweep(self) -> None:
        """Remove the files of jobs that are not there."""
        known = {row["id"] for row in self._database.execute("SELECT id FROM jobs")}
        for folder in list(self._files.iterdir()):
            if folder.name not in known:
                shutil.rmtree(folder, ignore_errors=True)

    def _open(self, file: Path) -> sqlite3.Connection:
        database = sqlite3.connect(file, isolation_level=None)
        database.row_factory = sqlite3.Row
        try:
            # What is committed survives the end of the process; after a loss of power, the last
            # moments may be missing.
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                database.execute(_TABLE)
                database.execute(f"PRAGMA user_version = {_VERSION}")
            elif version in _UPGRADES:
                _upgrade(database, version)
            elif version != _VERSION:
                raise StoreError(f"store: {file} has version {version}, this one is {_VERSION}")
        except sqlite3.DatabaseError as error:
            database.close()
            raise StoreError(f"store: {file} cannot be used: {error}") from error
        except StoreError:
            database.close()
            raise
        return database


def _upgrade(database: sqlite3.Connection, version: int) -> None:
    """Make a store of ``version`` one of this version; a process that is killed leaves either."""
    database.execute("BEGIN IMMEDIATE")
    while version in _UPGRADES:
        database.execute(_UPGRADES[version])
        version += 1
    database.execute(f"PRAGMA user_version = {version}")
    database.execute("COMMIT")


def _row(job: Job) -> tuple[str | float | None, ...]:
    error = None if job.error is None else json.dumps([job.error.code, job.error.message])
    values = {
        **{name: getattr(job, name) for name in _COLUMNS},
        "settings": settings_to_json(job.settings),
        "status": str(job.status),
        "error": error,
        "adjusted": json.dumps(dict(job.adjusted)),
        "seconds": json.dumps(dict(job.seconds)),
    }
    return tuple(values[name] for name in _COLUMNS)


def _job(row: sqlite3.Row) -> Job:
    values = {name: row[name] for name in _COLUMNS}
    error = values["error"]
    return Job(
        **{
            **values,
            "settings": settings_from_json(values["settings"]),
            "status": Status(values["status"]),
            "error": None if error is None else JobError(*json.loads(error)),
            "adjusted": json.loads(values["adjusted"]),
            "seconds": json.loads(values["seconds"]),
        }
    )
