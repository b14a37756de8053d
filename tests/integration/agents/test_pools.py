"""The pool agent: pools follow the configuration, in every interleaving, and go when nothing uses them."""

import contextlib
import threading
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine, select

from agents import pools as pool_agent
from agents.pools import PoolResult
from cs_config.tree.configuration import Configuration
from optimizers.chain.chain import WAITS_FOR_PILOT
from requirements.canonical import pool_id
from requirements.record import Record
from taskqueue.db import database
from taskqueue.errors import PoolNotFound
from taskqueue.jobs.unmatchable import NO_ELIGIBLE_QUEUE
from taskqueue.leases import expiry, reports
from taskqueue.leases.assignment import Location
from taskqueue.pools import listing, pools, queue_class_store
from taskqueue.schema.tables import changes
from tests.support import concurrency, databases
from tests.support.factories import pilot_reports, stored_rows
from tests.support.factories import queued_jobs as waiting_jobs
from tests.support.factories.submitted_jobs import GRID, enqueue, grid, job, log_of, waiting

JOB = {"Executable": "a.sh"}
HOUR = timedelta(hours=1)


def pool_of(memory: int) -> str:
    return pool_id(Record(values=(("Memory", memory),)), "lhcb")


def arrive(engine: Engine, config: Configuration, now: datetime, *memories: int) -> list[int]:
    return enqueue(engine, config, now, *({**JOB, "Requirements": {"Memory": memory}} for memory in memories))


def cycle(engine: Engine, config: Configuration, now: datetime, holder: str = "me") -> PoolResult:
    result = pool_agent.cycle(engine, config, now=now, holder=holder)
    assert result is not None
    return result


def queues(engine: Engine, memory: int) -> list[str]:
    with database.reading(engine) as conn:
        return [str(queue) for queue in stored_rows.list_eligible_queues(conn, pool_of(memory))]


def pool(engine: Engine, memory: int) -> pools.Pool:
    with database.reading(engine) as conn:
        return pools.get_pool(conn, pool_of(memory))


def changed(text: str = GRID, *, version: int = 2, **memory: int) -> Configuration:
    for name, value in memory.items():
        before, _, rest = text.partition(f"{name}: {{Memory: ")
        text = f"{before}{name}: {{Memory: {value}{rest[rest.index('}') :]}"
    return grid(text, version)


def test_a_change_that_concerns_no_pool_writes_no_mapping(engine: Engine, now: datetime) -> None:
    arrive(engine, grid(), now, 4000)
    before = databases.scalars(engine, select(changes.c.change_id))
    result = cycle(engine, grid(version=2), now)
    assert (result.vos, result.changed) == (("lhcb",), 0)
    assert pool(engine, 4000).config_version == 2
    assert databases.scalars(engine, select(changes.c.change_id)) == before


def test_the_interval_is_the_vos_own(engine: Engine, now: datetime) -> None:
    config = grid(GRID + "Operations: {lhcb: {Pools: {RefreshInterval: 60}}}\n")
    arrive(engine, config, now, 4000)
    assert cycle(engine, config, now + timedelta(seconds=61)).resolved == 1


def test_an_older_configuration_changes_nothing(engine: Engine, now: datetime) -> None:
    arrive(engine, changed(middle=3000), now, 4000)
    assert not cycle(engine, grid(version=1), now + 2 * HOUR)
    assert queues(engine, 4000) == ["A.B.ch/ce/big"]
    assert pool(engine, 4000).config_version == 2


def test_pools_end_at_the_newest_version_in_every_interleaving(engine: Engine, now: datetime) -> None:
    versions = [changed(version=number, middle=3000 + number) for number in range(1, 6)]
    newest = versions[-1]

    def do(number: int) -> None:
        for config in versions:
            if number == 0:
                pool_agent.cycle(engine, config, now=now, holder="me")
            else:
                arrive(engine, config, now, 3000 + number, 3000 + number + config.version)

    concurrency.at_once(3, do)
    cycle(engine, newest, now)
    with database.reading(engine) as conn:
        assert queue_class_store.read_version(conn, "lhcb") == 5
        for each in listing.list_pools(conn, listing.PoolFilter(), limit=100):
            assert each.config_version == 5
            memory = next(m for m in range(2900, 3100) if pool_of(m) == each.pool_id)
            names = {str(queue) for queue in stored_rows.list_eligible_queues(conn, each.pool_id)}
            assert ("C.D.ch/ce/middle" in names) is (memory <= 3005)


def test_a_reader_sees_the_old_mapping_or_the_new_one(engine: Engine, now: datetime) -> None:
    arrive(engine, grid(), now, 4000)
    seen: set[tuple[str, ...]] = set()
    stop = threading.Event()

    def read(_: int) -> None:
        while not stop.is_set():
            seen.add(tuple(queues(engine, 4000)))

    def refresh() -> None:
        with contextlib.ExitStack() as at_end:
            at_end.callback(stop.set)
            for number in range(2, 30):
                memory = {"middle": 3000} if number % 2 else {"big": 3000}
                cycle(engine, changed(version=number, **memory), now)

    concurrency.at_once(2, lambda number: refresh() if number else read(number))
    assert seen <= {
        ("A.B.ch/ce/big", "C.D.ch/ce/middle"),
        ("A.B.ch/ce/big",),
        ("C.D.ch/ce/middle",),
    }


def test_jobs_say_at_once_that_they_lost_their_last_queue_and_that_they_have_one_again(
    engine: Engine, now: datetime
) -> None:
    ids = arrive(engine, grid(), now, 8000, 8000, 4000)
    poorer = changed(big=1000)
    assert cycle(engine, poorer, now).jobs_updated == 2
    assert [job(engine, each).minor_status for each in ids] == [NO_ELIGIBLE_QUEUE] * 2 + [WAITS_FOR_PILOT]
    assert cycle(engine, grid(version=3), now).jobs_updated == 2
    assert {job(engine, each).minor_status for each in ids} == {WAITS_FOR_PILOT}
    assert [entry.minor_status for entry in log_of(engine, ids[0])][-2:] == [
        NO_ELIGIBLE_QUEUE,
        WAITS_FOR_PILOT,
    ]
    assert waiting(engine) == ids


@pytest.mark.parametrize("came_back", [reports.RELEASED_BY_PILOT, expiry.NOT_STARTED])
def test_a_job_that_comes_back_to_a_pool_without_queues_says_so(
    engine: Engine, now: datetime, came_back: str
) -> None:
    ids, later = arrive(engine, grid(), now, 8000, 4000), now + HOUR
    place = Location(site="A.B.ch", ce="ce", queue="big")
    with database.writing(engine) as conn:
        task_queues = [waiting_jobs.task_queue_of(conn, each) for each in ids]
        claimed = waiting_jobs.claim(conn, task_queues, now, count=2, place=place)
    assert [each.job_id for each in claimed] == ids
    cycle(engine, changed(big=1000), now)
    with database.writing(engine) as conn:
        if came_back == reports.RELEASED_BY_PILOT:
            for each in claimed:
                pilot_reports.release(conn, each.lease, reason="", max_rescheduling=3, now=now)
        else:
            expiry.expire_leases(conn, silent_since={"lhcb": later}, now=later)
    assert [job(engine, each).minor_status for each in ids] == [NO_ELIGIBLE_QUEUE, came_back]
    assert [entry.minor_status for entry in log_of(engine, ids[0])][-2:] == [came_back, NO_ELIGIBLE_QUEUE]
    assert waiting(engine) == ids
    cycle(engine, grid(version=3), later)
    assert job(engine, ids[0]).minor_status == WAITS_FOR_PILOT


def test_many_jobs_are_told(engine: Engine, now: datetime) -> None:
    text = {**JOB, "Requirements": {"Memory": 8000}, "Parameters": 2500}
    enqueue(engine, grid(), now, text)
    assert cycle(engine, changed(big=1000), now).jobs_updated == 2500


def test_an_agent_that_died_between_the_pools_and_their_jobs_is_continued(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job_id] = arrive(engine, grid(), now, 8000)
    cycle(engine, grid(), now)

    def die(*_: object, **__: object) -> int:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr("agents.pools.update_minor_status", die)
        with pytest.raises(RuntimeError):
            cycle(engine, changed(big=1000), now + timedelta(seconds=1))
    assert job(engine, job_id).minor_status == WAITS_FOR_PILOT
    after = now + timedelta(seconds=2)
    assert cycle(engine, changed(big=1000), after).jobs_updated == 1


def test_an_unused_pool_goes_after_the_grace_time(engine: Engine, now: datetime) -> None:
    [job_id] = arrive(engine, grid(), now, 4000)
    assert cycle(engine, grid(), now + 2 * HOUR).removed == 0
    stored_rows.force(engine, job_id, status="Done", ended_at=now + 2 * HOUR)
    assert cycle(engine, grid(), now + 2.5 * HOUR).removed == 0
    assert cycle(engine, grid(), now + 3.1 * HOUR).removed == 1
    with pytest.raises(PoolNotFound):
        pool(engine, 4000)


def test_the_grace_time_is_configured(engine: Engine, now: datetime) -> None:
    config = grid(GRID + "Operations: {Defaults: {Pools: {GraceTime: 60}}}\n")
    [job_id] = arrive(engine, config, now, 4000)
    stored_rows.force(engine, job_id, status="Done", ended_at=now)
    assert cycle(engine, config, now + timedelta(seconds=61)).removed == 1


def test_a_job_never_ends_without_its_pool(engine: Engine, now: datetime) -> None:
    """Removal and arrival race, with real concurrency, many times over."""
    config = grid(GRID + "Operations: {Defaults: {Pools: {GraceTime: 0}}}\n")
    arrived: list[int] = []

    def remove() -> None:
        for number in range(60):
            pool_agent.cycle(engine, config, now=now + timedelta(minutes=number + 2), holder="me")

    def come() -> None:
        for _ in range(30):
            [job_id] = arrive(engine, config, now, 4000)
            arrived.append(job_id)
            pool(engine, 4000)
            stored_rows.force(engine, job_id, status="Done", ended_at=now)
        arrived.extend(arrive(engine, config, now, 4000))

    concurrency.at_once(2, lambda number: come() if number else remove())
    assert job(engine, arrived[-1]).submit_pool == pool_of(4000)
    assert pool(engine, 4000).pool_id == pool_of(4000)
    assert queues(engine, 4000) == ["A.B.ch/ce/big", "C.D.ch/ce/middle"]


def test_two_agents_at_once_do_no_harm(engine: Engine, now: datetime) -> None:
    ids = arrive(engine, grid(), now, *range(1000, 9000, 400))
    poorer = changed(big=4000)
    results = concurrency.at_once(2, lambda n: pool_agent.cycle(engine, poorer, now=now, holder=str(n)))
    assert sum(1 for result in results if result is not None) == 1
    stuck = [each for each in ids if job(engine, each).minor_status == NO_ELIGIBLE_QUEUE]
    assert len(stuck) == sum(1 for memory in range(1000, 9000, 400) if memory > 4000)


def test_an_idle_cycle_costs_few_statements_however_many_pools_there_are(
    engine: Engine, now: datetime
) -> None:
    arrive(engine, grid(), now, *range(1000, 9000, 20))
    cycle(engine, grid(), now)
    statements = databases.record_statements(engine)
    cycle(engine, grid(), now + timedelta(seconds=1))
    assert len(statements) < 25
