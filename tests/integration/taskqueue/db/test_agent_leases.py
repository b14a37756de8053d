"""Which process does an agent's work: leases with expiry and fence."""

from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine, select

from taskqueue.db import agent_leases, database
from taskqueue.schema.tables import agent_leases as table
from tests.support import concurrency

MINUTE = timedelta(minutes=1)


def _acquire(conn: Connection, holder: str, now: datetime, name: str = "pools") -> int | None:
    return agent_leases.acquire(conn, name=name, holder=holder, now=now, ttl=MINUTE)


def test_one_process_at_a_time_has_the_lease(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        assert _acquire(conn, "a", now) == 1
        assert _acquire(conn, "b", now + MINUTE / 2) is None
        assert _acquire(conn, "b", now, name="lost jobs") == 1  # another agent


def test_prolonging_keeps_the_fence(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        assert _acquire(conn, "a", now) == 1
        assert _acquire(conn, "a", now + MINUTE / 2) == 1
        assert _acquire(conn, "b", now + MINUTE) is None
        assert _acquire(conn, "a", now + 5 * MINUTE) == 1  # late, but nobody took over


def test_after_the_expiry_another_takes_over_with_a_higher_fence(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        _acquire(conn, "a", now)
        assert _acquire(conn, "b", now + MINUTE) == 2
        assert not agent_leases.is_held(conn, name="pools", fence=1)
        assert agent_leases.is_held(conn, name="pools", fence=2)
        assert _acquire(conn, "a", now + MINUTE) is None
        assert _acquire(conn, "a", now + 2 * MINUTE) == 3


def test_a_lease_from_before_the_clock_was_set_back_keeps_nobody_out(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        assert _acquire(conn, "a", now + 1440 * MINUTE) == 1
        assert _acquire(conn, "b", now) == 2
        assert _acquire(conn, "a", now) is None


def test_the_end_of_a_cycle_is_noted_only_by_the_holder(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        _acquire(conn, "a", now)
        agent_leases.finish_cycle(conn, name="pools", fence=7, now=now)
        assert conn.execute(select(table.c.last_cycle_at)).scalar_one() is None
        agent_leases.finish_cycle(conn, name="pools", fence=1, now=now)
        assert conn.execute(select(table.c.last_cycle_at)).scalar_one() == now


def test_of_many_that_want_it_at_once_one_gets_it(engine: Engine, now: datetime) -> None:
    def acquire(number: int) -> int | None:
        with database.writing(engine) as conn:
            return _acquire(conn, f"process {number}", now)

    assert sorted(concurrency.at_once(6, acquire), key=str) == [1, *[None] * 5]


def test_who_wants_to_take_over_waits_for_a_transaction_that_still_holds_it(
    engine: Engine, now: datetime
) -> None:
    """So the work of a transaction that began as the holder's is never mixed with that of the next."""
    with database.writing(engine) as conn:
        _acquire(conn, "a", now)

    def take_over() -> int | None:
        with database.writing(engine) as conn:
            return _acquire(conn, "b", now + 2 * MINUTE)

    def work(conn: Connection) -> None:
        assert agent_leases.is_held(conn, name="pools", fence=1)

    assert concurrency.meanwhile(engine, work, take_over) == 2
