"""Pilots: registered with intent, followed by what their batch system and they themselves say."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, delete, event

from cs_config.tree.address import QueueAddress
from requirements.states import PilotStatus, pilot_may_become
from taskqueue.db import database
from taskqueue.errors import IdempotencyConflict, IllegalTransition, PilotNotFound
from taskqueue.leases import assignment, opening
from taskqueue.leases.opening import AssignedJob, LeaseHolder
from taskqueue.ownership import OwnershipFilter
from taskqueue.pilots import pilots, search
from taskqueue.schema.tables import attempts
from tests.support import concurrency
from tests.support.factories import queued_jobs, stored_rows

QUEUE = QueueAddress(site="LCG.CERN.ch", ce="ce01", queue="long")
P = PilotStatus


def _register(conn: Connection, stamp: str, now: datetime, *, vo: str = "lhcb", by: str = "director") -> bool:
    return pilots.register(conn, stamp=stamp, vo=vo, queue=QUEUE, submitted_by=by, now=now)


def test_an_intent_is_stored_once(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        assert _register(conn, "s", now)
        assert not _register(conn, "s", now)
        pilot = pilots.get_pilot(conn, "s")
    assert (pilot.status, pilot.reference, pilot.queue, pilot.jobs) == (P.SUBMITTED, None, "long", 0)


@pytest.mark.parametrize(("vo", "by"), [("cms", "director"), ("lhcb", "another")])
def test_a_stamp_that_is_taken_is_refused(engine: Engine, now: datetime, vo: str, by: str) -> None:
    with database.writing(engine) as conn:
        _register(conn, "s", now)
        with pytest.raises(IdempotencyConflict, match="stamp s is taken"):
            _register(conn, "s", now, vo=vo, by=by)


def test_of_many_that_register_one_stamp_at_once_one_is_first(engine: Engine, now: datetime) -> None:
    def register(_: int) -> bool:
        with database.writing(engine) as conn:
            return _register(conn, "s", now)

    assert sum(concurrency.at_once(6, register)) == 1


def test_the_table_decides_about_every_step(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        for current in P:
            for wanted in P:
                stamp = f"{current} {wanted}"
                _register(conn, stamp, now)
                stored_rows.force_pilot(conn, stamp, status=current.value)
                if pilot_may_become(current, wanted):
                    pilots.set_status(conn, stamp, wanted, reason="r", now=now)
                    assert pilots.get_pilot(conn, stamp).status is wanted
                else:
                    with pytest.raises(IllegalTransition, match=f"is {current}; it cannot become {wanted}"):
                        pilots.set_status(conn, stamp, wanted, now=now)
                    assert pilots.get_pilot(conn, stamp).status is current


def test_the_reference_stays_once_it_is_known(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        _register(conn, "s", now)
        pilots.set_status(conn, "s", P.WAITING, reference="job 42", now=now)
        pilots.set_status(conn, "s", P.UNKNOWN, reason="the CE does not answer", now=now)
        pilot = pilots.get_pilot(conn, "s")
    assert (pilot.reference, pilot.status_reason) == ("job 42", "the CE does not answer")


def test_a_pilot_that_nobody_registered_came_by_itself(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        pilots.record_contact(conn, stamp="s", vo="lhcb", queue=QUEUE, now=now)
        pilot = pilots.get_pilot(conn, "s")
    assert (pilot.status, pilot.submitted_by, pilot.last_seen_at, pilot.site) == (
        P.RUNNING,
        "",
        now,
        "LCG.CERN.ch",
    )


def test_a_pilot_that_speaks_runs(engine: Engine, now: datetime) -> None:
    later = now + timedelta(minutes=5)
    with database.writing(engine) as conn:
        _register(conn, "s", now)
        pilots.record_contact(conn, stamp="s", vo="lhcb", queue=None, now=later)
        pilot = pilots.get_pilot(conn, "s")
        assert (pilot.status, pilot.updated_at, pilot.last_seen_at) == (P.RUNNING, later, later)
        assert (pilot.site, pilot.queue) == ("LCG.CERN.ch", "long")  # it said nothing else
        pilots.record_contact(conn, stamp="s", vo="lhcb", queue=None, now=later + timedelta(minutes=5))
        assert pilots.get_pilot(conn, "s").updated_at == later
        pilots.set_status(conn, "s", P.ABORTED, now=later)
        pilots.record_contact(conn, stamp="s", vo="lhcb", queue=None, now=later)
        assert pilots.get_pilot(conn, "s").status is P.ABORTED


def test_a_pilot_of_another_vo_does_not_speak_for_it(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        _register(conn, "s", now)
        pilots.record_contact(conn, stamp="s", vo="cms", queue=None, now=now)
        assert pilots.get_pilot(conn, "s").last_seen_at is None


def test_jobs_are_counted_and_stay_when_attempts_are_removed(engine: Engine, now: datetime) -> None:
    holder = LeaseHolder(subject="p", stamp="s", lease_time=timedelta(minutes=5))
    with database.writing(engine) as conn:
        _register(conn, "s", now)
        ids = queued_jobs.put(conn, now, 3)
        task_queue = queued_jobs.task_queue_of(conn, ids[0])
        for count in (2, 1):
            taken = assignment.take_jobs(conn, [task_queue], count, place=queued_jobs.ANYWHERE, now=now)
            given = [AssignedJob(row=row, place=queued_jobs.ANYWHERE, holder=holder) for row in taken]
            opening.open_attempts(conn, given, now=now)
        assert pilots.get_pilot(conn, "s").jobs == 3
        pilots.set_status(conn, "s", P.DONE, now=now)
        conn.execute(delete(attempts))
        pilots.set_status(conn, "s", P.DONE, now=now)
        assert pilots.get_pilot(conn, "s").jobs == 3


def test_pilots_are_found_in_pages(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        for number in range(5):
            _register(conn, f"s{number}", now, vo="cms" if number == 4 else "lhcb")
        pilots.set_status(conn, "s0", P.FAILED, now=now)

        def stamps(which: search.PilotFilter, after: str = "") -> list[str]:
            return [pilot.stamp for pilot in search.list_pilots(conn, which, limit=3, after=after)]

        assert stamps(search.PilotFilter()) == ["s0", "s1", "s2"]
        assert stamps(search.PilotFilter(), after="s2") == ["s3", "s4"]
        cms = [OwnershipFilter(vos=frozenset({"cms"}), sites=frozenset({"LCG.CERN.ch"}))]
        assert stamps(search.PilotFilter(visible=cms, submitted_by="director")) == ["s4"]
        assert stamps(search.PilotFilter(statuses={P.FAILED})) == ["s0"]
        assert stamps(search.PilotFilter(visible=[])) == []


def test_a_search_by_prefix_reads_a_bounded_number_of_stamps(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database.writing(engine) as conn:
        for stamp in ("a", "b0", "b1", "b2", "c"):
            _register(conn, stamp, now, vo="cms" if stamp == "b2" else "lhcb")

        def stamps(vo: str) -> list[str]:
            which = search.PilotFilter(visible=[OwnershipFilter(vos=frozenset({vo}))])
            return [pilot.stamp for pilot in search.list_by_prefix(conn, which, "b", limit=5)]

        assert (stamps("lhcb"), stamps("cms")) == (["b0", "b1"], ["b2"])
        monkeypatch.setattr(search, "_LOOKED_AT", 2)
        assert (stamps("lhcb"), stamps("cms")) == (["b0", "b1"], [])


def test_an_unknown_pilot_is_not_found(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        with pytest.raises(PilotNotFound, match="pilot s does not exist"):
            pilots.get_pilot(conn, "s")
        with pytest.raises(PilotNotFound):
            pilots.set_status(conn, "s", P.DONE, now=now)


def test_pilots_that_asked_lately_count_also_if_they_have_ended(engine: Engine, now: datetime) -> None:
    """Those that ended before are not read."""
    hour = timedelta(hours=1)
    with database.writing(engine) as conn:
        for stamp, asked, ended in (
            ("asks", now, None),
            ("asked before", now - 2 * hour, None),
            ("has ended", now - hour, now),
            ("had ended", now - 3 * hour, now - 2 * hour),
        ):
            _register(conn, stamp, asked)
            pilots.record_contact(conn, stamp=stamp, vo="lhcb", queue=QUEUE, now=asked)
            if ended is not None:
                pilots.set_status(conn, stamp, P.DONE, now=ended)
        _register(conn, "comes", now)
        assert pilots.count_by_queue(conn, "lhcb", since=now - hour) == {
            QUEUE: pilots.QueueActivity(asked=2, coming=1)
        }


ELSEWHERE = QueueAddress(site="LCG.CERN.ch", ce="ce01", queue="short")


def _run(
    conn: Connection, stamp: str, since: datetime, *, vo: str = "lhcb", at: QueueAddress = QUEUE
) -> None:
    """A pilot that its director has reported to run since then."""
    pilots.register(conn, stamp=stamp, vo=vo, queue=at, submitted_by="director", now=since)
    pilots.set_status(conn, stamp, P.RUNNING, now=since)


def _ask(conn: Connection, stamp: str, now: datetime, *, processors: int | None) -> None:
    """The first contact of a pilot: a request for jobs, which has the processors of its slot, or another."""
    first = pilots.FirstRequest(stamp=stamp, vo="lhcb", queue=QUEUE, processors=processors)
    pilots.bind_queues(conn, [first], now=now)


def test_silent_are_those_that_run_for_long_and_never_came(engine: Engine, now: datetime) -> None:
    """Each by its VO and queue; one that came for something else than jobs has a way to the service too."""
    before = now - pilots.SILENT_AFTER
    with database.writing(engine) as conn:
        for stamp in ("silent", "silent too", "asks", "came", "ended"):
            _run(conn, stamp, before)
        _run(conn, "just begun", before + timedelta(seconds=1))
        _run(conn, "of another VO", before, vo="cms")
        _run(conn, "elsewhere", before, at=ELSEWHERE)
        _register(conn, "waits", before)
        _ask(conn, "asks", now, processors=8)
        _ask(conn, "came", now, processors=None)
        pilots.set_status(conn, "ended", P.FAILED, now=before)
        assert pilots.count_silent_at(conn, QUEUE, now=now) == {"lhcb": 2, "cms": 1}
        assert pilots.count_silent_at(conn, ELSEWHERE, now=now) == {"lhcb": 1}
        found = pilots.count_silent(conn, now=now)
        assert found == {("lhcb", QUEUE): 2, ("cms", QUEUE): 1, ("lhcb", ELSEWHERE): 1}
        assert next(iter(found)) == ("lhcb", QUEUE), "those with the most first: the rest may not be read"


def test_silent_pilots_are_found_without_going_through_those_that_run(engine: Engine, now: datetime) -> None:
    plans = list[str]()
    how = "EXPLAIN QUERY PLAN" if engine.dialect.name == "sqlite" else "EXPLAIN"

    def explain(_conn: Any, cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if "FROM pilots" in statement:
            cursor.execute(f"{how} {statement}", values)
            plans.append("\n".join(str(row[-1]) for row in cursor.fetchall()))

    with database.writing(engine) as conn:
        _run(conn, "silent", now - timedelta(hours=1))
        for number in range(300):
            _run(conn, f"asks {number}", now - timedelta(hours=1))
            _ask(conn, f"asks {number}", now, processors=8)
        if how == "EXPLAIN":  # a table of few pages is read whole if that is allowed
            conn.exec_driver_sql("ANALYZE pilots")
            conn.exec_driver_sql("SET LOCAL enable_seqscan = off")
        event.listen(engine, "before_cursor_execute", explain)
        assert pilots.count_silent(conn, now=now) == {("lhcb", QUEUE): 1}
        assert pilots.count_silent_at(conn, QUEUE, now=now) == {"lhcb": 1}
    assert len(plans) == 2
    for plan in plans:
        assert "ix_pilots_not_asked" in plan
        assert "SCAN pilots" not in plan


def test_no_index_has_the_time_of_the_latest_contact() -> None:
    """It changes each minute: PostgreSQL would write a row of every index of the table (no HOT update)."""
    for index in pilots.table.indexes:
        condition = str(index.dialect_options["postgresql"]["where"])
        assert "last_seen_at" not in {each.name for each in index.columns}
        assert "last_seen_at" not in condition
