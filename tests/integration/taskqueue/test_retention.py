"""What goes when it is old, and what stays."""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, Table, event, func, insert, select, update

from agents.retention import ended_jobs
from agents.retention import retention as agent
from cs_config.errors import VersionRemoved
from cs_config.tree.configuration import Configuration
from cs_config.versions import store
from cs_config.versions.tables import config_versions
from requirements.states import FINAL, JobStatus, PilotStatus
from taskqueue import blobs, retention
from taskqueue.blob_stores.directory import DirectoryStore
from taskqueue.db import database
from taskqueue.errors import JobNotFound
from taskqueue.jobs import jobs, log
from taskqueue.pilots import pilots, search
from taskqueue.retention import LONG_AGO, EndedWindow, OldJobs
from taskqueue.schema.tables import (
    attempts,
    descriptions,
    idempotency_keys,
    job_log,
    match_requests,
    revoked_tokens,
    submit_pools,
)
from taskqueue.schema.tables import jobs as jobs_table
from taskqueue.sites import scope_rules, scopes
from taskqueue.sites.scope_rules import BucketLevel, RuleKind, ScopeRule
from tests.support import concurrency, databases
from tests.support.factories import queued_jobs, stored_rows
from tests.support.transactions import own_transaction

DAY, HOUR = timedelta(days=1), timedelta(hours=1)


@pytest.fixture(params=databases.LAYOUTS)
def database_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(databases.FIXTURES[request.param])
    return url


def _count(conn: Connection, table: Table) -> int:
    return conn.execute(select(func.count()).select_from(table)).scalar_one()


@own_transaction
def _old(conn: Connection, status: JobStatus, now: datetime, age: timedelta = 2 * DAY) -> int:
    job_id = stored_rows.job_in(conn, now - age, status)
    stored_rows.open_attempt(conn, job_id, now - age)
    conn.execute(
        update(attempts).where(attempts.c.job_id == job_id).values(closed_at=now - age, closed_as="finished")
    )
    return job_id


def _remove_jobs(conn: Connection, now: datetime, *, vo: str = "lhcb", limit: int = 100) -> int:
    job_ids: list[int] = []
    for status in sorted(FINAL):
        window = EndedWindow(status=status, since=LONG_AGO, before=now - DAY)
        job_ids += window.read(conn, most=limit)[0]
    return retention.remove_jobs(conn, _ended(job_ids, now - DAY, vo=vo))


def _ended(job_ids: Collection[int], before: datetime, *, vo: str = "lhcb") -> OldJobs:
    return OldJobs(job_ids=job_ids, before={vo: before}, readers=())


@pytest.mark.parametrize("status", JobStatus)
def test_only_jobs_that_are_final_go(engine: Engine, now: datetime, status: JobStatus) -> None:
    goes = status in {
        JobStatus.DONE,
        JobStatus.COMPLETED,
        JobStatus.FAILED,
        JobStatus.KILLED,
        JobStatus.DELETED,
    }
    with database.writing(engine) as conn:
        _old(conn, status, now)
        assert _remove_jobs(conn, now) == goes
        assert _remove_jobs(conn, now) == 0


def test_a_job_goes_with_all_that_is_its_own(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        old, young = _old(conn, JobStatus.DONE, now), _old(conn, JobStatus.DONE, now, age=DAY / 2)
        assert _remove_jobs(conn, now, vo="cms") == 0
        assert _remove_jobs(conn, now) == 1
        with pytest.raises(JobNotFound):
            jobs.get_job(conn, old)
        assert jobs.get_job(conn, young)
        assert [_count(conn, table) for table in (job_log, attempts, descriptions)] == [1, 1, 1]


def test_a_description_stays_while_a_job_shares_it(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        first, second = stored_rows.job_ids(conn, now - 2 * DAY, 2)
        stored_rows.force(conn, first, status="Done")
        _remove_jobs(conn, now)
        assert _count(conn, descriptions) == 1
        stored_rows.force(conn, second, status="Killed")
        _remove_jobs(conn, now)
        assert _count(conn, descriptions) == 0


def test_a_killed_job_stays_while_its_pilot_delivers(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        job_id = stored_rows.job_in(conn, now - 2 * DAY, JobStatus.KILLED)
        stored_rows.open_attempt(conn, job_id, now)
        assert _remove_jobs(conn, now) == 0


def test_no_more_go_at_once_than_the_limit(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        ids = [_old(conn, JobStatus.DONE, now, age=(9 - number) * DAY) for number in range(5)]
        assert _remove_jobs(conn, now, limit=3) == 3
        assert jobs.get_job(conn, ids[-1])  # the oldest go first
        assert _remove_jobs(conn, now, limit=3) == 2


def test_two_that_remove_at_once_do_no_harm(engine: Engine, now: datetime) -> None:
    for _ in range(40):
        _old(engine, JobStatus.DONE, now)

    def remove(_: int) -> int:
        removed = 0
        while True:
            with database.writing(engine) as conn:
                count = _remove_jobs(conn, now, limit=5)
            removed += count
            if not count:
                return removed

    assert sum(concurrency.at_once(3, remove)) == 40


@databases.ONE_TABLE
def test_logs_may_go_before_their_jobs(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        old, running = _old(conn, JobStatus.DONE, now), _old(conn, JobStatus.RUNNING, now)
        both = _ended([old, running], now - DAY)
        assert retention.remove_logs(conn, both) == 1
        assert retention.remove_logs(conn, both) == 0
        assert (log.read_log(conn, old), len(log.read_log(conn, running))) == ([], 1)
        assert jobs.get_job(conn, old)


@databases.ONE_TABLE
def test_jobs_that_ended_long_ago_are_searched_for_logs_once_a_day(engine: Engine, now: datetime) -> None:
    config = _retain(Logs=1)
    found, memory = [], agent.RetentionState()
    for later in (timedelta(), timedelta(minutes=10), timedelta(minutes=20), DAY):
        _old(engine, JobStatus.DONE, now, age=(3 if later else 2) * DAY)
        if later == timedelta(minutes=20):
            _old(engine, JobStatus.DONE, now + later, age=DAY + timedelta(minutes=5))
        result = agent.cycle(engine, config, now=now + later, holder="me", memory=memory)
        assert result is not None
        found.append(result.removed.get("logs", 0))
    assert found == [1, 0, 1, 3]


@databases.ONE_TABLE
def test_logs_beyond_those_of_one_cycle_go_with_the_next_ones(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "_LIMIT", 1)
    monkeypatch.setattr(agent, "_ROUNDS", 2)
    config = _retain(Logs=1)
    for number in range(5):
        _old(engine, JobStatus.DONE, now, age=2 * DAY - 2 * number * HOUR)
    found, memory = [], agent.RetentionState()
    for minutes in (0, 10, 20, 30):
        later = now + timedelta(minutes=minutes)
        result = agent.cycle(engine, config, now=later, holder="me", memory=memory)
        assert result is not None
        found.append((result.removed.get("logs", 0), result.is_behind))
    assert found == [(2, True), (2, True), (1, False), (0, False)]


class Reads:
    """The ended jobs that the agent reads, transaction by transaction, by the ids of the last cycle."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, limit: int, rounds: int) -> None:
        self.pages: list[list[int]] = []
        monkeypatch.setattr(agent, "_LIMIT", limit)
        monkeypatch.setattr(agent, "_ROUNDS", rounds)
        read = EndedWindow.read

        def note(window: EndedWindow, conn: Connection, *, most: int) -> tuple[list[int], EndedWindow | None]:
            page, rest = read(window, conn, most=most)
            self.pages.append(page)
            return page, rest

        monkeypatch.setattr(EndedWindow, "read", note)

    def take(self) -> list[int]:
        """Those since the last call."""
        taken = [job_id for page in self.pages for job_id in page]
        self.pages.clear()
        return taken


def _retain(**days: int) -> Configuration:
    kept = ", ".join(f"{name}: {value}" for name, value in days.items())
    return queued_jobs.grid(queued_jobs.GRID + f"Operations: {{Defaults: {{Retention: {{{kept}}}}}}}\n")


def test_a_search_reads_each_job_once_however_many_have_nothing_to_delete(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a backlog whose logs have gone each cycle reads as much as the one before."""
    reads = Reads(monkeypatch, limit=3, rounds=4)
    ended = sorted(FINAL - {JobStatus.DELETED})
    with database.writing(engine) as conn:
        at_once = [_old(conn, ended[number % len(ended)], now) for number in range(30)]
        later = [_old(conn, ended[number % len(ended)], now, age=2 * DAY - HOUR) for number in range(10)]
        both = at_once + later
        retention.remove_logs(conn, _ended(both, now - DAY))
    memory, found, behind = agent.RetentionState(), list[list[int]](), True
    while behind:
        result = agent.cycle(engine, _retain(Logs=1, Jobs=1000), now=now, holder="me", memory=memory)
        assert result is not None
        behind = result.is_behind
        found.append(reads.take())
    assert sorted(job_id for each in found for job_id in each) == both
    assert [len(each) for each in found] == [12, 12, 12, 4]


def test_one_pass_serves_all_vos_each_with_its_own_times(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Reads(monkeypatch, limit=3, rounds=100)
    kept = {"atlas": 10, "cms": 20, "lhcb": 30}
    text = ", ".join(f"{vo}: {{Retention: {{Jobs: {days}}}}}" for vo, days in kept.items())
    config = queued_jobs.grid(queued_jobs.GRID + f"Operations: {{{text}}}\n")
    with database.writing(engine) as conn:
        ids = {
            (vo, age): _old(conn, JobStatus.DONE, now, age=age * DAY) for vo in kept for age in (15, 25, 35)
        }
        for (vo, _), job_id in ids.items():
            stored_rows.force(conn, job_id, vo=vo)
    memory = agent.RetentionState()
    result = agent.cycle(engine, config, now=now, holder="me", memory=memory)
    assert result is not None
    assert (result.removed.get("jobs"), result.is_behind) == (6, False)
    assert sorted(reads.take()) == sorted(ids.values())
    left = set(databases.scalars(engine, select(jobs_table.c.job_id)))
    assert left == {job_id for (vo, age), job_id in ids.items() if age < kept[vo]}


def test_windows_are_merged_so_that_no_job_is_in_two(now: datetime) -> None:
    def window(since: int, before: int, status: JobStatus = JobStatus.DONE) -> EndedWindow:
        return EndedWindow(status=status, since=now + since * HOUR, before=now + before * HOUR)

    given = [window(7, 9), window(1, 2), window(3, 5), window(3, 4), window(1, 2, JobStatus.KILLED)]
    assert ended_jobs.merge_windows(given) == [window(0, 5), window(6, 9), window(0, 2, JobStatus.KILLED)]


class AgentKilled(BaseException):
    """What ends a process at once: nothing catches it, and its transaction is rolled back."""


@pytest.mark.parametrize("kind", sorted(ended_jobs.REMOVALS))
def test_an_agent_killed_within_a_batch_is_followed_by_one_that_does_the_rest(
    engine: Engine, now: datetime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Of each job all that is due goes, or nothing; what is not due stays; nothing counts twice."""
    monkeypatch.setattr(agent, "_LIMIT", 2)
    store = DirectoryStore(tmp_path / "blobs")
    with database.writing(engine) as conn:
        old = [_old(conn, JobStatus.DONE, now, age=40 * DAY) for _ in range(5)]
        young = _old(conn, JobStatus.DONE, now, age=20 * DAY)
        digest = _blob(conn, store, b"output", now - 20 * DAY)
        conn.execute(update(attempts).values(output=digest))
    remove, calls = ended_jobs.REMOVALS[kind], []

    def die(conn: Connection, some: OldJobs) -> int:
        removed = remove(conn, some)
        calls.append(removed)
        if len(calls) == 2:
            raise AgentKilled
        return removed

    def cycle() -> dict[str, int]:
        result = agent.cycle(engine, _retain(Outputs=30), now=now, holder="me", store=store)
        assert result is not None
        return dict(result.removed)

    monkeypatch.setitem(ended_jobs.REMOVALS, kind, die)  # type: ignore[misc]
    with pytest.raises(AgentKilled):
        cycle()
    left = databases.scalars(engine, select(jobs_table.c.job_id).order_by(jobs_table.c.job_id))
    assert left == [*old[2:], young]
    assert cycle() == {"jobs": 3}
    assert not cycle()
    with database.reading(engine) as conn:
        assert conn.execute(select(attempts.c.job_id, attempts.c.output)).all() == [(young, digest)]
    store.open(digest).close()


def test_a_shorter_time_for_which_jobs_are_kept_holds_at_once(engine: Engine, now: datetime) -> None:
    memory = agent.RetentionState()
    for days in (40, 20, 5):
        _old(engine, JobStatus.DONE, now, age=days * DAY)
    removed = []
    for minutes, days in ((0, 30), (10, 30), (20, 10), (30, 10)):
        later = now + timedelta(minutes=minutes)
        result = agent.cycle(engine, _retain(Jobs=days), now=later, holder="me", memory=memory)
        assert result is not None
        removed.append(result.removed.get("jobs", 0))
    assert removed == [1, 0, 1, 0]


def test_deleted_jobs_go_after_a_day_also_those_that_were_kept_then(engine: Engine, now: datetime) -> None:
    memory = agent.RetentionState()
    with database.writing(engine) as conn:
        _old(conn, JobStatus.DELETED, now)
        kept = _old(conn, JobStatus.DELETED, now)
        conn.execute(update(attempts).where(attempts.c.job_id == kept).values(closed_at=None, closed_as=None))
    removed = []
    for later in (now, now + DAY):
        result = agent.cycle(engine, _retain(Jobs=30), now=later, holder="me", memory=memory)
        assert result is not None
        removed.append(result.removed.get("jobs", 0))
        databases.execute(
            engine,
            update(attempts).where(attempts.c.job_id == kept).values(closed_at=now, closed_as="finished"),
        )
    assert removed == [1, 1]


def _remove_blobs(conn: Connection, before: datetime) -> list[str]:
    unused, _ = retention.list_unused_blobs(conn, after="", most=10, before={"lhcb": before})
    return retention.remove_blobs(conn, unused, before={"lhcb": before})


def _blob(conn: Connection, store: DirectoryStore, content: bytes, now: datetime) -> str:
    staged = store.stage([content], limit=100)
    return blobs.store_blob(conn, store, staged, vo="lhcb", quota=None, now=now)


def test_an_output_goes_when_it_is_old(engine: Engine, now: datetime, tmp_path: Any) -> None:
    store = DirectoryStore(tmp_path / "blobs")
    with database.writing(engine) as conn:
        digest = _blob(conn, store, b"output", now - 3 * DAY)
        job_id = _old(conn, JobStatus.DONE, now)
        conn.execute(update(attempts).values(output=digest))
        assert _remove_blobs(conn, now - DAY) == []  # still named
        assert retention.detach_outputs(conn, _ended([job_id], now - 3 * DAY)) == 0
        assert retention.detach_outputs(conn, _ended([job_id], now - DAY, vo="cms")) == 0
        assert retention.detach_outputs(conn, _ended([job_id], now - DAY)) == 1
        assert _remove_blobs(conn, now - DAY) == [digest]
        assert jobs.get_job(conn, job_id)


def test_the_oldest_outputs_beyond_the_quota_go(engine: Engine, now: datetime, tmp_path: Any) -> None:
    store = DirectoryStore(tmp_path / "blobs")
    digests: list[str] = []
    with database.writing(engine) as conn:
        for number, vo in enumerate(("lhcb", "lhcb", "lhcb", "cms")):
            staged = store.stage([bytes([number]) * 40], limit=100)
            blobs.store_output(conn, store, staged, vo=vo, replaced=None, now=now - (9 - number) * DAY)
            digests.append(staged.digest)
        sandbox = _blob(conn, store, b"sandbox", now - 20 * DAY)
        job_id = _old(conn, JobStatus.DONE, now)
        conn.execute(update(attempts).values(output=digests[0]))

        def remove(quota: int, limit: int = 10) -> list[str]:
            return retention.remove_outputs(conn, vo="lhcb", quota=quota, before=now, limit=limit)

        assert remove(120) == []
        assert remove(100) == [digests[0]]
        assert conn.execute(select(attempts.c.output)).scalars().all() == [None]
        assert remove(0, limit=1) == [digests[1]]
        assert remove(1) == [digests[2]]
        assert blobs.read_size(conn, sandbox, vo="lhcb") == 7
        assert blobs.read_size(conn, digests[3], vo="cms") == 40
        assert jobs.get_job(conn, job_id)


@pytest.mark.parametrize(
    ("status", "goes"), [(JobStatus.WAITING, False), (JobStatus.RUNNING, False), (JobStatus.DONE, True)]
)
def test_a_sandbox_stays_while_a_job_needs_it(
    engine: Engine, now: datetime, tmp_path: Any, status: JobStatus, *, goes: bool
) -> None:
    store = DirectoryStore(tmp_path / "blobs")
    with database.writing(engine) as conn:
        digest = _blob(conn, store, b"sandbox", now - 3 * DAY)
        [job_id] = stored_rows.job_ids(conn, now, sandbox=digest)
        stored_rows.force(conn, job_id, status=status.value)
        assert bool(_remove_blobs(conn, now - DAY)) is goes


def test_whether_jobs_need_an_archive_is_read_without_going_through_descriptions(
    engine: Engine, now: datetime, tmp_path: Path
) -> None:
    store, plans = DirectoryStore(tmp_path / "blobs"), list[str]()
    how = "EXPLAIN QUERY PLAN" if engine.dialect.name == "sqlite" else "EXPLAIN"

    def explain(_conn: Any, cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if statement.startswith("DELETE FROM blobs"):
            cursor.execute(f"{how} {statement}", values)
            plans.append("\n".join(str(row[-1]) for row in cursor.fetchall()))

    event.listen(engine, "before_cursor_execute", explain)
    with database.writing(engine) as conn:
        digest = _blob(conn, store, b"sandbox", now - 3 * DAY)
        stored_rows.job_ids(conn, now, sandbox=digest)
        if how == "EXPLAIN":  # a table of one row is read whole if that is allowed
            conn.exec_driver_sql("SET LOCAL enable_seqscan = off")
        assert _remove_blobs(conn, now - DAY) == []
    [plan] = plans
    assert "ix_descriptions_sandbox" in plan
    assert "hashed" not in plan, "all jobs that have not ended"
    assert "Seq Scan on jobs" not in plan
    assert "SCAN jobs" not in plan
    assert "Seq Scan on descriptions" not in plan
    assert "SCAN descriptions" not in plan


def test_archives_of_all_vos_are_looked_at_a_page_in_a_transaction_and_none_twice(
    engine: Engine, now: datetime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three pages of two in a cycle; the next goes on where it stopped, and after the last with the first."""
    monkeypatch.setattr(agent, "_DIGESTS", 2)
    monkeypatch.setattr(agent, "_ROUNDS", 3)
    store = DirectoryStore(tmp_path / "blobs")
    kept = {"atlas": 10, "cms": 30}
    text = ", ".join(f"{vo}: {{Retention: {{Sandboxes: {days}}}}}" for vo, days in kept.items())
    config = queued_jobs.grid(queued_jobs.GRID + f"Operations: {{{text}}}\n")
    with database.writing(engine) as conn:
        for vo in kept:
            for number in range(4):
                staged = store.stage([f"{vo}{number}".encode()], limit=100)
                blobs.store_blob(conn, store, staged, vo=vo, quota=None, now=now - 20 * DAY)
            stored_rows.force(conn, _old(conn, JobStatus.DONE, now), vo=vo)
    list_unused, pages = retention.list_unused_blobs, []

    def note(conn: Connection, *, after: str, **bounds: Any) -> tuple[list[str], str | None]:
        unused, upto = list_unused(conn, after=after, **bounds)
        pages.append((after, upto))
        return unused, upto

    monkeypatch.setattr(retention, "list_unused_blobs", note)
    memory, removed = agent.RetentionState(), []
    for minutes in (0, 10):
        later = now + timedelta(minutes=minutes)
        result = agent.cycle(engine, config, now=later, holder="me", store=store, memory=memory)
        assert result is not None
        removed.append(result.removed.get("blobs", 0))
    assert sum(removed) == 4
    assert pages[0][0] == ""
    assert [after for after, _ in pages[1:]] == [upto for _, upto in pages[:-1]]
    assert (pages[-1][1], memory.digest) == (None, "")
    assert databases.scalars(engine, select(blobs.table.c.vo)) == ["cms"] * 4
    assert len(list(store.digests(before=datetime.now(UTC) + DAY))) == 4


def test_a_cycle_deletes_no_more_archives_than_other_rows(
    engine: Engine, now: datetime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with the page by which there are two; the next follows at once and goes on behind that page."""
    for name, value in (("_DIGESTS", 3), ("_LIMIT", 1), ("_ROUNDS", 2)):
        monkeypatch.setattr(agent, name, value)
    store, memory, found = DirectoryStore(tmp_path / "blobs"), agent.RetentionState(), []
    with database.writing(engine) as conn:
        for number in range(7):
            _blob(conn, store, bytes([number]), now - 99 * DAY)
        _old(conn, JobStatus.DONE, now, age=timedelta(minutes=1))
    for _ in range(3):
        result = agent.cycle(engine, queued_jobs.grid(), now=now, holder="me", store=store, memory=memory)
        assert result is not None
        found.append((result.removed.get("blobs", 0), result.is_behind))
    assert found == [(3, True), (3, True), (1, False)]


def test_archives_are_looked_at_in_a_cycle_of_ten_minutes_however_many_follow_at_once(
    engine: Engine, now: datetime, tmp_path: Path
) -> None:
    store, memory, found = DirectoryStore(tmp_path / "blobs"), agent.RetentionState(), []
    _old(engine, JobStatus.DONE, now, age=timedelta(minutes=1))
    for minutes in (0, 1, 2, 10):
        with database.writing(engine) as conn:
            _blob(conn, store, bytes([minutes]), now - 99 * DAY)
        later = now + timedelta(minutes=minutes)
        result = agent.cycle(engine, queued_jobs.grid(), now=later, holder="me", store=store, memory=memory)
        assert result is not None
        found.append(result.removed.get("blobs", 0))
    assert found == [1, 0, 0, 3]


def test_a_process_with_further_cycles_begins_anywhere_among_the_archives() -> None:
    begun = [agent.RetentionState.begin(has_next=True).digest for _ in range(2)]
    assert begun[0] != begun[1]
    assert all(len(each) == 64 and set(each) <= set("0123456789abcdef") for each in begun)
    assert agent.RetentionState.begin(has_next=False).digest == ""


@pytest.mark.parametrize("broken", ["over ended jobs", "over archives"])
def test_a_pass_that_fails_is_work_that_failed_for_all_vos_and_the_other_goes_on(
    engine: Engine, now: datetime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OverflowError("out of range")

    if broken == "over archives":
        monkeypatch.setattr(retention, "list_unused_blobs", fail)
    else:
        monkeypatch.setattr(EndedWindow, "read", fail)
    store = DirectoryStore(tmp_path / "blobs")
    with database.writing(engine) as conn:
        _blob(conn, store, b"sandbox", now - 99 * DAY)
        _old(conn, JobStatus.DONE, now, age=99 * DAY)
    result = agent.cycle(engine, queued_jobs.grid(), now=now, holder="me", store=store)
    assert result is not None
    assert result.broken == ("lhcb",)
    assert {kind: result.removed.get(kind, 0) for kind in ("blobs", "jobs")} == {
        "blobs": int(broken == "over ended jobs"),
        "jobs": int(broken == "over archives"),
    }


_ROWS: list[tuple[Table, dict[str, object], str]] = [
    (
        match_requests,
        {"subject": "s", "request_id": "r", "matches": "[]"},
        "at",
    ),
    (
        idempotency_keys,
        {"subject": "s", "key": "k", "body_digest": "d", "job_ids": "[]"},
        "at",
    ),
    (revoked_tokens, {"jti": "j"}, "expires_at"),
]


@pytest.mark.parametrize(("table", "row", "time"), _ROWS, ids=[row[0].name for row in _ROWS])
def test_rows_that_only_matter_for_a_while_go(
    engine: Engine, now: datetime, table: Table, row: dict[str, object], time: str
) -> None:
    with database.writing(engine) as conn:
        conn.execute(insert(table).values(**row, **{time: now - 2 * DAY}))
        young = {name: f"{value}2" if isinstance(value, str) else value for name, value in row.items()}
        conn.execute(insert(table).values(**young, **{time: now}))
        assert retention.remove_old(conn, table.name, before=now - DAY, limit=10) == 1
        assert retention.remove_old(conn, table.name, before=now - DAY, limit=10) == 0
        assert _count(conn, table) == 1


def test_the_state_of_a_delay_goes_once_the_configuration_does_not_have_it(
    engine: Engine, now: datetime
) -> None:
    rules = [
        ScopeRule(scope="lcg.cern.ch", kind=RuleKind.DELAY, attribute="JobType", value=each, definition="{}")
        for each in ("merge", "user")
    ]
    levels = [(each.key, BucketLevel(tokens=0.0, at=now - 90 * DAY)) for each in rules]
    with database.writing(engine) as conn:
        scopes.lock_scopes(conn, ["lcg.cern.ch"])
        scope_rules.insert_rules(conn, rules[:1])
        scope_rules.store_levels(conn, levels)
        assert retention.remove_old(conn, "matching_delays", before=now - DAY, limit=10) == 1
        assert scope_rules.read_levels(conn, ["lcg.cern.ch"]).keys() == {rules[0].key}


def test_pilots_that_have_ended_go(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        for status in PilotStatus:
            pilots.record_contact(conn, stamp=status, vo="lhcb", queue=None, now=now - 2 * DAY)
            stored_rows.force_pilot(conn, status, status=status.value)
        assert retention.remove_pilots(conn, vo="lhcb", before=now - DAY, limit=10) == 4
        assert retention.remove_pilots(conn, vo="lhcb", before=now - DAY, limit=10) == 0
        left = {pilot.status for pilot in search.list_pilots(conn, search.PilotFilter(), limit=10)}
    assert left == {PilotStatus.SUBMITTED, PilotStatus.WAITING, PilotStatus.RUNNING, PilotStatus.UNKNOWN}


def test_texts_of_old_versions_go_but_not_of_those_that_are_named(engine: Engine, now: datetime) -> None:
    def put(conn: Connection, number: int) -> None:
        store.store_text(
            conn,
            f"Operations: {{Defaults: {{Pools: {{GraceTime: {number}}}}}}}",
            author="ada",
            message="",
            source="api",
            expected=None,
            now=now - (20 - number) * DAY,
        )

    with database.writing(engine) as conn:
        for number in range(1, 11):
            put(conn, number)
        pool = {"pool_id": "p", "vo": "lhcb", "requirements": "{}", "original": "{}", "config_version": 2}
        conn.execute(insert(submit_pools).values(**pool, created_at=now, last_used_at=now))

        def remove(before: datetime, *, fewest: int, most: int) -> list[int]:
            retention.remove_config_texts(conn, before=before, fewest=fewest, most=most, limit=100)
            found = select(config_versions.c.version).where(config_versions.c.text.is_not(None))
            return sorted(conn.execute(found).scalars())

        every = list(range(1, 11))
        assert remove(now - 16 * DAY, fewest=10, most=10) == every
        assert remove(now - 16 * DAY, fewest=3, most=10) == [2, *every[3:]]
        assert remove(now - 30 * DAY, fewest=3, most=5) == [2, *every[5:]]
        assert remove(now, fewest=0, most=0) == [2, 10]
        with pytest.raises(VersionRemoved, match="text of version 9 does not exist"):
            store.load_version(conn, 9)
        assert store.read_version(conn, 9).author == "ada"
        assert store.load_version(conn).version == 10
