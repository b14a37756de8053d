"""A VO whose options nothing can be computed with stops the agents for nobody else.

No such options can be stored: here they are put into the configuration behind its back.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine, update

from agents import lost_jobs, pools, priorities
from agents.leader import LeadershipLostError
from agents.retention import ended_jobs, retention
from cs_config.options.operations import options_for
from cs_config.tree.configuration import Configuration
from optimizers.chain import batch
from pilotage.service import lease_reports
from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.retention import OldJobs
from taskqueue.schema.tables import attempts
from tests.support.factories import pilot_reports, stored_rows
from tests.support.factories.stored_rows import service_up
from tests.support.factories.submitted_jobs import GRID, OPERATOR, claim, grid, job, submit, way

MINUTE = timedelta(minutes=1)


def broken(section: str, **options: float) -> Configuration:
    """The grid in which this section of the options of the VO evil is as no validation would have it."""
    config = grid(GRID + "Operations: {evil: {Pools: {}}}\n")
    evil = options_for(config, "evil")
    wrong = getattr(evil, section).model_copy(update=options)
    return replace(config, vo_operations={"evil": evil.model_copy(update={section: wrong})})


def arrive(engine: Engine, now: datetime, asked: Mapping[str, object] | None = None) -> tuple[int, int]:
    """A job of each of the VOs evil and lhcb that waits."""
    sources = [{"Executable": "a", "VO": vo, "Owner": "eve", **(asked or {})} for vo in ("evil", "lhcb")]
    one, other = submit(engine, grid(), now, *sources, submitter=OPERATOR)
    batch.optimize(engine, grid(), [one, other], now=now)
    return one, other


def run(engine: Engine, now: datetime) -> tuple[int, int]:
    ids = arrive(engine, now)
    with database.writing(engine) as conn:
        for each in claim(conn, now, 2):
            pilot_reports.start(conn, each.lease, lease_time=5 * MINUTE, now=now)
    service_up(engine, now, now + 600 * MINUTE)
    return ids


def test_silent_jobs_of_the_others_are_found(
    engine: Engine, now: datetime, caplog: pytest.LogCaptureFixture
) -> None:
    of_evil, of_lhcb = run(engine, now)
    config = broken("leases", stalled_time=1e15)
    result = lost_jobs.cycle(engine, config, now=now + 31 * MINUTE, holder="me")
    assert result is not None
    assert (result.stalled, result.broken) == (1, ("evil",))
    assert job(engine, of_lhcb).status is JobStatus.STALLED
    assert job(engine, of_evil).status is JobStatus.RUNNING
    assert "lost-jobs: the work for the VO evil failed, the other VOs are continued" in caplog.text


def test_a_grace_time_of_one_vo_keeps_no_job_of_another_stalled(engine: Engine, now: datetime) -> None:
    _, of_lhcb = run(engine, now)
    config = broken("leases", stalled_grace=1e15)
    for minutes in (31, 397):
        lost_jobs.cycle(engine, config, now=now + minutes * MINUTE, holder="me")
    assert JobStatus.RESCHEDULED in way(engine, of_lhcb)


def test_pools_of_the_others_are_mapped_anew(engine: Engine, now: datetime) -> None:
    arrive(engine, now, {"Requirements": {"Memory": 5000}})
    assert pools.cycle(engine, grid(), now=now, holder="me") is not None
    text = GRID.replace("4000", "6000") + "Operations: {evil: {Pools: {}}}\n"
    changed = replace(
        grid(text, version=2), vo_operations=broken("pools", refresh_interval=1e15).vo_operations
    )
    result = pools.cycle(engine, changed, now=now + MINUTE, holder="me")
    assert result is not None
    assert result.vos == ("lhcb",)
    assert result.changed == 1


def test_rows_of_the_others_are_removed(
    engine: Engine, now: datetime, caplog: pytest.LogCaptureFixture
) -> None:
    run(engine, now)
    result = retention.cycle(engine, broken("retention", jobs=1e6), now=now, holder="me")
    assert result is not None
    assert result.broken == ("evil",)
    assert "retention: the work for the VO evil failed" in caplog.text


def test_a_vo_whose_rows_take_too_long_keeps_none_of_the_others(
    postgresql: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = run(postgresql, now)
    with database.writing(postgresql) as conn:
        conn.execute(update(attempts).values(closed_at=now, closed_as="finished"))
        for job_id in ids:
            stored_rows.force(conn, job_id, status="Done", updated_at=now - timedelta(days=40))
    remove_logs, served = ended_jobs.REMOVALS["logs"], []

    def remove_slowly(conn: Connection, old: OldJobs) -> int:
        if "evil" in old.before:
            conn.exec_driver_sql("SET LOCAL statement_timeout = 1")
            conn.exec_driver_sql("SELECT pg_sleep(60)")
        served.append(*old.before)
        return remove_logs(conn, old)

    monkeypatch.setitem(ended_jobs.REMOVALS, "logs", remove_slowly)  # type: ignore[misc]
    result = retention.cycle(postgresql, grid(), now=now, holder="me")
    assert result is not None
    assert (result.broken, served) == (("evil",), ["lhcb"])


def test_task_queues_of_the_others_are_weighed(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrive(engine, now)
    weigh = priorities._update_weights

    def weigh_but_evil(mine, holders, *others):  # type: ignore[no-untyped-def]
        if holders.vo == "evil":
            raise OverflowError("no such weight")
        return weigh(mine, holders, *others)

    monkeypatch.setattr(priorities, "_update_weights", weigh_but_evil)
    result = priorities.cycle(engine, grid(), now=now, holder="me", memory=priorities.PriorityState())
    assert result is not None
    assert (result.weighed, result.broken) == (1, ("evil",))


def test_a_turn_that_is_lost_ends_the_work_for_all(engine: Engine, now: datetime) -> None:
    run(engine, now)
    mine = lost_jobs.leader.acquire(engine, "lost-jobs", holder="me", now=now)
    assert mine is not None
    assert lost_jobs.leader.acquire(engine, "lost-jobs", holder="other", now=now + MINUTE) is not None

    def write(vo: str) -> None:
        with mine.writing():
            pass

    with pytest.raises(LeadershipLostError):
        mine.serve_each(["evil", "lhcb"], write)


def test_signs_of_life_of_the_others_prolong_their_leases(caplog: pytest.LogCaptureFixture) -> None:
    config = broken("leases", stalled_time=1e15)
    with caplog.at_level(logging.WARNING):
        rules = lease_reports.build_rules(config)
    assert "evil" not in rules.lease_times, "it has the default"
    assert "the lease time of the VO evil" in caplog.text
