"""Small submissions go through the optimizers before they are stored, in one transaction."""

import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine
from sqlalchemy import text as sql

from cs_config.options import bounds
from cs_config.tree.configuration import Configuration
from optimizers.chain import batch, chain
from optimizers.chain.chain import ChainContext, Done, Hold, JobContext, Outcome
from optimizers.submit import submission
from optimizers.submit.submission import Accepted
from requirements.errors import InvalidJob
from requirements.states import JobStatus
from taskqueue.db import database
from taskqueue.errors import QuotaExceeded
from taskqueue.jobs import log
from taskqueue.jobs.jobs import Job
from taskqueue.pools import pools
from taskqueue.schema.tables import queue_class_versions
from taskqueue.task_queues import task_queues
from tests.support import databases
from tests.support.factories import submitted_jobs
from tests.support.factories.submitted_jobs import ANN, GRID, grid, job, store_grid, submit, way

TEXT = """
Executable = "run.sh";
JobName = "{name}";
Site = {{"A.B.ch", "C.D.ch"}};
CPUTime = {seconds};
Requirements = other.Memory >= {memory};
"""
STRICT = f"{GRID}Operations: {{Defaults: {{JobScheduling: {{AllowInvalidSites: false}}}}}}\n"


def text(name: str, seconds: int = 3600, memory: int = 3000) -> str:
    return TEXT.format(name=name, seconds=seconds, memory=memory)


@pytest.fixture
def config(engine: Engine, now: datetime) -> Configuration:
    """One under which the pool of a first job has been resolved."""
    config = grid()
    first = decide(engine, config, now, text("first"))
    assert first.due == first.job_ids
    assert batch.optimize(engine, config, first.due, now=now).waiting == tuple(first.job_ids)
    return config


def decide(
    engine: Engine, config: Configuration, now: datetime, *sources: str | Mapping[str, object]
) -> Accepted:
    return submission.submit(engine, config, ANN, sources, now=now)


def shared(engine: Engine, job_id: int) -> tuple[Job, list[log.LogEntry]]:
    """A job and its log without its own values."""
    entries = [replace(line, job_id=0) for line in submitted_jobs.log_of(engine, job_id)]
    return replace(job(engine, job_id), job_id=0, job_name="", description_id=0), entries


def test_they_are_stored_as_the_optimizers_leave_them(
    engine: Engine, config: Configuration, now: datetime
) -> None:
    by_optimizers, [alone] = 1, decide(engine, config, now, text("alone")).job_ids
    both = decide(engine, config, now, text("a"), text("b"))
    assert (both.due, list(both.decided.waiting)) == ([], both.job_ids)
    for job_id in (alone, *both.job_ids):
        assert shared(engine, job_id) == shared(engine, by_optimizers)
    place = job(engine, alone).task_queue_id
    assert place is not None
    with database.reading(engine) as conn:
        assert task_queues.list_first_jobs(conn, [place], 10) == {
            place: (by_optimizers, alone, *both.job_ids)
        }
    assert [job(engine, job_id).job_name for job_id in both.job_ids] == ["a", "b"]


@pytest.mark.parametrize(
    "described",
    [
        {"Executable": "a", "Site": "No.Site.org"},
        {"Executable": "a", "JobPath": ["NoSuchStep"]},
        {"Executable": "a", "InputData": ["/lhcb/file"]},
        {"Executable": "a", "Arguments": "%s", "Parameters": ["x", "y"]},
        {"Executable": "a", "Site": "%s", "Parameters": ["A.B.ch", "No.Site.org"]},
        {"Executable": "a", "CPUTime": 10**9, "Requirements": {"Memory": 99_000}},
    ],
)
def test_the_result_is_the_same_before_and_after_they_are_stored(
    described: Mapping[str, object], engine: Engine, now: datetime
) -> None:
    config = grid(STRICT.replace("Defaults: {", "Defaults: {JobDescription: {CPUTime: {max: 1000000000}}, "))
    before = decide(engine, config, now, described)
    batch.optimize(engine, config, before.due, now=now)
    after = submit(engine, config, now, described)
    batch.optimize(engine, config, after, now=now)
    again = decide(engine, config, now, described)
    batch.optimize(engine, config, again.due, now=now)
    found = [shared(engine, job_id) for job_id in before.job_ids]
    assert found == [shared(engine, job_id) for job_id in after]
    assert found == [shared(engine, job_id) for job_id in again.job_ids]


def test_a_job_that_fails_and_one_that_is_held_are_stored_so(engine: Engine, now: datetime) -> None:
    def hold(candidate: JobContext, context: ChainContext) -> Outcome:
        return Hold(reason="for a while", delay=timedelta(minutes=5))

    steps = {**chain.installed_steps(), "Wait": chain.pure(hold)}
    sources = [{"Executable": "a", "JobPath": ["Wait"]}, {"Executable": "a", "Site": "No.Site.org"}]
    stored = submission.submit(engine, grid(STRICT), ANN, sources, now=now, steps=steps)
    held, failed = stored.job_ids
    assert (stored.due, stored.decided.held, stored.decided.failed) == ([], (held,), (failed,))
    assert (way(engine, held), way(engine, failed)) == (["Received", "Checking"], ["Received", "Failed"])
    assert job(engine, held).due_at == now + timedelta(minutes=5)
    assert job(engine, failed).ended_at == now
    assert stored.decided.outcomes["Wait", "Hold"] == 1


@pytest.mark.parametrize("key", [None, "k"])
def test_a_result_that_cannot_be_stored_leaves_the_jobs_to_the_optimizers(
    engine: Engine, now: datetime, key: str | None
) -> None:
    def poison(candidate: JobContext, context: ChainContext) -> Outcome:
        return Done(candidate=replace(candidate, minor_status=object()))  # type: ignore[arg-type]

    steps = {**chain.installed_steps(), "Poison": chain.pure(poison)}
    sources = [{"Executable": "a"}, {"Executable": "a", "JobPath": ["Poison"]}]
    stored = submission.submit(engine, grid(), ANN, sources, now=now, steps=steps, key=key)
    assert stored.due == stored.job_ids
    done = batch.optimize(engine, grid(), stored.due, now=now, steps=steps)
    assert (done.waiting, done.held) == ((stored.job_ids[0],), (stored.job_ids[1],))


def test_the_outcomes_are_counted_as_those_of_the_optimizers(
    engine: Engine, config: Configuration, now: datetime
) -> None:
    ids = submit(engine, config, now, text("a", seconds=7200))
    by_optimizers = batch.optimize(engine, config, ids, now=now)
    again = decide(engine, config, now, text("a"), text("b"))
    assert again.decided.outcomes == {key: 2 * count for key, count in by_optimizers.outcomes.items()}


def test_a_step_that_is_not_pure_runs_after_its_job_is_stored(engine: Engine, now: datetime) -> None:
    ran: list[int] = []

    def look_up(candidate: JobContext, context: ChainContext) -> Outcome:
        ran.append(candidate.job_id)
        return Hold(reason="")

    steps = {**chain.installed_steps(), "LookUp": look_up}
    sources = [{"Executable": "a"}, {"Executable": "a", "JobPath": ["LookUp"]}]
    stored = submission.submit(engine, grid(), ANN, sources, now=now, steps=steps)
    assert (stored.due, ran) == ([stored.job_ids[1]], [])
    batch.optimize(engine, grid(), stored.due, now=now, steps=steps)
    assert ran == stored.due


def test_jobs_of_a_new_pool_are_left_to_the_optimizers(
    engine: Engine, config: Configuration, now: datetime
) -> None:
    memory = {"a": 3000, "b": 3500, "c": 3000, "d": 3500}
    mixed = decide(engine, config, now, *(text(name, memory=some) for name, some in memory.items()))
    assert mixed.due == [mixed.job_ids[1], mixed.job_ids[3]]
    found = [job(engine, job_id) for job_id in mixed.job_ids]
    assert [each.job_name for each in found] == list(memory)
    received, waiting = JobStatus.RECEIVED, JobStatus.WAITING
    assert [each.status for each in found] == [waiting, received, waiting, received]
    assert batch.optimize(engine, config, mixed.job_ids, now=now).waiting == tuple(mixed.due)


def test_a_job_that_an_old_configuration_fails_is_left_to_the_optimizers(
    engine: Engine, now: datetime
) -> None:
    store_grid(engine, now)
    store_grid(engine, now, f"{GRID}# again")
    accepted = decide(engine, grid(STRICT), now, {"Executable": "a", "Site": "E.F.ch"})
    assert accepted.due == accepted.job_ids
    assert batch.optimize(engine, grid(version=2), accepted.due, now=now).waiting == tuple(accepted.job_ids)


def test_what_was_decided_by_another_version_than_the_stored_one_is_decided_again(
    engine: Engine, config: Configuration, now: datetime
) -> None:
    """The configuration was replaced, and the pools were refreshed, between the decision and the commit."""
    databases.execute(engine, queue_class_versions.update().values(config_version=config.version + 1))
    late = decide(engine, config, now, text("late"), {"Executable": "a"})
    assert late.due == [late.job_ids[0]]
    newer = grid(version=config.version + 1)
    assert decide(engine, newer, now, text("again")).due == []


@pytest.mark.parametrize(("more", "decided"), [(0, True), (1, False)])
def test_larger_submissions_are_left_to_the_optimizers(
    more: int, decided: bool, engine: Engine, now: datetime
) -> None:
    some = decide(engine, grid(), now, {"Executable": "a", "Parameters": bounds.DECIDED_JOBS + more})
    assert (some.due == []) is decided
    assert len(some.due) == (0 if decided else len(some.job_ids))


def test_submissions_to_one_pool_do_not_wait_for_each_other(postgresql: Engine, now: datetime) -> None:
    config = grid()
    batch.optimize(postgresql, config, decide(postgresql, config, now, text("first")).due, now=now)
    [pool_id] = {job(postgresql, 1).submit_pool}
    assert pool_id is not None
    with database.writing(postgresql) as rival:
        assert pools.lock_resolved(rival, [pool_id], now=now + timedelta(hours=1)) == {pool_id}
        assert decide(postgresql, config, now + timedelta(hours=1), text("meanwhile")).due == []
    with database.writing(postgresql) as rival:
        rival.execute(sql("SELECT * FROM submit_pools FOR UPDATE"))  # to remove it
        removed = decide(postgresql, config, now, text("meanwhile"))
    assert removed.due == removed.job_ids
    with database.writing(postgresql) as rival:
        rival.execute(sql("SELECT * FROM queue_class_versions FOR UPDATE"))  # to refresh its VO
        refreshed = decide(postgresql, config, now, text("meanwhile"))
    assert refreshed.due == refreshed.job_ids


def test_a_pool_is_not_removed_while_a_submission_uses_it(postgresql: Engine, now: datetime) -> None:
    batch.optimize(postgresql, grid(), decide(postgresql, grid(), now, text("first")).due, now=now)
    [pool_id] = {job(postgresql, 1).submit_pool}
    assert pool_id is not None
    with database.writing(postgresql) as conn:
        conn.execute(sql("DELETE FROM waiting_jobs"))
        conn.execute(sql("UPDATE jobs SET submit_pool = NULL"))
    later = now + timedelta(days=100)
    with database.writing(postgresql) as using:
        assert pools.lock_resolved(using, [pool_id], now=now)
        with database.writing(postgresql) as conn:
            assert pools.delete_unused(conn, vo="lhcb", before=later, now=later) == []
    with database.writing(postgresql) as conn:
        assert pools.delete_unused(conn, vo="lhcb", before=later, now=later) == [pool_id]


def test_the_last_use_of_a_pool_is_recorded(engine: Engine, config: Configuration, now: datetime) -> None:
    pool_id = job(engine, 1).submit_pool
    assert pool_id is not None
    for later, seen in ((30, 0), (90, 90), (120, 90)):
        decide(engine, config, now + timedelta(seconds=later), text("again"))
        with database.reading(engine) as conn:
            assert pools.get_pool(conn, pool_id).last_used_at == now + timedelta(seconds=seen)


def test_a_refused_submission_leaves_nothing(engine: Engine, config: Configuration, now: datetime) -> None:
    with pytest.raises(InvalidJob):
        decide(engine, config, now, text("a"), {"Executabel": "a"})
    strict = grid(f"{GRID}Operations: {{Defaults: {{Limits: {{WaitingJobsPerOwner: 1}}}}}}\n")
    with pytest.raises(QuotaExceeded):
        decide(engine, strict, now, text("a"))
    place = job(engine, 1).task_queue_id
    assert place is not None
    with database.reading(engine) as conn:
        assert task_queues.list_first_jobs(conn, [place], 10) == {place: (1,)}


#: Submits a job, and is killed when all is written and nothing is committed.
KILLED = """
import os, signal, sys
from datetime import datetime
from optimizers.submit import submission
from taskqueue.db import database
from tests.support.factories.submitted_jobs import ANN, grid

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

submission.submission.fulfil_key = die
engine = database.connect(sys.argv[1])
submission.submit(engine, grid(), ANN, [sys.argv[2]], now=datetime.fromisoformat(sys.argv[3]), key="k")
"""


def test_of_a_process_killed_before_the_commit_nothing_is_stored_and_the_key_is_free(
    engine: Engine, config: Configuration, now: datetime
) -> None:
    url = engine.url.render_as_string(hide_password=False)
    killed = subprocess.run([sys.executable, "-c", KILLED, url, text("a"), now.isoformat()], check=False)
    assert killed.returncode == -signal.SIGKILL
    stored = submission.submit(engine, config, ANN, [text("a")], now=now, key="k")
    assert stored.decided.waiting == tuple(stored.job_ids)
    place = job(engine, 1).task_queue_id
    assert place is not None
    with database.reading(engine) as conn:
        assert task_queues.list_first_jobs(conn, [place], 10) == {place: (1, *stored.job_ids)}
    assert submission.submit(engine, config, ANN, [text("a")], now=now, key="k").job_ids == stored.job_ids
