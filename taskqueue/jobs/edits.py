"""Other descriptions for stored jobs that no pilot has: their users edit them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, select

from requirements.job_fields import WITH_JOB_ID
from requirements.states import WITHOUT_PILOT, JobStatus
from taskqueue.db import sql
from taskqueue.jobs import descriptions, transitions, withheld
from taskqueue.jobs.descriptions import Description
from taskqueue.leases import attempts
from taskqueue.schema.tables import jobs
from taskqueue.task_queues import task_queues

EDITED: Final = "Edited"

#: The old description in the WHERE: of two edits at once one has no effect.
STANDING = select(jobs.c.job_id, jobs.c.status, jobs.c.description_id).where(sql.is_listed(jobs.c.job_id))
DESCRIBE = sql.bulk_update(jobs, "description_id", *WITH_JOB_ID, key="job_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedJob:
    """A job with its new description."""

    job_id: int
    description_id: int  #: of the description that was edited
    place: int  #: of the new one
    texts: Mapping[str, str]  #: by the names of `WITH_JOB_ID`, each with the id of the job
    note: str  #: what was changed, for people


def replace_descriptions(conn: Connection, edited: Sequence[EditedJob], new: Sequence[Description]) -> None:
    """Give locked jobs new descriptions; old ones without jobs are removed."""
    if not edited:
        return
    used = sorted({each.place for each in edited})
    ids = dict(zip(used, descriptions.store_descriptions(conn, [new[place] for place in used]), strict=True))
    columns: dict[str, Sequence[object]] = {
        "job_id": [each.job_id for each in edited],
        "description_id": [ids[each.place] for each in edited],
        **{name: [each.texts[name] for each in edited] for name in WITH_JOB_ID},
    }
    DESCRIBE.execute(conn, columns)
    descriptions.remove_unused(conn, {each.description_id for each in edited})


def edit_jobs(
    conn: Connection,
    edited: Sequence[EditedJob],
    new: Sequence[Description],
    *,
    minor: str = EDITED,
    source: str,
    now: datetime,
) -> list[int]:
    """Give those of the jobs that no pilot has their new descriptions; their ids: notify the optimizers.

    `minor` says in their logs who has edited them: a user, or a rule. A waiting job leaves its task queue in
    this transaction, so that a claim gets the old description or the new one. One that is kept from pilots
    stays so.
    """
    by_id = {each.job_id: each for each in edited}
    transitions.lock_jobs(conn, by_id)
    rows = sql.read_batches(conn, STANDING, by_id)
    status = {
        row.job_id: row.status
        for row in rows
        if row.status in WITHOUT_PILOT and row.description_id == by_id[row.job_id].description_id
    }
    replace_descriptions(conn, [by_id[job_id] for job_id in sorted(status)], new)
    notes = {job_id: by_id[job_id].note for job_id in status}
    kept = withheld.find_reasons(conn, status)
    transitions.log_note(conn, kept, minor=minor, application=notes, source=source, now=now)
    free = sorted(status.keys() - kept.keys())
    moved = transitions.move_jobs(
        conn,
        free,
        JobStatus.CHECKING,
        minor=minor,
        application={job_id: notes[job_id] for job_id in free},
        source=source,
        now=now,
        from_states=WITHOUT_PILOT,
    )
    task_queues.dequeue(conn, [job.job_id for job in moved if job.from_status is JobStatus.WAITING])
    attempts.end_lost(conn, free, closed_as=EDITED.lower())
    return sorted(status)
