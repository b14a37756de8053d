"""The journal of a job manager: requests, grid jobs and local jobs, recorded before each action.

One SQLite file in the manager's directory, locked by its one writer. Every change is one transaction that is
on disk when the call returns, so a manager that was killed at any point continues from the journal.
"""

import fcntl
import json
import secrets
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TextIO

from pydantic import TypeAdapter

from pilotage.fabric.manager.grid_job import AttemptKey, GridJobEntry, LocalJob, PulledGridJob
from pilotage.fabric.pilot.payload.payload import Report
from requirements.errors import PilotageError

#: Seconds to wait for the lock: a child that a killed manager was starting holds it until its `exec`.
_PATIENCE = 5.0
_PAUSE = 0.05


class StateUnusable(PilotageError):
    """The journal cannot be read or written; nothing was changed, and the directory needs repair."""

    code = "state_unusable"


def hold_lock(directory: Path) -> TextIO:
    """Lock the directory, created if missing, until the returned file is closed."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (directory / "lock").open("w")
    except OSError as error:
        raise StateUnusable(f"{directory}: {error.strerror}") from error
    try:
        _lock(lock)
    except OSError as error:
        lock.close()
        why = "another manager has it open" if isinstance(error, BlockingIOError) else error.strerror
        raise StateUnusable(f"{directory}: {why}") from None
    return lock


def _lock(lock: TextIO) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            threading.Event().wait(_PAUSE)


_SCHEMA = """
CREATE TABLE IF NOT EXISTS book (key TEXT NOT NULL);  -- part of every stamp: tells journals apart
CREATE TABLE IF NOT EXISTS grid_jobs (
    job_id INTEGER, epoch INTEGER, taken TEXT NOT NULL, number INTEGER, digest TEXT,
    cancelled INTEGER NOT NULL DEFAULT 0, gathering INTEGER NOT NULL DEFAULT 0, output TEXT, outcome TEXT,
    forgotten INTEGER NOT NULL DEFAULT 0, problem TEXT NOT NULL DEFAULT '',
    answer TEXT,  -- JSON: the last answer of the service about it, see LastAnswer
    PRIMARY KEY (job_id, epoch));
CREATE TABLE IF NOT EXISTS local_jobs (
    job_id INTEGER, epoch INTEGER, number INTEGER, stamp TEXT NOT NULL UNIQUE, record TEXT NOT NULL,
    PRIMARY KEY (job_id, epoch, number));
CREATE TABLE IF NOT EXISTS requests (  -- for grid jobs, that are open: by VO and queue
    wanted TEXT PRIMARY KEY, id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS log (  -- of a grid job, returned with its output
    job_id INTEGER, epoch INTEGER, at TEXT NOT NULL, text TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS ix_log ON log (job_id, epoch);
"""
_TAKE = "INSERT OR IGNORE INTO grid_jobs (job_id, epoch, taken, answer) VALUES (?, ?, ?, ?)"
#: Columns changed only by the thread of the grid job's batch system; others set `cancelled` and `forgotten`.
_UPDATE = """UPDATE grid_jobs SET number=?, digest=?, gathering=?, output=?, outcome=?
    WHERE job_id=? AND epoch=?"""
_CANCEL = "UPDATE grid_jobs SET cancelled=1 WHERE job_id=? AND epoch=? AND NOT cancelled AND outcome IS NULL"
_ANSWERED = "UPDATE grid_jobs SET answer=? WHERE job_id=? AND epoch=?"
_TROUBLE = "UPDATE grid_jobs SET problem=? WHERE job_id=? AND epoch=?"
#: Cancels as well, in case the job has not ended.
_FORGET = "UPDATE grid_jobs SET forgotten=1, cancelled=1 WHERE job_id=? AND epoch=? AND NOT forgotten"
_ENTRIES = "SELECT * FROM grid_jobs ORDER BY job_id, epoch"
_LOCAL_JOBS = "SELECT record FROM local_jobs WHERE job_id=? AND epoch=? ORDER BY number"
_EVERY_LOCAL_JOB = "SELECT job_id, epoch, record FROM local_jobs ORDER BY job_id, epoch, number"
_PUT = "INSERT OR REPLACE INTO local_jobs VALUES (?, ?, ?, ?, ?)"
_LOG = "INSERT INTO log VALUES (?, ?, ?, ?)"
_LOGGED = "SELECT at, text FROM log WHERE job_id=? AND epoch=? ORDER BY rowid LIMIT 200000"
_REMOVE = (
    "DELETE FROM log WHERE job_id=? AND epoch=?",
    "DELETE FROM local_jobs WHERE job_id=? AND epoch=?",
    "DELETE FROM grid_jobs WHERE job_id=? AND epoch=?",
)
#: The file in the manager's directory.
FILE = "book.sqlite"
#: Maximum characters of a log line.
_LONGEST = 2000
_RECORD = TypeAdapter(LocalJob)
# A later release may have stored more fields: they are ignored, so that an older one goes on with its jobs.
_TAKEN = TypeAdapter(PulledGridJob)
_OUTCOME = TypeAdapter(Report)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastAnswer:
    """When the service last answered about a grid job, by clocks that a restart of this process keeps."""

    boot: str  #: id of the host's boot
    elapsed: float  #: seconds since some moment of that boot
    at: float  #: seconds since 1970 by the host's clock, for a host that was started again
    run_on: float | None  #: seconds without an answer after which the local jobs have to end


_ANSWER = TypeAdapter(LastAnswer)


class Journal:
    """One open journal; thread-safe. Every method raises `StateUnusable` if it cannot be read or written."""

    def __init__(self, directory: Path) -> None:
        """Open or create the journal; `StateUnusable` also if another manager has it open."""
        self._path = directory / FILE
        self._turn = threading.RLock()
        with ExitStack() as opened:
            opened.enter_context(hold_lock(directory))
            self._connection = opened.enter_context(closing(_connect(self._path)))
            self.key = self._key()
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Close the journal and release the lock."""
        self._opened.close()

    def take(self, taken: PulledGridJob, answer: LastAnswer | None = None) -> None:
        """Record a grid job before any action for it, with the answer that brought it.

        One that is recorded already stays unchanged.
        """
        brought_by = None if answer is None else json.dumps(asdict(answer))
        with self._writing() as database:
            if database.execute(_TAKE, (*taken.key, json.dumps(asdict(taken)), brought_by)).rowcount:
                self._log(database, taken.key, [f"taken for {taken.queue}"])

    def cancel(self, key: AttemptKey) -> None:
        """Cancel a grid job: later cycles kill its local jobs, and gather their output."""
        with self._writing() as database:
            if database.execute(_CANCEL, key).rowcount:
                self._log(database, key, ["its end is wanted"])

    def forget(self, key: AttemptKey) -> None:
        """Record that the service has acknowledged the end of a grid job; later cycles remove its files."""
        with self._writing() as database:
            database.execute(_FORGET, key)

    def note_problem(self, key: AttemptKey, problem: str) -> None:
        """Record what holds a grid job up; empty: nothing."""
        with self._writing() as database:
            database.execute(_TROUBLE, (problem[:_LONGEST], *key))

    def note_answer(self, key: AttemptKey, answer: LastAnswer) -> None:
        """Record the last answer of the service about a grid job."""
        with self._writing() as database:
            database.execute(_ANSWERED, (json.dumps(asdict(answer)), *key))

    def find_answer(self, key: AttemptKey) -> LastAnswer | None:
        """The last recorded answer about a grid job; None: there is none yet."""
        rows = self._read("SELECT answer FROM grid_jobs WHERE job_id=? AND epoch=?", key)
        return _ANSWER.validate_json(rows[0]["answer"]) if rows and rows[0]["answer"] else None

    def remove(self, key: AttemptKey) -> None:
        """Remove all records of a grid job."""
        with self._writing() as database:
            for statement in _REMOVE:
                database.execute(statement, key)

    def write(
        self,
        key: AttemptKey,
        *,
        entry: GridJobEntry | None = None,
        local_jobs: Iterable[LocalJob] = (),
        log: Sequence[str] = (),
    ) -> None:
        """Record in one transaction a grid job, some of its local jobs, and log lines."""
        with self._writing() as database:
            if entry is not None:
                outcome = None if entry.outcome is None else json.dumps(asdict(entry.outcome))
                values = (entry.number, entry.digest, entry.gathering, entry.output, outcome)
                database.execute(_UPDATE, (*values, *key))
            now = _format_now()
            for each in local_jobs:
                shown = replace(each, message=each.message[:_LONGEST]).with_times(now)
                record = _RECORD.dump_json(shown).decode()
                database.execute(_PUT, (*each.key, each.number, each.stamp, record))
            self._log(database, key, log)

    def entries(self) -> list[GridJobEntry]:
        """All recorded grid jobs."""
        return [_entry(row) for row in self._read(_ENTRIES, ())]

    def grid_jobs(self) -> list[tuple[GridJobEntry, list[LocalJob]]]:
        """The grid jobs that are not forgotten, with their local jobs."""
        with self._turn:
            entries = self.entries()
            rows = self._read(_EVERY_LOCAL_JOB, ())
        return _join([each for each in entries if not each.forgotten], rows)

    def local_jobs(self, key: AttemptKey) -> list[LocalJob]:
        """The local jobs of a grid job."""
        return [_parse_record(row["record"]) for row in self._read(_LOCAL_JOBS, key)]

    def log(self, key: AttemptKey) -> str:
        """The log of a grid job."""
        return "".join(f"{row['at']} {row['text']}\n" for row in self._read(_LOGGED, key))

    @property
    def requests(self) -> Mapping[str, str]:
        """Ids of open requests, by VO and queue; those of an earlier process may have been answered."""
        return {row["wanted"]: row["id"] for row in self._read("SELECT * FROM requests", ())}

    def open_request(self, wanted: str) -> str:
        """The id of the request for `wanted`, on disk when it returns."""
        with self._writing() as database:
            database.execute("INSERT OR IGNORE INTO requests VALUES (?, ?)", (wanted, str(uuid.uuid4())))
        return self.requests[wanted]

    def close_request(self, wanted: str) -> None:
        """Remove the id of a request whose jobs are recorded."""
        with self._writing() as database:
            database.execute("DELETE FROM requests WHERE wanted=?", (wanted,))

    def _key(self) -> str:
        with self._writing() as database:
            database.execute(
                "INSERT INTO book SELECT ? WHERE NOT EXISTS (SELECT * FROM book)", (secrets.token_hex(5),)
            )
        return str(self._read("SELECT key FROM book", ())[0]["key"])

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, committed to disk at the end of the block, or rolled back."""
        with self._turn:
            try:
                with self._connection as database:
                    database.execute("BEGIN IMMEDIATE")
                    yield database
            except sqlite3.Error as error:
                raise StateUnusable(f"{self._path}: {error}") from error

    def _read(self, statement: str, values: Sequence[object]) -> list[sqlite3.Row]:
        with self._turn:
            try:
                return self._connection.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                raise StateUnusable(f"{self._path}: {error}") from error

    @staticmethod
    def _log(database: sqlite3.Connection, key: AttemptKey, lines: Iterable[str]) -> None:
        at = _format_now()
        database.executemany(_LOG, [(*key, at, " ".join(line[:_LONGEST].split())) for line in lines])


def read_grid_jobs(directory: Path) -> list[tuple[GridJobEntry, list[LocalJob]]]:
    """The grid jobs in a journal with their local jobs, also while its manager runs; nothing is changed."""
    path = directory / FILE
    if not path.is_file():
        raise StateUnusable(f"{path}: there is no journal; the gateway has not run with this directory yet")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            database.row_factory = sqlite3.Row
            database.execute("BEGIN")
            entries = [_entry(row) for row in database.execute(_ENTRIES)]
            rows = database.execute(_EVERY_LOCAL_JOB).fetchall()
    except sqlite3.Error as error:
        raise StateUnusable(f"{path}: {error}") from error
    return _join(entries, rows)


@lru_cache(maxsize=20_000)
def _parse_record(record: str) -> LocalJob:
    """A record of the journal, parsed. Cached, since few local jobs change between two reads."""
    return _RECORD.validate_json(record)


def _join(
    entries: Sequence[GridJobEntry], rows: Iterable[sqlite3.Row]
) -> list[tuple[GridJobEntry, list[LocalJob]]]:
    found: dict[AttemptKey, list[LocalJob]] = {entry.key: [] for entry in entries}
    for row in rows:
        if (jobs := found.get(AttemptKey(row["job_id"], row["epoch"]))) is not None:
            jobs.append(_parse_record(row["record"]))
    return [(entry, found[entry.key]) for entry in entries]


def _format_now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _connect(path: Path) -> sqlite3.Connection:
    try:
        path.touch(mode=0o600)  # leases are in it
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise StateUnusable(f"{path}: {error}") from error
    try:
        connection.row_factory = sqlite3.Row
        connection.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;" + _SCHEMA)
        if not any(each["name"] == "answer" for each in connection.execute("PRAGMA table_info(grid_jobs)")):
            connection.execute("ALTER TABLE grid_jobs ADD COLUMN answer TEXT")  # of an earlier version
    except sqlite3.Error as error:
        connection.close()
        raise StateUnusable(f"{path}: {error}") from error
    return connection


def _entry(row: sqlite3.Row) -> GridJobEntry:
    outcome = row["outcome"]
    return GridJobEntry(
        taken=_TAKEN.validate_json(row["taken"]),
        number=row["number"],
        digest=row["digest"],
        cancelled=bool(row["cancelled"]),
        gathering=bool(row["gathering"]),
        output=row["output"],
        outcome=None if outcome is None else _OUTCOME.validate_json(outcome),
        forgotten=bool(row["forgotten"]),
        problem=row["problem"],
    )
