"""Which process does the work of an agent, and for how long."""

import threading
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine

from agents import leader
from agents.leader import LEASE_TIME, Leadership
from taskqueue.db import agent_leases, database

SECOND = timedelta(seconds=1)


def _takes_over(engine: Engine, now: datetime) -> bool:
    return leader.acquire(engine, "pools", holder="rival", now=now) is not None


def test_the_lease_is_renewed_while_its_holder_works(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, renewed = now + 10 * LEASE_TIME, threading.Event()
    renew, moments = Leadership.renew, iter([now + LEASE_TIME / 2, now + LEASE_TIME, end])

    def renew_later(self: Leadership, _: datetime) -> None:
        if (moment := next(moments, None)) is not None:
            renew(self, moment)
        else:
            renewed.set()

    monkeypatch.setattr(Leadership, "renew", renew_later)
    with leader.lead(engine, "pools", holder="me", now=now, renewal=0.01) as mine:
        assert mine is not None
        assert renewed.wait(300)
        assert not _takes_over(engine, end + LEASE_TIME - SECOND), "many times the length of a lease"
        with mine.writing():
            pass


def test_a_lease_is_not_renewed_after_the_work(engine: Engine, now: datetime) -> None:
    with leader.lead(engine, "pools", holder="me", now=now, renewal=0.001):
        pass
    assert [each.name for each in threading.enumerate() if each.name == "pools lease"] == []
    assert _takes_over(engine, now + 100 * LEASE_TIME), "however long it was renewed"


def test_a_renewal_takes_no_lease_back(engine: Engine, now: datetime) -> None:
    mine = leader.acquire(engine, "pools", holder="me", now=now)
    assert mine is not None
    assert _takes_over(engine, now + LEASE_TIME)
    mine.renew(now + 2 * LEASE_TIME)
    assert leader.acquire(engine, "pools", holder="third", now=now + 2 * LEASE_TIME) is not None


def test_the_vos_whose_work_failed_are_stored_until_a_cycle_that_serves_them(
    engine: Engine, now: datetime
) -> None:
    for broken, stored in (("evil", ["evil"]), ("", [])):
        with leader.lead(engine, "pools", holder="me", now=now) as mine:
            assert mine is not None
            served = mine.serve_each(["evil", "lhcb"], lambda vo, broken=broken: 1 // (vo != broken))
            assert "lhcb" in served
        with database.reading(engine) as conn:
            assert agent_leases.list_broken(conn) == {"pools": stored}


def test_if_the_work_for_all_fails_each_is_served_alone(engine: Engine, now: datetime) -> None:
    served: list[str] = []

    def serve(some: dict[str, int]) -> None:
        if "evil" in some:
            raise OverflowError
        served.extend(some)

    with leader.lead(engine, "pools", holder="me", now=now) as mine:
        assert mine is not None
        mine.serve_together({"atlas": 1, "evil": 2, "lhcb": 3}, serve)  # type: ignore[arg-type]
        assert (served, mine.broken) == (["atlas", "lhcb"], {"evil"})
