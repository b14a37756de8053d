"""A job that kills the process which looks at it is found out; the others go on."""

import ctypes
import faulthandler
import os
import signal
from datetime import datetime

import pytest
from sqlalchemy import Engine, select

from agents import leader, sweep
from optimizers.chain import chain
from optimizers.chain.chain import ChainContext, JobContext, Outcome
from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.jobs import optimizer_queue
from taskqueue.schema.tables import trials as table
from tests.support import databases
from tests.support.factories import stored_rows
from tests.support.factories.submitted_jobs import grid, job, submit, waiting

JOB = {"Executable": "a.sh"}
POISON = {**JOB, "JobName": "poison"}


def _deadly(candidate: JobContext, context: ChainContext) -> Outcome:
    """JobSanity with a defect in a library that is written in C."""
    if candidate.description.job_name == "poison":
        ctypes.string_at(0)
    return chain.installed_steps()["JobSanity"](candidate, context)


def _sweep_in_child(url: str, now: datetime, holder: str) -> int:
    """One cycle in a process of its own; the signal that ended it, 0 if none did."""
    child = os.fork()
    if child == 0:
        status = 1
        faulthandler.disable()  # it is meant
        try:
            steps = {**chain.installed_steps(), "JobSanity": _deadly}
            sweep.cycle(database.connect(url), grid(), now=now, holder=holder, steps=steps)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def test_a_job_that_kills_the_sweep_fails_alone(database_url: str, now: datetime) -> None:
    engine = database.connect(database_url)
    good = submit(engine, grid(), now, *[JOB] * 45)
    [bad] = submit(engine, grid(), now, POISON)
    good += submit(engine, grid(), now, *[JOB] * 4)
    engine.dispose()
    ends = []
    for number in range(1, 7):
        ends.append(_sweep_in_child(database_url, now + number * 2 * leader.LEASE_TIME, f"holder {number}"))
    assert waiting(engine) == good
    found = job(engine, bad)
    assert found.status is JobStatus.FAILED
    assert "crashed 4 times" in found.application_status
    assert ends == [signal.SIGSEGV] * 4 + [0, 0]
    left = databases.scalars(engine, select(table.c.job_id))
    assert set(left) <= {bad}
    engine.dispose()


def test_fresh_jobs_do_not_wait_for_those_under_suspicion(database_url: str, now: datetime) -> None:
    engine = database.connect(database_url)
    submit(engine, grid(), now, POISON)
    engine.dispose()
    for number in range(1, 4):
        fresh = submit(engine, grid(), now + number * leader.LEASE_TIME, JOB)
        engine.dispose()
        assert _sweep_in_child(database_url, now + number * 2 * leader.LEASE_TIME, f"holder {number}")
        if number > 1:  # at first nobody knows
            assert set(fresh) <= set(waiting(engine))
            engine.dispose()


def test_an_error_that_the_process_survives_is_no_crash(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(engine, grid(), now, JOB)
    for _ in range(6):
        with monkeypatch.context() as patch:
            patch.setattr("optimizers.chain.batch.optimize", _away)
            with pytest.raises(ConnectionError):
                sweep.cycle(engine, grid(), now=now + leader.LEASE_TIME, holder="me")
    assert databases.count(engine, table) == 1
    assert sweep.cycle(engine, grid(), now=now + leader.LEASE_TIME, holder="me") == sweep.SweepResult(
        waiting=1
    )
    assert databases.count(engine, table) == 0


def _away(*_: object, **__: object) -> None:
    raise ConnectionError


def test_crashes_are_counted_by_the_holders_that_are_gone(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        [job_id] = stored_rows.job_ids(conn, now)
        for holder in ("a", "a", "b", "c"):
            optimizer_queue.begin_trial(conn, [job_id], holder=holder)
        assert optimizer_queue.count_crashes(conn, [job_id], holder="c") == {job_id: 2}
        assert optimizer_queue.count_crashes(conn, [job_id], holder="d") == {job_id: 3}
        optimizer_queue.end_trial(conn, [job_id], holder="b")
        assert optimizer_queue.count_crashes(conn, [job_id], holder="c") == {job_id: 2}
        optimizer_queue.end_trial(conn, [job_id], holder="c")
        assert optimizer_queue.count_crashes(conn, [job_id], holder="d") == {}
