"""One-use secrets: issued for a registered pilot, redeemed by one process."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import Connection, Engine, select

from cs_config.tree.address import QueueAddress
from requirements.states import PilotStatus
from taskqueue.db import database
from taskqueue.errors import IllegalTransition, PilotNotFound, SecretUsed
from taskqueue.pilots import pilot_secrets, pilots
from taskqueue.pilots.pilots import Pilot
from taskqueue.schema.tables import pilot_secrets as table
from tests.support import concurrency

QUEUE = QueueAddress(site="LCG.CERN.ch", ce="ce01", queue="long")
DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)


def _issue(conn: Connection, now: datetime, *, life: timedelta = DAY, stamp: str = "s") -> str:
    pilots.register(conn, stamp=stamp, vo="lhcb", queue=QUEUE, submitted_by="director", now=now)
    return pilot_secrets.issue_secret(conn, stamp, life=life, now=now)[0]


def _issued(engine: Engine, now: datetime, **wishes: timedelta) -> str:
    with database.writing(engine) as conn:
        return _issue(conn, now, **wishes)


def _redeem(
    engine: Engine, now: datetime, secret: str, *, request_id: str = "r", stamp: str = "s"
) -> Pilot | None:
    with database.writing(engine) as conn:
        return pilot_secrets.redeem_secret(conn, stamp, secret, request_id=request_id, now=now)


def test_a_secret_stands_for_its_pilot_which_runs_from_then_on(engine: Engine, now: datetime) -> None:
    secret = _issued(engine, now)
    later = now + timedelta(hours=3)
    pilot = _redeem(engine, later, secret)
    assert pilot is not None
    assert (pilot.stamp, pilot.vo, pilot.queue) == ("s", "lhcb", "long")
    with database.reading(engine) as conn:
        seen = pilots.get_pilot(conn, "s")
    assert (seen.status, seen.last_seen_at) == (PilotStatus.RUNNING, later)


def test_the_database_does_not_hold_the_secret(engine: Engine, now: datetime) -> None:
    secret = _issued(engine, now)
    with database.reading(engine) as conn:
        row = conn.execute(select(table)).one()
    assert secret not in map(str, row)
    assert row.expires_at == now + DAY


def test_of_many_that_redeem_it_at_once_one_does(engine: Engine, now: datetime) -> None:
    secret = _issued(engine, now)

    def redeem(number: int) -> bool:
        try:
            return _redeem(engine, now, secret, request_id=f"process {number}") is not None
        except SecretUsed:
            return False

    assert sum(concurrency.at_once(6, redeem)) == 1


def test_a_lost_answer_is_given_again_for_some_minutes_to_the_same_request(
    engine: Engine, now: datetime
) -> None:
    secret = _issued(engine, now)
    last = now + pilot_secrets.RETRY_WINDOW
    assert _redeem(engine, now, secret, request_id="mine") is not None
    assert _redeem(engine, last, secret, request_id="mine") is not None
    for request_id, at in (("mine", last + SECOND), ("the twin's", now)):
        with pytest.raises(SecretUsed, match="secret of the pilot s was already used"):
            _redeem(engine, at, secret, request_id=request_id)


def test_a_twin_that_comes_when_the_first_has_ended_is_a_twin_still(engine: Engine, now: datetime) -> None:
    secret = _issued(engine, now)
    _redeem(engine, now, secret, request_id="first")
    with database.writing(engine) as conn:
        pilots.set_status(conn, "s", PilotStatus.DONE, now=now)
    with pytest.raises(SecretUsed):
        _redeem(engine, now + 5 * DAY, secret, request_id="twin")


def test_an_expired_a_wrong_and_a_strange_secret_are_all_the_same(engine: Engine, now: datetime) -> None:
    secret = _issued(engine, now)
    with database.writing(engine) as conn:
        other = _issue(conn, now, stamp="another")
    assert _redeem(engine, now + DAY, secret) is None
    for wrong in ("", secret[:-1], other, "\ud800"):
        assert _redeem(engine, now, wrong) is None
    assert _redeem(engine, now, secret, stamp="unknown") is None
    assert _redeem(engine, now + DAY - SECOND, secret) is not None


def test_no_secret_is_good_for_more_than_four_days(engine: Engine, now: datetime) -> None:
    secret = _issued(engine, now, life=30 * DAY)
    assert _redeem(engine, now + 4 * DAY, secret) is None
    assert _redeem(engine, now + 4 * DAY - SECOND, secret) is not None


def test_another_secret_voids_the_one_before(engine: Engine, now: datetime) -> None:
    first = _issued(engine, now)
    second = _issued(engine, now)
    assert _redeem(engine, now, first) is None
    assert _redeem(engine, now, second) is not None


def test_no_secret_is_issued_for_a_pilot_that_has_its_token(engine: Engine, now: datetime) -> None:
    secret = _issued(engine, now)
    _redeem(engine, now, secret)
    with pytest.raises(SecretUsed):
        _issued(engine, now)
    assert _redeem(engine, now, secret) is not None  # and the answer can still be had again


def test_while_a_secret_is_redeemed_no_other_is_issued(engine: Engine, now: datetime) -> None:
    secret = _issued(engine, now)

    def redeem(conn: Connection) -> None:
        pilot_secrets.redeem_secret(conn, "s", secret, request_id="r", now=now)

    with pytest.raises(SecretUsed):
        concurrency.meanwhile(engine, redeem, lambda: _issued(engine, now))


@pytest.mark.parametrize(
    "end", [PilotStatus.DONE, PilotStatus.FAILED, PilotStatus.ABORTED, PilotStatus.DELETED]
)
def test_a_pilot_that_has_ended_gets_neither_secret_nor_token(
    engine: Engine, now: datetime, end: PilotStatus
) -> None:
    secret = _issued(engine, now)
    with database.writing(engine) as conn:
        pilots.set_status(conn, "s", end, now=now)
    for attempt in (lambda: _redeem(engine, now, secret), lambda: _issued(engine, now)):
        with pytest.raises(IllegalTransition, match=f"pilot s is {end}"):
            attempt()
    assert _redeem(engine, now + DAY, secret) is None


def test_only_registered_pilots_have_secrets(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn, pytest.raises(PilotNotFound):
        pilot_secrets.issue_secret(conn, "unknown", life=DAY, now=now)
