"""The database of a replay: empty at first, in a directory of its own that is removed at the end.

Nothing of it has to survive, so it is not forced to the disk. That of a replay that was killed is removed by
the next one.
"""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, bindparam, event, insert, update

from cs_config.tree.configuration import Configuration
from cs_config.versions import store
from pilotage.replay.recorded_day import KIND_COLUMNS, HeldJob, JobKind, RecordedDay
from requirements.requirement_class import RequirementClass
from requirements.states import JobStatus, PilotStatus
from taskqueue import day_record
from taskqueue.day_record import Seen, Series, Slot
from taskqueue.db import database, sql
from taskqueue.jobs import descriptions
from taskqueue.jobs.descriptions import Description
from taskqueue.pools import pools
from taskqueue.schema.tables import attempts, jobs
from taskqueue.schema.tables import pilots as pilots_table
from taskqueue.task_queues import task_queues

SUBJECT: Final = "replay"
#: Pools are not removed while a replay lasts: they count as used then.
_AFTERWARDS: Final = timedelta(days=400)
_ROWS: Final = 1000
_PREFIX: Final = "pilotage-replay-"
#: File of a directory that its process holds a lock on.
_LOCK: Final = "lock"
#: Seconds in which a new directory may be without the lock.
_NEW: Final = 60.0

ADD_JOBS = insert(jobs)
ADD_ATTEMPTS = insert(attempts)
ADD_PILOTS = insert(pilots_table)
_NOW = bindparam("now", type_=jobs.c.updated_at.type)
START_ATTEMPTS = (
    update(attempts).where(sql.is_listed(attempts.c.lease)).values(started_at=attempts.c.opened_at)
)
CLOSE_ATTEMPTS = (
    update(attempts).where(sql.is_listed(attempts.c.lease)).values(closed_at=_NOW, closed_as="finished")
)
_IS_LISTED = sql.is_listed(jobs.c.job_id)
#: Their last change was the match.
START_JOBS = (
    update(jobs).where(_IS_LISTED).values(status=JobStatus.RUNNING.value, started_at=jobs.c.updated_at)
)
END_JOBS = (
    update(jobs).where(_IS_LISTED).values(status=bindparam("the_status"), updated_at=_NOW, ended_at=_NOW)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedJob:
    """A job that comes, by its id in the replay."""

    job_id: int
    kind: JobKind
    asked: RequirementClass


@contextmanager
def open_database() -> Iterator[Engine]:
    """An empty database, which is removed afterwards."""
    _remove_left()
    with (
        tempfile.TemporaryDirectory(prefix=_PREFIX) as directory,
        (Path(directory) / _LOCK).open("a") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        url = f"sqlite:///{Path(directory) / 'replay.sqlite'}"
        database.upgrade(url)
        engine = database.connect(url, pool_size=4)
        event.listen(engine, "connect", _relax)
        try:
            yield engine
        finally:
            engine.dispose()


def _remove_left() -> None:
    """Remove the directories of this user whose processes are gone."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another's, or another process removes it
            about = directory.lstat()
            if about.st_uid == os.getuid() and time.time() - about.st_mtime > _NEW:
                with (directory / _LOCK).open("a") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(directory)


def _relax(connection: Any, _entry: object) -> None:
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = -262144")  # kB


def fill(engine: Engine, day: RecordedDay) -> int:
    """Store what is there from the beginning: pools, pilots, earlier answers; the id of the description."""
    with database.writing(engine) as conn:
        pools.touch_pools(conn, day.pools.values(), now=day.end + _AFTERWARDS)
        _add_pilots(conn, day.slots)
        day_record.add_counts(
            conn,
            (
                Seen(series=Series.ANSWERS, subject=subject, at=at, value=number)
                for subject, minutes in day.answers.items()
                for at, number in minutes.items()
            ),
        )
        [description_id] = descriptions.store_descriptions(
            conn, [Description(source="", body={"Executable": "replay"})]
        )
    return description_id


def _add_pilots(conn: Connection, slots: Sequence[Slot]) -> None:
    for start in range(0, len(slots), _ROWS):
        conn.execute(
            ADD_PILOTS,
            [
                {
                    "stamp": each.stamp,
                    "vo": each.vo,
                    "status": PilotStatus.RUNNING.value,
                    "site": each.site,
                    "ce": each.ce,
                    "queue": each.queue,
                    "processors": each.processors or 1,
                    "created_at": each.begin,
                    "updated_at": each.begin,
                    "last_seen_at": each.begin,
                }
                for each in slots[start : start + _ROWS]
            ],
        )


def store_configuration(conn: Connection, config: Configuration, *, now: datetime) -> Configuration:
    """Make a configuration the current version of the replay; it, with its number there."""
    number = store.store_checked(conn, config, author=SUBJECT, message="", expected=None, now=now, changed=())
    return config.stored_as(number, SUBJECT)


def add_jobs(conn: Connection, new: Sequence[ReplayedJob], *, description_id: int, now: datetime) -> None:
    """Let jobs wait in their task queues."""
    keys = [(each.asked, each.kind.owner_group, each.kind.owner) for each in new]
    found = task_queues.hold_task_queues(conn, keys, now=now)
    conn.execute(
        ADD_JOBS,
        [
            _to_row(each.job_id, each.kind, JobStatus.WAITING, description_id, now) | {"task_queue_id": place}
            for each, place in zip(new, found, strict=True)
        ],
    )
    task_queues.add_waiting(
        conn, [(each.job_id, place, each.kind.priority) for each, place in zip(new, found, strict=True)]
    )


def add_held(conn: Connection, held: Mapping[int, HeldJob], *, description_id: int) -> Mapping[int, str]:
    """Let jobs run that slots have from the beginning, by their ids; their leases."""
    leases = {job_id: f"held {job_id}" for job_id in held}
    if held:
        conn.execute(
            ADD_JOBS,
            [
                _to_row(job_id, each.kind, JobStatus.RUNNING, description_id, each.since)
                | {"epoch": 1, "started_at": each.since, "site": each.place.site}
                for job_id, each in held.items()
            ],
        )
        conn.execute(
            ADD_ATTEMPTS,
            [
                {
                    "job_id": job_id,
                    "epoch": 1,
                    "lease": leases[job_id],
                    "holder": SUBJECT,
                    "stamp": each.stamp,
                    "vo": each.kind.vo,
                    "site": each.place.site,
                    "ce": each.place.ce,
                    "queue": each.place.queue,
                    "opened_at": each.since,
                    "started_at": each.since,
                    "lease_expires_at": each.since,
                    "processors": each.processors,
                    "ram_mb": each.ram_mb,
                }
                for job_id, each in held.items()
            ],
        )
    return leases


def _to_row(
    job_id: int, kind: JobKind, status: JobStatus, description_id: int, now: datetime
) -> dict[str, object]:
    return {
        **{name: getattr(kind, name) for name in KIND_COLUMNS},
        "job_id": job_id,
        "status": status.value,
        "description_id": description_id,
        "submit_pool": kind.pool,
        "submitted_at": now,
        "updated_at": now,
    }


def start_jobs(conn: Connection, leases: Mapping[int, str]) -> None:
    """Record that jobs, by id, run under their leases since they were matched."""
    for some in sql.split_batches(leases.values()):
        conn.execute(START_ATTEMPTS, {"ids": some})
    for ids in sql.split_batches(leases):
        conn.execute(START_JOBS, {"ids": ids})


def end_jobs(conn: Connection, leases: Mapping[int, str], *, now: datetime) -> None:
    """Record that jobs, by id, have ended."""
    for some in sql.split_batches(leases.values()):
        conn.execute(CLOSE_ATTEMPTS, {"ids": some, "now": now})
    _end(conn, leases, JobStatus.DONE, now)


def withdraw_jobs(conn: Connection, job_ids: Collection[int], *, now: datetime) -> None:
    """Take jobs away that still wait."""
    task_queues.dequeue(conn, job_ids)
    _end(conn, job_ids, JobStatus.KILLED, now)


def _end(conn: Connection, job_ids: Collection[int], status: JobStatus, now: datetime) -> None:
    for ids in sql.split_batches(job_ids):
        conn.execute(END_JOBS, {"ids": ids, "the_status": status.value, "now": now})
