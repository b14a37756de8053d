"""Recovery from a loss of commits: nothing is given out again, and nobody is taken for gone too soon."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine, insert, select, update

from agents import priorities as priority_agent
from cs_config.versions import store
from cs_config.versions.store import LiveConfiguration
from requirements.states import JobStatus
from taskqueue.db import agent_leases, database, incarnation
from taskqueue.db.incarnation import RecoveryResult
from taskqueue.errors import IllegalTransition
from taskqueue.jobs import jobs, log
from taskqueue.leases import attempts, expiry
from taskqueue.leases.opening import ClaimedJob
from taskqueue.leases.reports import PayloadResult
from taskqueue.schema.tables import installation, scopes, submit_pools
from tests.support import databases
from tests.support.factories import pilot_reports, queued_jobs, stored_rows, submitted_jobs
from tests.support.factories.queued_jobs import request
from tests.support.factories.submitted_jobs import GRID, grid

LEASE = timedelta(minutes=5)
MINUTE = timedelta(minutes=1)
DONE = PayloadResult(status="Done", exit_code=0)


@pytest.fixture
def held(engine: Engine, now: datetime) -> ClaimedJob:
    """A job that was handed out, of which nothing more was heard before commits were lost."""
    with database.writing(engine) as conn:
        [job_id] = queued_jobs.put(conn, now)
        [claimed] = queued_jobs.claim(conn, [queued_jobs.task_queue_of(conn, job_id)], now)
        return claimed


def _recover(engine: Engine, at: datetime) -> RecoveryResult:
    with database.writing(engine) as conn:
        return incarnation.recover(conn, now=at)


def _status(engine: Engine, job_id: int) -> JobStatus:
    with database.reading(engine) as conn:
        return jobs.get_job(conn, job_id).status


def _expire(engine: Engine, at: datetime) -> list[int]:
    with database.writing(engine) as conn:
        return expiry.expire_leases(conn, silent_since={"lhcb": at}, now=at)


def test_an_attempt_that_was_not_begun_has_time_to_report(
    engine: Engine, now: datetime, held: ClaimedJob
) -> None:
    later = now + timedelta(hours=2)
    done = _recover(engine, later)
    assert (done.quarantined, done.last_commit) == (1, now)
    assert _expire(engine, later + MINUTE) == [], "its lease ran out while nobody could report"
    assert _expire(engine, done.until + MINUTE) == [held.job_id]
    assert _status(engine, held.job_id) is JobStatus.WAITING


def test_a_running_job_is_not_stalled_because_nobody_could_hear_of_it(
    engine: Engine, now: datetime, held: ClaimedJob
) -> None:
    later = now + timedelta(hours=2)
    pilot_reports.start(engine, held.lease, lease_time=LEASE, now=now)
    _recover(engine, later)
    with database.writing(engine) as conn:
        assert expiry.mark_stalled(conn, silent_since={"lhcb": later - MINUTE}, now=later) == []
        assert expiry.mark_stalled(conn, silent_since={"lhcb": later + MINUTE}, now=later) == [held.job_id]


def test_a_heartbeat_or_an_end_says_that_a_job_was_begun_whose_start_is_lost(
    engine: Engine, now: datetime, held: ClaimedJob
) -> None:
    _recover(engine, now + MINUTE)
    pilot_reports.heartbeat(engine, held.lease, lease_time=LEASE, now=now + 2 * MINUTE)
    assert _status(engine, held.job_id) is JobStatus.RUNNING
    assert _expire(engine, now + timedelta(days=1)) == [], "it is silent from now on, not unbegun"
    pilot_reports.finish(engine, held.lease, DONE, now=now + 3 * MINUTE)
    assert _status(engine, held.job_id) is JobStatus.DONE


def test_an_end_whose_start_is_lost_is_stored(engine: Engine, now: datetime, held: ClaimedJob) -> None:
    _recover(engine, now + MINUTE)
    pilot_reports.finish(engine, held.lease, DONE, now=now + 2 * MINUTE)
    assert _status(engine, held.job_id) is JobStatus.DONE


def test_a_killed_job_whose_pilot_reports_stays_killed(
    engine: Engine, now: datetime, held: ClaimedJob
) -> None:
    with database.writing(engine) as conn:
        attempts.request_end(conn, [held.job_id])
        stored_rows.force(conn, held.job_id, status=JobStatus.KILLED.value)
    _recover(engine, now + MINUTE)
    answer = pilot_reports.heartbeat(engine, held.lease, lease_time=LEASE, now=now + 2 * MINUTE)
    pilot_reports.finish(engine, held.lease, DONE, now=now + 3 * MINUTE)
    assert answer["commands"] == ["kill"]
    assert _status(engine, held.job_id) is JobStatus.KILLED


def test_without_a_recovery_an_end_needs_a_start(engine: Engine, now: datetime, held: ClaimedJob) -> None:
    with pytest.raises(IllegalTransition), database.writing(engine) as conn:
        pilot_reports.finish(conn, held.lease, DONE, now=now)


def test_the_log_of_a_job_says_what_happened_to_it(engine: Engine, now: datetime, held: ClaimedJob) -> None:
    _recover(engine, now + MINUTE)
    last = submitted_jobs.log_of(engine, held.job_id)[-1]
    assert (last.source, last.minor_status) == (incarnation.SOURCE, incarnation.QUARANTINED)
    assert (last.from_status, last.to_status, last.epoch) == (JobStatus.MATCHED, JobStatus.MATCHED, 1)


def test_no_id_that_may_have_been_given_out_is_given_out_again(engine: Engine, now: datetime) -> None:
    [before] = queued_jobs.put(engine, now)
    done = _recover(engine, now + timedelta(hours=1))
    with database.writing(engine) as conn:
        [after] = queued_jobs.put(conn, now)
        [entry, *_] = log.read_log(conn, after)
    assert after > before + 3600 * 10_000
    assert after > before + done.left_out
    assert entry.job_id == after


def test_no_epoch_is_given_out_again(engine: Engine, now: datetime, held: ClaimedJob) -> None:
    """The job's attempts 2 and 3 may have been among what was lost."""
    done = _recover(engine, now + MINUTE)
    assert _expire(engine, done.until + MINUTE) == [held.job_id]
    with database.writing(engine) as conn:
        task_queue_id = queued_jobs.task_queue_of(conn, held.job_id)
        [again] = queued_jobs.claim(conn, [task_queue_id], now)
        floor = conn.execute(select(installation.c.epoch_floor)).scalar_one()
        pilot_reports.release(conn, again.lease, reason="", max_rescheduling=3, now=now)
        [once_more] = queued_jobs.claim(conn, [task_queue_id], now)
    assert held.epoch == 1
    assert (again.epoch, once_more.epoch) == (floor + 1, floor + 2)
    assert floor > 10**6


def test_a_second_recovery_leaves_out_what_came_after_the_first(engine: Engine, now: datetime) -> None:
    """Restored from the same backup once more, nothing of the time between is given out again."""
    queued_jobs.put(engine, now)
    first = _recover(engine, now + timedelta(hours=1))
    databases.execute(engine, update(installation).values(incarnation=1, epoch_floor=0))
    second = _recover(engine, now + timedelta(hours=2))
    assert second.incarnation > first.incarnation
    assert databases.scalar(engine, select(installation.c.epoch_floor)) >= 3600


def test_watermarks_and_turns_of_agents_go_beyond_what_may_have_been_given_out(
    engine: Engine, now: datetime
) -> None:
    with database.writing(engine) as conn:
        conn.execute(insert(scopes).values(scope="A.B.ch", site="A.B.ch", watermark=50))
        fence = agent_leases.acquire(conn, name="pools", holder="gone", now=now, ttl=timedelta(hours=1))
    done = _recover(engine, now)
    with database.writing(engine) as conn:
        assert conn.execute(select(scopes.c.watermark)).scalar_one() == 50 + done.left_out
        assert not agent_leases.is_held(conn, name="pools", fence=fence or 0)
        taken = agent_leases.acquire(conn, name="pools", holder="new", now=now + MINUTE, ttl=MINUTE)
    assert (taken or 0) > (fence or 0) + done.left_out


def test_a_version_that_may_have_been_lost_is_no_longer_the_number_of_another(
    engine: Engine, now: datetime
) -> None:
    live = LiveConfiguration()
    with database.writing(engine) as conn:
        store.store_text(conn, GRID, author="ann", message="", source="grid.yaml", expected=None, now=now)
        live.refresh(conn)
        queued_jobs.pool(conn, now, "pool", config=grid())
    done = _recover(engine, now + timedelta(hours=1))
    with database.reading(engine) as conn:
        assert live.refresh(conn)
        assert conn.execute(select(submit_pools.c.config_version)).scalar_one() == 0, "mapped anew"
        assert store.list_changes(conn, done.config_version) == ()
    assert live.current.version == done.config_version > 3600


def test_another_text_under_a_known_number_is_taken_up(engine: Engine, now: datetime) -> None:
    live = LiveConfiguration()
    with database.writing(engine) as conn:
        store.store_text(conn, GRID, author="ann", message="", source="grid.yaml", expected=None, now=now)
        live.refresh(conn)
        assert not live.refresh(conn)
        conn.execute(update(store.config_versions).values(text="Resources: {}", digest="of another"))
        assert live.refresh(conn)
    assert not live.current.sites


def test_a_matcher_that_lives_through_it_loads_everything_anew(engine: Engine, now: datetime) -> None:
    matcher = queued_jobs.matcher(engine, now)
    matcher.refresh()
    with database.writing(engine) as conn:
        [job_id] = queued_jobs.put(conn, now)
        conn.execute(update(installation).values(incarnation=7))
    [look] = matcher.serve([request()])
    assert [each.job_id for each in getattr(look, "claimed", ())] == [job_id]


def test_an_empty_installation_recovers(engine: Engine, now: datetime) -> None:
    done = _recover(engine, now)
    assert (done.quarantined, done.last_commit, done.config_version) == (0, None, 0)
    assert done.incarnation == int(now.timestamp())
    assert queued_jobs.put(engine, now)[0] > done.left_out


def test_where_no_job_ever_was_the_configuration_says_what_was_the_last_commit(
    engine: Engine, now: datetime
) -> None:
    with database.writing(engine) as conn:
        store.store_text(conn, GRID, author="ann", message="", source="grid.yaml", expected=None, now=now)
    assert _recover(engine, now + MINUTE).last_commit == now


def test_the_agent_of_priorities_weighs_everything_anew(engine: Engine, now: datetime) -> None:
    memory = priority_agent.PriorityState()
    config = grid()
    priority_agent.cycle(engine, config, now=now, holder="one", memory=memory)
    history = memory.history
    _recover(engine, now)
    priority_agent.cycle(engine, config, now=now + MINUTE, holder="one", memory=memory)
    assert memory.history is not history
