"""Jobs are found, and counted, along indexes and no further than is asked."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, event, select, text, update

from requirements.job_fields import JOB_NAME, LOCAL_STATUS, OWNER, SITE, STATUS, SUBMIT_POOL, VO
from requirements.states import FINAL, JobStatus, LocalJobsStatus
from taskqueue.db import database
from taskqueue.jobs import search
from taskqueue.jobs.search import JobCount, JobSelector, SearchPage
from taskqueue.ownership import OwnershipFilter
from taskqueue.schema.tables import attempts, jobs
from tests.support.factories import stored_rows

STATUSES = (JobStatus.WAITING, JobStatus.RUNNING, JobStatus.DONE, JobStatus.FAILED)
SITES = ("LCG.A.org", "LCG.B.org")
WHOSE = (("cms", "ada"), ("cms", "bob"), ("dune", "ada"))
POOL = "5" * 64


def _fill(conn: Connection, now: datetime, count: int) -> None:
    for number in range(count):
        vo, owner = WHOSE[number % 3]
        [job_id] = stored_rows.job_ids(conn, now, vo=vo, owner=owner)
        stored_rows.force(
            conn,
            job_id,
            status=STATUSES[number % 4].value,
            site=SITES[number % 2],
            job_name=f"n{number % 5}",
            submit_pool=POOL if number % 7 == 0 else None,
        )
        if number % 4:
            stored_rows.open_attempt(conn, job_id, now)
        if number % 4 == 3:
            values = {"exit_code": number % 3}
            conn.execute(update(attempts).where(attempts.c.job_id == job_id).values(**values))
        if number % 4 == 1:
            local = '{"failed": 1}' if number % 3 else '{"running": 2}'
            conn.execute(update(attempts).where(attempts.c.job_id == job_id).values(local_jobs=local))


@pytest.fixture
def conn(engine: Engine, now: datetime) -> Iterator[Connection]:
    with database.writing(engine) as conn:
        _fill(conn, now, 30)
    with database.reading(engine) as conn:
        yield conn


def _pages(conn: Connection, which: JobSelector, **how: Any) -> list[SearchPage]:
    pages = [search.read_page(conn, which, **how)]
    while (after := pages[-1].next) is not None:
        pages.append(search.read_page(conn, which, after=after, **how))
    return pages


def _ids(pages: list[SearchPage]) -> list[int]:
    return [job.job_id for page in pages for job in page.jobs]


def one_of(*values: str) -> st.SearchStrategy[frozenset[str]]:
    return st.builds(lambda value: frozenset({value}), st.sampled_from(values))


def some_of(values: Any) -> st.SearchStrategy[Any]:
    return st.frozensets(st.sampled_from(values))


FILTERS = st.builds(
    JobSelector,
    values=st.fixed_dictionaries(
        {},
        optional={
            "vo": some_of(["cms", "dune", "atlas"]),
            "owner": some_of(["ada", "bob", "eve"]),
            "status": some_of(STATUSES),
            "site": some_of(SITES),
            "job_name": one_of("n1", "n9"),
            "submit_pool": one_of(POOL, "none"),
            "local_status": some_of([LocalJobsStatus.ACTIVE, LocalJobsStatus.ERROR]),
            "exit_code": some_of([0, 1, 137]),
            "job_id": st.frozensets(st.integers(1, 40)),
        },
    ),
)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(which=FILTERS, limit=st.integers(6, 20), oldest_first=st.booleans(), rows=st.integers(10, 50))
def test_pages_hold_every_job_once_in_order_however_short_a_look_is(
    conn: Connection,
    monkeypatch: pytest.MonkeyPatch,
    which: JobSelector,
    limit: int,
    oldest_first: bool,
    rows: int,
) -> None:
    asked = select(jobs.c.job_id).where(*which.clauses()).order_by(jobs.c.job_id)
    expected = list(conn.execute(asked).scalars())
    with monkeypatch.context() as shorter:
        shorter.setattr(search, "MAX_SCANNED_ROWS", rows)
        pages = _pages(conn, which, limit=limit, oldest_first=oldest_first)
        found = [job.job_id for job in search.list_jobs(conn, which, limit=1000)]
    assert _ids(pages) == (expected if oldest_first else expected[::-1])
    assert all(len(page.jobs) <= limit for page in pages)
    assert found == expected[::-1]


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(which=FILTERS)
def test_counts_are_those_of_the_summary_where_there_are_few(conn: Connection, which: JobSelector) -> None:
    whole = search.count_by_columns(conn, ["status"], which)
    counted = search.count_by_status(conn, which)
    assert {status.value: count.jobs for status, count in counted.items()} == {
        status: number for (status,), number in whole.items()
    }
    assert not any(count.more for count in counted.values())
    assert search.sum_counts(counted) == JobCount(sum(whole.values()))


def test_counting_ends_where_it_was_told_to_and_says_so(conn: Connection) -> None:
    counted = search.count_by_status(conn, JobSelector().where(VO, {"cms"}), most=2)
    assert set(counted) == set(STATUSES)
    assert all(count.more and count.jobs <= 2 for count in counted.values())
    ada = JobSelector().where(VO, {"cms"}).where(OWNER, {"ada"})
    assert search.count_by_status(conn, ada, most=2)[JobStatus.DONE] == JobCount(2), "no more than these"


def test_a_look_that_ends_early_says_so(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    rare = JobSelector().where(SITE, {"LCG.A.org"}).where(JOB_NAME, {"n9"})
    monkeypatch.setattr(search, "MAX_SCANNED_ROWS", 12)
    pages = _pages(conn, rare, limit=10)
    assert [page.is_cut for page in pages] == [True, True, False]
    assert not _ids(pages)


def test_where_no_job_can_be_meant_a_look_ends_at_once(
    conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MAX_SCANNED_ROWS", 5)
    for which in (
        JobSelector().where(VO, ()),
        JobSelector().where(VO, ()).where(OWNER, {"ada"}),
        JobSelector().where(SITE, ()),
    ):
        assert search.read_page(conn, which, limit=2) == SearchPage(jobs=(), next=None, is_cut=False)


def test_jobs_of_one_or_another_are_found_together(conn: Connection) -> None:
    of_ada = JobSelector().where(VO, {"cms"}).where(OWNER, {"ada"})
    of_site = JobSelector().where(SITE, {"LCG.A.org"})
    either = JobSelector(
        any_of=(
            OwnershipFilter(vos=frozenset({"cms"}), owner="ada"),
            OwnershipFilter(sites=frozenset({"LCG.A.org"})),
        )
    )
    each = [
        set(conn.execute(select(jobs.c.job_id).where(*which.clauses())).scalars())
        for which in (of_ada, of_site, either)
    ]
    assert each[2] == each[0] | each[1]
    assert each[0] - each[1]
    assert each[1] - each[0]
    assert set(_ids(_pages(conn, either, limit=10))) == each[2]


LOOKS = [
    JobSelector(),
    JobSelector().where(VO, {"cms"}),
    JobSelector().where(VO, {"cms"}).where(OWNER, {"ada"}),
    JobSelector().where(VO, {"cms"}).where(OWNER, {"ada"}).where(STATUS, {JobStatus.DONE}),
    JobSelector().where(VO, {"cms"}).where(OWNER, {"ada"}).where(SITE, {"LCG.A.org"}),
    JobSelector().where(OWNER, {"ada"}),
    JobSelector(
        any_of=(
            OwnershipFilter(vos=frozenset({"cms"}), owner="ada"),
            OwnershipFilter(sites=frozenset({"LCG.A.org"})),
        )
    ).where(STATUS, frozenset(JobStatus) - FINAL),
    JobSelector().where(SUBMIT_POOL, {POOL}).where(VO, {"cms"}),
    JobSelector().where(STATUS, frozenset(JobStatus) - FINAL),
    JobSelector().where(STATUS, {JobStatus.FAILED}).where(JOB_NAME, {"n1"}),
    JobSelector().where(VO, {"cms"}).where(LOCAL_STATUS, {LocalJobsStatus.ERROR}),
]


def test_looks_and_counts_read_no_table_whole_and_sort_nothing(engine: Engine, conn: Connection) -> None:
    plans = _Plans(engine)
    with database.reading(engine) as other, plans.watched():
        for which in LOOKS:
            for oldest_first in (False, True):
                search.read_page(other, which, limit=20, after=25, oldest_first=oldest_first)
            search.count_by_status(other, which)
    assert len(plans.told) >= 3 * len(LOOKS)
    for plan in plans.told:
        assert "USE TEMP B-TREE" not in plan, plan
        assert "->  Sort  (" not in plan, plan
        assert "Seq Scan on jobs" not in plan, plan
        assert "SCAN jobs\n" not in plan, plan
        assert "Seq Scan on attempts" not in plan, plan
        assert "SCAN attempts\n" not in plan, plan
        assert "Hash" not in plan, plan


class _Plans:
    """The plans of the statements on jobs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.told: list[str] = []

    @contextmanager
    def watched(self) -> Iterator[None]:
        event.listen(self._engine, "before_cursor_execute", self._explain)
        yield
        event.remove(self._engine, "before_cursor_execute", self._explain)

    def _explain(self, _conn: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if "ORDER BY" not in statement and "count(" not in statement:
            return
        how = "EXPLAIN QUERY PLAN" if self._engine.dialect.name == "sqlite" else "EXPLAIN"
        with self._engine.connect() as own:
            if how == "EXPLAIN":  # a table of sixty rows is read whole, and sorted, if that is allowed
                own.execute(text("SET enable_seqscan = off"))
                own.execute(text("SET enable_sort = off"))
                own.execute(text("SET enable_bitmapscan = off"))
            cursor = own.connection.cursor()
            cursor.execute(f"{how} {statement}", values)
            self.told.append("\n".join(str(row[-1]) for row in cursor.fetchall()) + "\n")
            own.rollback()
