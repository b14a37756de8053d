"""Nodes that take no jobs for a while: excluded by the ends of pilots, tried again, readmitted."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import count

import pytest
from sqlalchemy import Connection, Engine, text, update

from cs_config.tree.address import QueueAddress
from examples.servers.starting import wait_until
from requirements.states import PilotStatus
from taskqueue.db import database
from taskqueue.errors import NodeNotExcluded
from taskqueue.pilots import nodes, pilots
from taskqueue.pilots.nodes import NodeExclusion
from taskqueue.schema.tables import attempts
from tests.support import databases
from tests.support.factories import stored_rows

QUEUE = QueueAddress(site="LCG.CERN.ch", ce="ce01", queue="long")
_NUMBERS = count()


@pytest.fixture
def conn(engine: Engine) -> Iterator[Connection]:
    with database.writing(engine) as conn:
        yield conn


def start(conn: Connection, now: datetime, *, node: str = "n1", vo: str = "lhcb") -> str | None:
    """A pilot that starts on a node; its stamp if it may take jobs there, else it ends."""
    stamp = f"pilot{next(_NUMBERS)}"
    pilots.register(conn, stamp=stamp, vo=vo, queue=QUEUE, submitted_by="director", now=now)
    if (why := nodes.admit_pilot(conn, stamp, node, now=now)) is None:
        pilots.set_status(conn, stamp, PilotStatus.RUNNING, now=now)
        return stamp
    pilots.set_status(conn, stamp, PilotStatus.FAILED, reason=f"excluded: {why.reason}", now=now)
    return None


def break_pilot(conn: Connection, now: datetime, *, node: str = "n1", vo: str = "lhcb") -> None:
    """A pilot that takes jobs on a node, and ends because of it."""
    stamp = start(conn, now, node=node, vo=vo)
    assert stamp is not None
    end(conn, stamp, now)


def end(conn: Connection, stamp: str, now: datetime) -> None:
    pilots.set_status(conn, stamp, PilotStatus.FAILED, reason="no space left", host_trouble=True, now=now)


def finish_job(conn: Connection, stamp: str | None, now: datetime) -> None:
    """A job of a pilot whose payload ends."""
    [job_id] = stored_rows.job_ids(conn, now)
    stored_rows.open_attempt(conn, job_id, now)
    ended = {"stamp": stamp, "closed_at": now, "closed_as": "finished"}
    conn.execute(update(attempts).where(attempts.c.job_id == job_id).values(**ended))
    stored_rows.force_pilot(conn, stamp, last_seen_at=now)


def exclude(conn: Connection, now: datetime, **where: str) -> None:
    for minute in (0, 1, 2):
        break_pilot(conn, now + timedelta(minutes=minute), **where)


def test_an_excluded_node_gets_one_pilot_every_few_minutes(conn: Connection, now: datetime) -> None:
    exclude(conn, now)
    minutes = [start(conn, now + timedelta(minutes=minute)) is not None for minute in range(3, 13)]

    assert minutes == [minute in (7, 12) for minute in range(3, 13)]


def test_of_two_pilots_that_come_at_once_one_tries_an_excluded_node(
    postgresql: Engine, now: datetime
) -> None:
    later = now + timedelta(minutes=8)
    with database.writing(postgresql) as conn:
        exclude(conn, now)
        for stamp in ("first", "second"):
            pilots.register(conn, stamp=stamp, vo="lhcb", queue=QUEUE, submitted_by="director", now=later)

    def admit_second() -> NodeExclusion | None:
        with database.writing(postgresql) as conn:
            return nodes.admit_pilot(conn, "second", "n1", now=later)

    with ThreadPoolExecutor(1) as pool:
        with database.writing(postgresql) as conn:
            assert nodes.admit_pilot(conn, "first", "n1", now=later) is None
            second = pool.submit(admit_second)
            wait_until(lambda: second.done() or _waits_for_a_lock(postgresql))
        refused = second.result(timeout=300)

    assert refused is not None


def _waits_for_a_lock(engine: Engine) -> bool:
    query = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    return bool(databases.scalar(engine, query))


def test_a_trial_that_fails_keeps_a_node_excluded_and_the_next_comes_after_minutes(
    conn: Connection, now: datetime
) -> None:
    exclude(conn, now)
    break_pilot(conn, now + timedelta(minutes=8))

    assert start(conn, now + timedelta(minutes=12)) is None
    [found] = nodes.list_excluded(conn, now=now + timedelta(minutes=12))
    assert (found.site, found.node, found.vo, found.reason) == (QUEUE.site, "n1", "lhcb", "no space left")
    assert (found.since, found.last) == (now, now + timedelta(minutes=8))
    assert found.until == now + timedelta(minutes=61), "an hour after the last but two"
    assert nodes.list_excluded(conn, now=found.until)
    assert nodes.list_excluded(conn, now=found.until + timedelta(seconds=1)) == []
    assert found.next_trial_at == now + timedelta(minutes=13)
    assert start(conn, now + timedelta(minutes=13)) is not None


def test_the_first_good_job_readmits_a_node_also_of_a_pilot_that_runs_on(
    conn: Connection, now: datetime
) -> None:
    exclude(conn, now)
    trial = start(conn, now + timedelta(minutes=7))
    assert start(conn, now + timedelta(minutes=8)) is None

    finish_job(conn, trial, now + timedelta(minutes=9))

    assert start(conn, now + timedelta(minutes=9)) is not None
    assert nodes.list_excluded(conn, now=now + timedelta(minutes=9)) == []


def test_a_job_that_runs_for_a_while_readmits_its_node(conn: Connection, now: datetime) -> None:
    exclude(conn, now)
    trial = start(conn, now + timedelta(minutes=7))
    assert trial is not None
    [job_id] = stored_rows.job_ids(conn, now)
    stored_rows.open_attempt(conn, job_id, now)
    began = {"stamp": trial, "started_at": now + timedelta(minutes=8)}
    conn.execute(update(attempts).where(attempts.c.job_id == job_id).values(**began))
    stored_rows.force_pilot(conn, trial, last_seen_at=now + timedelta(minutes=8))

    assert nodes.list_excluded(conn, now=now + timedelta(minutes=17))
    assert nodes.list_excluded(conn, now=now + timedelta(minutes=18)) == []


def test_a_pilot_that_was_there_before_and_ends_a_job_later_readmits_its_node(
    conn: Connection, now: datetime
) -> None:
    older = start(conn, now - timedelta(minutes=10))
    exclude(conn, now)
    assert nodes.list_excluded(conn, now=now + timedelta(minutes=3))

    finish_job(conn, older, now + timedelta(minutes=4))

    assert nodes.list_excluded(conn, now=now + timedelta(minutes=4)) == []


def test_what_a_pilot_did_before_the_trouble_does_not_readmit_its_node(
    conn: Connection, now: datetime
) -> None:
    older = start(conn, now - timedelta(minutes=40))
    assert older is not None
    finish_job(conn, older, now - timedelta(minutes=30))
    [job_id] = stored_rows.job_ids(conn, now)
    stored_rows.open_attempt(conn, job_id, now)
    began = {"stamp": older, "started_at": now - timedelta(minutes=20)}
    conn.execute(update(attempts).where(attempts.c.job_id == job_id).values(**began))
    exclude(conn, now)

    stored_rows.force_pilot(conn, older, last_seen_at=now + timedelta(minutes=4))
    assert nodes.list_excluded(conn, now=now + timedelta(minutes=4))

    pilots.set_status(conn, older, PilotStatus.DONE, now=now + timedelta(minutes=5))
    assert nodes.list_excluded(conn, now=now + timedelta(minutes=5)) == []


def test_an_admin_readmits_a_node_for_all_vos_and_what_follows_counts_anew(
    conn: Connection, now: datetime
) -> None:
    exclude(conn, now)
    exclude(conn, now, vo="cms")
    exclude(conn, now, node="n2")
    later = now + timedelta(minutes=3)
    assert [(each.node, each.vo) for each in nodes.list_excluded(conn, now=later)] == [
        ("n1", "cms"),
        ("n1", "lhcb"),
        ("n2", "lhcb"),
    ]
    assert nodes.list_excluded(conn, site="LCG.Other.org", now=later) == []
    assert [each.node for each in nodes.list_excluded(conn, vos=["cms"], now=later)] == ["n1"]

    nodes.readmit(conn, QUEUE.site, "n1", now=later)

    assert [each.node for each in nodes.list_excluded(conn, site=QUEUE.site, now=later)] == ["n2"]
    with pytest.raises(
        NodeNotExcluded, match=r"excluded node n22 of LCG\.CERN\.ch does not exist, did you mean n2"
    ):
        nodes.readmit(conn, QUEUE.site, "n22", now=later)
    with pytest.raises(NodeNotExcluded):
        nodes.readmit(conn, QUEUE.site, "n1", now=later)
    exclude(conn, later)
    assert len(nodes.list_excluded(conn, now=later + timedelta(minutes=3))) == 2


def test_a_node_without_further_ends_is_readmitted_after_an_hour(conn: Connection, now: datetime) -> None:
    exclude(conn, now)

    assert nodes.list_excluded(conn, now=now + timedelta(minutes=60))
    assert nodes.list_excluded(conn, now=now + timedelta(minutes=61)) == []
    assert start(conn, now + timedelta(minutes=61)) is not None
