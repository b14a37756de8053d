"""Jobs are found, and counted, along indexes and no further than is asked."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, event, select, text

from taskqueue import database, job_counts, job_search, job_walks
from taskqueue.job_counts import Count
from taskqueue.job_filter import Filter
from taskqueue.job_walks import Seen
from taskqueue.states import FINAL, JobStatus
from taskqueue.tables import jobs
from taskqueue.whose import Whose
from tests import stored

STATUSES = (JobStatus.WAITING, JobStatus.RUNNING, JobStatus.DONE, JobStatus.FAILED)
SITES = ("LCG.A.org", "LCG.B.org")
WHOSE = (("cms", "ada"), ("cms", "bob"), ("dune", "ada"))
POOL = "5" * 64


def _fill(conn: Connection, now: datetime, count: int) -> None:
    for number in range(count):
        vo, owner = WHOSE[number % 3]
        [job_id] = stored.job_ids(conn, now, vo=vo, owner=owner)
        stored.force(
            conn,
            job_id,
            status=STATUSES[number % 4].value,
            site=SITES[number % 2],
            job_name=f"n{number % 5}",
            submit_pool=POOL if number % 7 == 0 else None,
        )


@pytest.fixture
def conn(engine: Engine, now: datetime) -> Iterator[Connection]:
    with database.writing(engine) as conn:
        _fill(conn, now, 30)
    with database.reading(engine) as conn:
        yield conn


def _pages(conn: Connection, which: Filter, **how: Any) -> list[Seen]:
    pages = [job_walks.look(conn, which, **how)]
    while (after := pages[-1].next) is not None:
        pages.append(job_walks.look(conn, which, after=after, **how))
    return pages


def _ids(pages: list[Seen]) -> list[int]:
    return [job.job_id for page in pages for job in page.jobs]


def one_of(*values: Any) -> st.SearchStrategy[Any]:
    return st.none() | st.sampled_from(values)


def some_of(values: Any) -> st.SearchStrategy[Any]:
    return st.none() | st.frozensets(st.sampled_from(values))


FILTERS = st.builds(
    Filter,
    vos=some_of(["cms", "dune", "atlas"]),
    owner=one_of("ada", "bob", "eve"),
    statuses=some_of(STATUSES),
    sites=some_of(SITES),
    job_name=one_of("n1", "n9"),
    submit_pool=one_of(POOL, "none"),
    job_ids=st.none() | st.frozensets(st.integers(1, 40)),
)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(which=FILTERS, limit=st.integers(6, 20), oldest_first=st.booleans(), rows=st.integers(10, 50))
def test_pages_hold_every_job_once_in_order_however_short_a_look_is(
    conn: Connection,
    monkeypatch: pytest.MonkeyPatch,
    which: Filter,
    limit: int,
    oldest_first: bool,
    rows: int,
) -> None:
    asked = select(jobs.c.job_id).where(*which.clauses()).order_by(jobs.c.job_id)
    expected = list(conn.execute(asked).scalars())
    with monkeypatch.context() as shorter:
        shorter.setattr(job_walks, "MOST_ROWS", rows)
        pages = _pages(conn, which, limit=limit, oldest_first=oldest_first)
        found = [job.job_id for job in job_search.find(conn, which, limit=1000)]
    assert _ids(pages) == (expected if oldest_first else expected[::-1])
    assert all(len(page.jobs) <= limit for page in pages)
    assert found == expected[::-1]


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(which=FILTERS)
def test_counts_are_those_of_the_summary_where_there_are_few(conn: Connection, which: Filter) -> None:
    whole = job_search.summary(conn, ["status"], which)
    counted = job_counts.by_status(conn, which)
    assert {status.value: count.jobs for status, count in counted.items()} == {
        status: number for (status,), number in whole.items()
    }
    assert not any(count.more for count in counted.values())
    assert job_counts.total(counted) == Count(sum(whole.values()))


def test_counting_ends_where_it_was_told_to_and_says_so(conn: Connection) -> None:
    counted = job_counts.by_status(conn, Filter(vos=frozenset({"cms"})), most=2)
    assert set(counted) == set(STATUSES)
    assert all(count.more and count.jobs <= 2 for count in counted.values())
    ada = Filter(vos=frozenset({"cms"}), owner="ada")
    assert job_counts.by_status(conn, ada, most=2)[JobStatus.DONE] == Count(2), "no more than these"


def test_a_look_that_ends_early_says_so(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    rare = Filter(sites=frozenset({"LCG.A.org"}), job_name="n9")
    monkeypatch.setattr(job_walks, "MOST_ROWS", 12)
    pages = _pages(conn, rare, limit=10)
    assert [page.is_cut for page in pages] == [True, True, False]
    assert not _ids(pages)


def test_where_no_job_can_be_meant_a_look_ends_at_once(
    conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_walks, "MOST_ROWS", 5)
    for which in (Filter(vos=frozenset()), Filter(vos=frozenset(), owner="ada"), Filter(sites=frozenset())):
        assert job_walks.look(conn, which, limit=2) == Seen(jobs=(), next=None, is_cut=False)


def test_jobs_of_one_or_another_are_found_together(conn: Connection) -> None:
    of_ada = Filter(vos=frozenset({"cms"}), owner="ada")
    of_site = Filter(sites=frozenset({"LCG.A.org"}))
    either = Filter(
        any_of=(Whose(vos=frozenset({"cms"}), owner="ada"), Whose(sites=frozenset({"LCG.A.org"})))
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
    Filter(),
    Filter(vos=frozenset({"cms"})),
    Filter(vos=frozenset({"cms"}), owner="ada"),
    Filter(vos=frozenset({"cms"}), owner="ada", statuses=frozenset({JobStatus.DONE})),
    Filter(vos=frozenset({"cms"}), owner="ada", sites=frozenset({"LCG.A.org"})),
    Filter(owner="ada"),
    Filter(
        statuses=frozenset(JobStatus) - FINAL,
        any_of=(Whose(vos=frozenset({"cms"}), owner="ada"), Whose(sites=frozenset({"LCG.A.org"}))),
    ),
    Filter(submit_pool=POOL, vos=frozenset({"cms"})),
    Filter(statuses=frozenset(JobStatus) - FINAL),
    Filter(statuses=frozenset({JobStatus.FAILED}), job_name="n1"),
]


def test_looks_and_counts_read_no_table_whole_and_sort_nothing(engine: Engine, conn: Connection) -> None:
    plans = _Plans(engine)
    with database.reading(engine) as other, plans.watched():
        for which in LOOKS:
            for oldest_first in (False, True):
                job_walks.look(other, which, limit=20, after=25, oldest_first=oldest_first)
            job_counts.by_status(other, which)
    assert len(plans.told) >= 3 * len(LOOKS)
    for plan in plans.told:
        assert "USE TEMP B-TREE" not in plan, plan
        assert "->  Sort  (" not in plan, plan
        assert "Seq Scan on jobs" not in plan, plan
        assert "SCAN jobs\n" not in plan, plan


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
