"""Jobs whose whole way is in the log, for tests of what is added up from it."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine

from agents import accounting
from requirements.requirement_class import RequirementClass
from requirements.resource import Location
from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.jobs import control, log
from taskqueue.jobs.log import LogEntry
from taskqueue.leases.reports import PayloadResult
from tests.support.factories import pilot_reports, queued_jobs
from tests.support.transactions import own_transaction


@own_transaction
def put(
    conn: Connection, now: datetime, count: int = 1, *, owner: str = "alice", vo: str = "lhcb"
) -> list[int]:
    """New jobs that wait; their ids."""
    asked = RequirementClass(vo=vo, cpu_time=3600)
    job_ids = queued_jobs.put(conn, now, count, asked=asked, owner=owner, group=f"{vo}_user")
    log.append(conn, [_waits(job_id, now) for job_id in job_ids])
    return job_ids


def begin(
    conn: Connection, job_ids: Sequence[int], now: datetime, *, place: Location = queued_jobs.ANYWHERE
) -> list[str]:
    """Hand jobs to pilots that begin them at once; their leases. No others of their task queues may wait."""
    task_queue_ids = {queued_jobs.task_queue_of(conn, job_id) for job_id in job_ids}
    claimed = queued_jobs.claim(conn, task_queue_ids, now, count=len(job_ids), place=place)
    for each in claimed:
        pilot_reports.start(conn, each.lease, lease_time=queued_jobs.HOLDER.lease_time, now=now)
    return [each.lease for each in claimed]


def finish(
    conn: Connection, leases: Sequence[str], now: datetime, report: PayloadResult | None = None
) -> None:
    """End jobs; Done, if nothing else is said."""
    for lease in leases:
        pilot_reports.finish(conn, lease, report or PayloadResult(status="Done", exit_code=0), now=now)


def a_day(engine: Engine, now: datetime, *, site: str = "LCG.A.org", other: str = "LCG.B.org") -> None:
    """What three people of two VOs did at two sites in the day before, counted.

    ada of cms: two jobs of an hour at `site`, half of it CPU time; and one at `other`, which failed. bob of
    cms: one job that was killed while it waited. dora of dune: one of two hours at `site`.
    """
    day = timedelta(hours=20)
    begun = now.replace(minute=0, second=0, microsecond=0) - day
    hour = timedelta(hours=1)
    with database.writing(engine) as conn:
        for place, owner, vo, hours, report in (
            (site, "ada", "cms", 1, PayloadResult(status="Done", cpu_seconds=1800, cpu_power=10.0)),
            (site, "ada", "cms", 1, PayloadResult(status="Done", cpu_seconds=1800, cpu_power=10.0)),
            (other, "ada", "cms", 1, PayloadResult(status="Failed", exit_code=1)),
            (site, "dora", "dune", 2, PayloadResult(status="Done", cpu_seconds=7200)),
        ):
            job_ids = put(conn, begun, owner=owner, vo=vo)
            leases = begin(conn, job_ids, begun + hour, place=Location(site=place, ce="ce1", queue="long"))
            finish(conn, leases, begun + (1 + hours) * hour, report)
        killed = put(conn, begun, owner="bob", vo="cms")
        control.kill_jobs(conn, killed, source="test", now=begun + 3 * hour)
    count(engine, now)


def count(engine: Engine, now: datetime, *, holder: str = "tests") -> None:
    """Have everything counted that is known by then.

    The log is read where no transaction of the server may still add to it: also one of another database, or
    of autovacuum, is waited for.
    """
    for _ in range(2):
        assert accounting.cycle(engine, now=now, holder=holder) is not None
        assert log.LogFeed(engine).read_present(seconds=300) is not None


def _waits(job_id: int, now: datetime) -> LogEntry:
    return LogEntry(
        job_id=job_id,
        at=now,
        from_status=JobStatus.RECEIVED,
        to_status=JobStatus.WAITING,
        minor_status="Pilot Agent Submission",
        source="test",
    )
