"""Places of pilots: many bound at once, each to one queue, and contacts written together."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, event, select, text

from cs_config.tree.address import QueueAddress
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.auth.pilot_binding import PilotPlaces
from requirements.errors import NotAllowed
from requirements.states import PilotStatus
from taskqueue.db import database
from taskqueue.pilots import pilots
from taskqueue.pilots.pilots import Pilot
from taskqueue.schema.tables import pilots as pilots_table

HERE = QueueAddress(site="A.B.ch", ce="ce1", queue="long")
THERE = QueueAddress(site="A.B.ch", ce="ce2", queue="long")
MINUTE = timedelta(minutes=1)


def _caller(stamp: str, vo: str = "lhcb", queue: QueueAddress | None = None) -> Caller:
    return Caller(subject=f"pilot:{stamp}", role=Role.PILOT, vos=frozenset({vo}), stamp=stamp, queue=queue)


def _pilot(engine: Engine, stamp: str) -> Pilot:
    with database.reading(engine) as conn:
        return pilots.get_pilot(conn, stamp)


def _place(engine: Engine, stamp: str) -> QueueAddress:
    found = _pilot(engine, stamp)
    return QueueAddress(site=found.site, ce=found.ce, queue=found.queue)


def _run(engine: Engine, now: datetime, use: Callable[[PilotPlaces], Coroutine[Any, Any, None]]) -> list[str]:
    """Statements that a use of the places executes."""
    statements: list[str] = []

    def record(_conn: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    event.listen(engine, "before_cursor_execute", record)
    try:
        asyncio.run(use(PilotPlaces(engine, lambda: now)))
    finally:
        event.remove(engine, "before_cursor_execute", record)
    return statements


async def _bind_all(places: PilotPlaces, now: datetime, *stated: tuple[Caller, QueueAddress]) -> list[object]:
    return await asyncio.gather(
        *(places.bind_with_others(caller, queue, processors=4, now=now) for caller, queue in stated),
        return_exceptions=True,
    )


def test_many_pilots_are_bound_together_and_then_known(engine: Engine, now: datetime) -> None:
    callers = [_caller(f"s{number}") for number in range(100)]

    async def use(places: PilotPlaces) -> None:
        assert not places.is_known(callers[0], HERE, now=now)
        await _bind_all(places, now, *((each, HERE) for each in callers))
        assert all(places.is_known(each, HERE, now=now) for each in callers)
        assert not places.is_known(callers[0], THERE, now=now)

    assert len(_run(engine, now, use)) < 20
    assert {_place(engine, each.stamp or "") for each in callers} == {HERE}
    assert _pilot(engine, "s1").status is PilotStatus.RUNNING

    async def after_a_restart(places: PilotPlaces) -> None:
        await _bind_all(places, now, *((each, HERE) for each in callers))

    written = _run(engine, now, after_a_restart)
    assert not [each for each in written if each.startswith(("UPDATE", "INSERT"))]


def test_of_two_queues_that_one_pilot_states_at_once_one_is_its_own(engine: Engine, now: datetime) -> None:
    outcomes: list[object] = []

    async def use(places: PilotPlaces) -> None:
        caller = _caller("s")
        outcomes.extend(await _bind_all(places, now, (caller, HERE), (caller, THERE), (caller, HERE)))

    _run(engine, now, use)
    assert [isinstance(each, NotAllowed) for each in outcomes] == [False, True, False]
    assert _place(engine, "s") == HERE


@pytest.mark.parametrize("is_at_once", [False, True])
def test_a_token_with_the_stamp_of_a_pilot_of_another_vo_requests_nothing(
    engine: Engine, now: datetime, *, is_at_once: bool
) -> None:
    """It would repeat the requests of that pilot, and get its jobs."""
    own, other = (_caller("s", vo) for vo in ("lhcb", "cms"))
    outcomes: list[object] = []

    async def use(places: PilotPlaces) -> None:
        if is_at_once:
            outcomes.extend(await _bind_all(places, now, (own, HERE), (other, HERE)))
        else:
            for each in (own, other):
                outcomes.extend(await _bind_all(places, now, (each, HERE)))
        assert [places.is_known(each, HERE, now=now) for each in (own, other)] == [True, False]

    _run(engine, now, use)
    assert [isinstance(each, NotAllowed) for each in outcomes] == [False, True]


def test_a_token_with_the_stamp_of_a_pilot_of_another_vo_keeps_it_from_nothing(
    engine: Engine, now: datetime
) -> None:
    own, other = (_caller("s", vo) for vo in ("lhcb", "cms"))
    with database.writing(engine) as conn:
        pilots.record_contact(conn, stamp="s", vo="lhcb", queue=None, now=now)
    outcomes: list[object] = []

    async def use(places: PilotPlaces) -> None:
        outcomes.extend(await _bind_all(places, now, (other, HERE), (own, HERE)))

    _run(engine, now, use)
    assert [isinstance(each, NotAllowed) for each in outcomes] == [True, False]


def test_a_pilot_has_the_queue_of_its_token(engine: Engine, now: datetime) -> None:
    async def use(places: PilotPlaces) -> None:
        with pytest.raises(NotAllowed, match="belongs to"):
            await places.bind_with_others(_caller("s", queue=THERE), HERE, now=now)

    _run(engine, now, use)
    assert _place(engine, "s") == THERE


def test_a_pilot_sent_by_a_broker_states_one_of_its_queues(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        for stamp in ("right", "wrong"):
            pilots.register(
                conn, stamp=stamp, vo="lhcb", queue=None, possible_queues=[HERE], submitted_by="d", now=now
            )

    async def use(places: PilotPlaces) -> None:
        right, wrong = await _bind_all(places, now, (_caller("right"), HERE), (_caller("wrong"), THERE))
        assert right is None
        assert isinstance(wrong, NotAllowed)

    _run(engine, now, use)
    assert (_place(engine, "right"), _pilot(engine, "wrong").site) == (HERE, "")


def test_contacts_are_written_together_once_a_minute(engine: Engine, now: datetime) -> None:
    callers = [_caller(f"s{number}") for number in range(50)]
    with database.writing(engine) as conn:
        for each in callers:
            pilots.register(
                conn, stamp=each.stamp or "", vo="lhcb", queue=HERE, submitted_by="d", now=now - MINUTE
            )
            pilots.set_status(conn, each.stamp or "", PilotStatus.RUNNING, now=now - MINUTE)

    async def use(places: PilotPlaces) -> None:
        await _bind_all(places, now, *((each, HERE) for each in callers))
        await places.store_contacts()

    assert len([each for each in _run(engine, now, use) if each.startswith("UPDATE")]) == 1
    found = _pilot(engine, "s7")
    assert (found.status, found.updated_at, found.last_seen_at) == (PilotStatus.RUNNING, now - MINUTE, now)

    async def go_on(places: PilotPlaces) -> None:
        await _bind_all(places, now, (callers[0], HERE))
        await places.store_contacts()
        for later, writes in ((MINUTE / 2, False), (MINUTE, True)):
            assert places.is_known(callers[0], HERE, now=now + later)
            assert bool(places._contacts) is writes

    _run(engine, now, go_on)


@pytest.mark.parametrize(
    "lost",
    [
        "DELETE FROM pilots",
        "UPDATE pilots SET site = '', ce = '', queue = ''",
        "UPDATE pilots SET processors = NULL",
    ],
)
def test_a_pilot_whose_binding_was_lost_in_a_failover_is_bound_again(
    engine: Engine, now: datetime, lost: str
) -> None:
    async def use(places: PilotPlaces) -> None:
        await _bind_all(places, now, (_caller("s"), HERE))
        await places.store_contacts()
        with database.writing(engine) as conn:
            conn.execute(text(lost))
        assert places.is_known(_caller("s"), HERE, now=now + MINUTE)
        await places.store_contacts()
        assert not places.is_known(_caller("s"), HERE, now=now + MINUTE)
        await _bind_all(places, now, (_caller("s"), HERE))

    _run(engine, now, use)
    assert _place(engine, "s") == HERE


def test_contacts_that_cannot_be_written_are_kept(engine: Engine, now: datetime) -> None:
    async def use(places: PilotPlaces) -> None:
        await _bind_all(places, now, (_caller("s"), HERE))
        engine.dispose()
        with database.writing(engine) as conn:
            pilots.set_status(conn, "s", PilotStatus.UNKNOWN, now=now)
        with pytest.MonkeyPatch.context() as cut:
            cut.setattr(pilots, "record_contacts", _away)
            with pytest.raises(database.UNAVAILABLE):
                await places.store_contacts()
        await places.store_contacts()

    _run(engine, now, use)
    assert _pilot(engine, "s").status is PilotStatus.RUNNING


def _away(*_: object, **__: object) -> None:
    raise database.OperationalError(None, {}, Exception("the server closed the connection"))


def test_the_contact_of_another_vo_does_not_count(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        pilots.register(conn, stamp="s", vo="lhcb", queue=HERE, submitted_by="d", now=now)

    async def use(places: PilotPlaces) -> None:
        await _bind_all(places, now, (_caller("s", vo="cms"), HERE))
        await places.store_contacts()

    _run(engine, now, use)
    assert _pilot(engine, "s").last_seen_at is None


def test_the_first_request_for_jobs_states_the_slot_of_a_pilot(engine: Engine, now: datetime) -> None:
    caller = _caller("s")

    async def use(places: PilotPlaces) -> None:
        await places.bind_with_others(caller, HERE, now=now)
        assert not places.is_known(caller, HERE, now=now)
        for processors in (4, 64):
            await places.bind_with_others(caller, HERE, processors=processors, now=now)
        assert places.is_known(caller, HERE, now=now)

    _run(engine, now, use)
    with database.reading(engine) as conn:
        assert conn.scalar(select(pilots_table.c.processors)) == 4
