"""Pilots: registered with intent, followed by what their batch system and they themselves say."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine, delete

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
