"""Two processes of one director or gateway do not work at once."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine

from taskqueue.db import database
from taskqueue.errors import OtherProcess
from taskqueue.sites import processes
from taskqueue.sites.processes import SiteProcess

LEASE = timedelta(minutes=5)


def report(engine: Engine, holder: str, now: datetime) -> None:
    said = SiteProcess(kind="director", name="d", vo="lhcb", holder=holder, every=60, seen_at=now)
    with database.writing(engine) as conn:
        processes.report(conn, said, lease=LEASE, now=now)


def test_a_second_process_waits_for_the_end_of_the_lease(engine: Engine, now: datetime) -> None:
    report(engine, "one", now)
    with pytest.raises(OtherProcess):
        report(engine, "two", now + LEASE / 2)
    report(engine, "two", now + LEASE)


def test_a_lease_of_before_the_clock_was_set_back_is_over(engine: Engine, now: datetime) -> None:
    report(engine, "one", now + timedelta(seconds=1))
    with pytest.raises(OtherProcess):
        report(engine, "two", now)
    report(engine, "one", now + timedelta(days=1))
    report(engine, "two", now)
