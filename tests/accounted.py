"""Jobs whose whole way is in the log, for tests of what is added up from it."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection

from taskqueue import handover, log
from taskqueue.claims import Place
from taskqueue.handover import Finish
from taskqueue.log import LogEntry
from taskqueue.states import JobStatus
from tests import waiting


def put(conn: Connection, now: datetime, count: int = 1, *, owner: str = "alice") -> list[int]:
    """New jobs that wait; their ids."""
    job_ids = waiting.put(conn, now, count, owner=owner)
    log.append(conn, [_waits(job_id, now) for job_id in job_ids])
    return job_ids


def begin(
    conn: Connection, job_ids: Sequence[int], now: datetime, *, place: Place = waiting.ANYWHERE
) -> list[str]:
    """Hand jobs to pilots that begin them at once; their leases. No others of their task queues may wait."""
    task_queue_ids = {waiting.task_queue_of(conn, job_id) for job_id in job_ids}
    claimed = waiting.claim(conn, task_queue_ids, now, count=len(job_ids), place=place)
    for each in claimed:
        handover.start(conn, each.lease, lease_time=waiting.HOLDER.lease_time, now=now)
    return [each.lease for each in claimed]


def finish(conn: Connection, leases: Sequence[str], now: datetime, report: Finish | None = None) -> None:
    """End jobs; Done, if nothing else is said."""
    for lease in leases:
        handover.finish(conn, lease, report or Finish(status="Done", exit_code=0), now=now)


def _waits(job_id: int, now: datetime) -> LogEntry:
    return LogEntry(
        job_id=job_id,
        at=now,
        from_status=JobStatus.RECEIVED,
        to_status=JobStatus.WAITING,
        minor_status="Pilot Agent Submission",
        source="test",
    )
