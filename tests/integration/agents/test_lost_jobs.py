"""Jobs whose pilots were lost: rules of retry come before the maximum of reschedulings."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine

from agents import lost_jobs
from optimizers.chain import batch
from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.errors import StaleLease
from taskqueue.jobs import descriptions
from taskqueue.leases.retries import RETRIED
from tests.support.factories import pilot_reports
from tests.support.factories.stored_rows import service_up
from tests.support.factories.submitted_jobs import OPERATOR, claim, grid, job, submit

MINUTE = timedelta(minutes=1)
LATER = 1_000 * MINUTE


def _run(engine: Engine, job_id: int, now: datetime) -> str:
    """Start the job at a pilot; its lease."""
    batch.optimize(engine, grid(), [job_id], now=now)
    [claimed] = claim(engine, now)
    pilot_reports.start(engine, claimed.lease, lease_time=5 * MINUTE, now=now)
    return claimed.lease


def _lose(engine: Engine, now: datetime) -> datetime:
    """Let the agent find that the pilot is silent, and that its payload must have ended; the time of that."""
    for minutes in (500, 999):
        lost_jobs.cycle(engine, grid(), now=now + minutes * MINUTE, holder="me")
    return now + LATER


def test_a_rule_moves_a_lost_job_to_another_site_and_counts_for_itself(engine: Engine, now: datetime) -> None:
    source = {"Executable": "a", "VO": "lhcb", "Owner": "eve", "Retry": "pilot lost: another site"}
    [job_id] = submit(engine, grid(), now, source, submitter=OPERATOR)
    service_up(engine, now, now + 10 * LATER)
    lease = _run(engine, job_id, now)
    later = _lose(engine, now)
    found = job(engine, job_id)
    assert (found.status, found.minor_status, found.reschedules) == (JobStatus.RESCHEDULED, RETRIED, 0)
    assert found.application_status == "pilot lost; BannedSites none → A.B.ch; retry 1 of 1"
    with database.reading(engine) as conn:
        assert descriptions.read_description(conn, job_id).body["BannedSites"] == ["A.B.ch"]
    # The description is another one: no pilot goes on with the old one.
    with database.writing(engine) as conn, pytest.raises(StaleLease):
        pilot_reports.heartbeat(conn, lease, lease_time=5 * MINUTE, now=later)
    # The next loss is counted as without rules.
    _run(engine, job_id, later)
    _lose(engine, later)
    found = job(engine, job_id)
    assert (found.minor_status, found.reschedules) == ("Job Rescheduled", 1)
