"""Storing new jobs in bulk: for the optimizers to look at, or Waiting where they need not."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final

from sqlalchemy import Connection

from taskqueue import descriptions, log, row_ids, task_queues
from taskqueue.bulk import BulkInsert
from taskqueue.descriptions import NewDescription
from taskqueue.placeholders import Parameters
from taskqueue.preparing import Verdict
from taskqueue.states import JobStatus
from taskqueue.tables import jobs

ACCEPTED = "Job accepted"

#: As given for each job.
_STATED = ("vo", "owner", "owner_group", "job_name", "job_type", "job_group", "priority")
_VARYING = ("job_id", *_STATED, "site", "description_id", "parameters")
_COMMON = ("status", "application_status", "epoch", "reschedules", "submitted_at", "updated_at")
STORE = BulkInsert(jobs, varying=_VARYING, common=(*_COMMON, "minor_status", "due_at"))
STORE_WAITING = BulkInsert(
    jobs, varying=(*_VARYING, "minor_status", "submit_pool", "task_queue_id"), common=_COMMON
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job to be stored."""

    vo: str  #: lower case
    owner: str
    owner_group: str
    job_name: str = ""
    job_type: str = ""
    job_group: str = ""
    priority: float = 1.0
    parameters: Parameters | None = None  #: for the placeholders of its description
    site: str = "ANY"  #: what it asks


#: A job with the place of its description in a list.
Placed = tuple[int, NewJob]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What the optimizers would say of jobs that need not be looked at."""

    verdict: Verdict  #: Waiting
    task_queue_id: int  #: held


#: Those whose descriptions have these places in a list.
Arrivals = Mapping[int, Arrival]

_NONE: Final[Arrivals] = MappingProxyType({})
_Numbered = tuple[int, int, NewJob]  # id, place of the description, job


def submit(
    conn: Connection, *, description: NewDescription, jobs: Sequence[NewJob], now: datetime
) -> list[int]:
    """Store jobs that share a description; their ids in the same order."""
    return store(conn, [description], [(0, job) for job in jobs], now=now)


def store(
    conn: Connection,
    described: Sequence[NewDescription],
    placed: Sequence[Placed],
    *,
    arrivals: Arrivals = _NONE,
    now: datetime,
) -> list[int]:
    """Store jobs, Received and due for the optimizers; their ids in the same order.

    Args:
        conn: In a writing transaction.
        described: Descriptions, each with a job.
        placed: The jobs, each with the place of its description.
        arrivals: Which of them are stored as Waiting, where and how.
        now: The time.
    """
    if not placed:
        return []
    description_ids = descriptions.store(conn, described)
    job_ids = row_ids.take(conn, jobs, len(placed))
    numbered = [(job_id, place, job) for job_id, (place, job) in zip(job_ids, placed, strict=True)]
    arrived = [each for each in numbered if each[1] in arrivals]
    due = [each for each in numbered if each[1] not in arrivals] if arrived else numbered
    _store_due(conn, due, description_ids, now)
    _store_arrived(conn, arrived, description_ids, arrivals, now)
    received = _received(now), list(job_ids)
    log.append_alike(conn, [received, *_logged(arrived, arrivals, now)])
    return list(job_ids)


def _store_due(
    conn: Connection, numbered: Sequence[_Numbered], description_ids: Sequence[int], now: datetime
) -> None:
    if numbered:
        status = {"status": JobStatus.RECEIVED.value, "minor_status": ACCEPTED, "due_at": now}
        columns = _columns(numbered, description_ids)
        columns["site"] = [job.site for _, _, job in numbered]
        STORE.execute(conn, columns, **status, **_fresh(now))


def _store_arrived(
    conn: Connection,
    numbered: Sequence[_Numbered],
    description_ids: Sequence[int],
    arrivals: Arrivals,
    now: datetime,
) -> None:
    if not numbered:
        return
    columns = _columns(numbered, description_ids)
    verdicts = [arrivals[place].verdict for _, place, _ in numbered]
    columns["site"] = [verdict.site for verdict in verdicts]
    columns["minor_status"] = [verdict.minor_status for verdict in verdicts]
    columns["submit_pool"] = [verdict.submit_pool for verdict in verdicts]
    columns["task_queue_id"] = [arrivals[place].task_queue_id for _, place, _ in numbered]
    STORE_WAITING.execute(conn, columns, status=JobStatus.WAITING.value, **_fresh(now))
    entries = [(job_id, arrivals[place].task_queue_id, job.priority) for job_id, place, job in numbered]
    task_queues.wait(conn, entries)


def _columns(numbered: Sequence[_Numbered], description_ids: Sequence[int]) -> dict[str, list[object]]:
    """What is stored of each job, however it is stored."""
    new = [job for _, _, job in numbered]
    return {
        "job_id": [job_id for job_id, _, _ in numbered],
        **{name: [getattr(job, name) for job in new] for name in _STATED},
        "description_id": [description_ids[place] for _, place, _ in numbered],
        "parameters": [None if job.parameters is None else json.dumps(job.parameters) for job in new],
    }


def _fresh(now: datetime) -> dict[str, object]:
    """What is the same for all."""
    return {"application_status": "", "epoch": 0, "reschedules": 0, "submitted_at": now, "updated_at": now}


def _received(now: datetime) -> log.LogEntry:
    return log.LogEntry(
        job_id=0,
        at=now,
        from_status=None,
        to_status=JobStatus.RECEIVED,
        minor_status=ACCEPTED,
        source="JobManager",
    )


def _logged(
    arrived: Sequence[_Numbered], arrivals: Arrivals, now: datetime
) -> Iterator[tuple[log.LogEntry, Sequence[int]]]:
    """The jobs of which the log says the same."""
    alike: defaultdict[int, list[int]] = defaultdict(list)
    for job_id, place, _ in arrived:
        alike[place].append(job_id)
    for place, job_ids in alike.items():
        yield arrivals[place].verdict.entry(JobStatus.RECEIVED, epoch=0, now=now), job_ids
