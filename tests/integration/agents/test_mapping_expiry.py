"""Pools that depend on a dynamic attribute lose its queue when it expires, without a new version."""

from datetime import datetime, timedelta

from sqlalchemy import Engine, select

from agents import pools as pool_agent
from agents.pools import PoolResult
from cs_config.tree.configuration import Configuration
from cs_config.versions.store import LiveConfiguration
from optimizers.chain.chain import WAITS_FOR_PILOT
from taskqueue.db import database
from taskqueue.jobs.unmatchable import NO_ELIGIBLE_QUEUE
from taskqueue.pools import pools, queue_class_store
from taskqueue.schema.tables import changes
from tests.support import concurrency, databases
from tests.support.factories import stored_rows
from tests.support.factories.submitted_jobs import enqueue, grid, job, store_grid

LIFE = timedelta(seconds=300)
SECOND = timedelta(seconds=1)
ASKS_STATE = {"Executable": "a.sh", "Requirements": "other.GlueCEStateFreeCPUs > 0"}
ASKS_MEMORY = {"Executable": "a.sh", "Requirements": {"Memory": 4000}}


def text(now: datetime, *, free: int = 1) -> str:
    return f"""
Resources:
  Sites:
    A.B.ch:
      CEs:
        ce:
          Queues:
            big:
              Memory: 8000
              GlueCEStateFreeCPUs: {free}
              update_time: {int(now.timestamp())}
              expiry_time: {int(LIFE.total_seconds())}
            small: {{Memory: 4000}}
"""


def config_of(now: datetime, version: int = 1) -> Configuration:
    return grid(text(now), version)


def cycle(engine: Engine, config: Configuration, now: datetime) -> PoolResult:
    result = pool_agent.cycle(engine, config, now=now, holder="me")
    assert result is not None
    return result


def queues(engine: Engine, job_id: int) -> list[str]:
    pool_id = job(engine, job_id).submit_pool
    assert pool_id is not None
    with database.reading(engine) as conn:
        return [queue.queue for queue in stored_rows.list_eligible_queues(conn, pool_id)]


def change_ids(engine: Engine) -> list[int]:
    return databases.scalars(engine, select(changes.c.change_id))


def test_a_pool_loses_the_queue_at_the_moment_of_expiry(engine: Engine, now: datetime) -> None:
    config = config_of(now)
    [asks_state, asks_memory] = enqueue(engine, config, now, ASKS_STATE, ASKS_MEMORY)
    assert cycle(engine, config, now + LIFE - SECOND).resolved == 0
    assert queues(engine, asks_state) == ["big"]
    result = cycle(engine, config, now + LIFE)
    assert (result.resolved, result.jobs_updated) == (2, 1)
    assert queues(engine, asks_state) == []
    assert queues(engine, asks_memory) == ["big", "small"]
    assert job(engine, asks_state).minor_status == NO_ELIGIBLE_QUEUE


def test_fresh_values_bring_it_back(engine: Engine, now: datetime) -> None:
    config = config_of(now)
    [asks_state] = enqueue(engine, config, now, ASKS_STATE)
    cycle(engine, config, now + 2 * LIFE)
    assert queues(engine, asks_state) == []
    cycle(engine, config_of(now + 2 * LIFE, version=2), now + 2 * LIFE)
    assert queues(engine, asks_state) == ["big"]
    assert job(engine, asks_state).minor_status == WAITS_FOR_PILOT


def test_an_expiry_that_changes_nothing_more_writes_no_mapping(engine: Engine, now: datetime) -> None:
    config = config_of(now)
    enqueue(engine, config, now, ASKS_STATE)
    cycle(engine, config, now + LIFE)
    before = change_ids(engine)
    assert cycle(engine, config, now + LIFE + SECOND).resolved == 0
    assert change_ids(engine) == before


def test_who_has_not_seen_the_expiry_yet_changes_nothing(engine: Engine, now: datetime) -> None:
    config = config_of(now)
    [asks_state] = enqueue(engine, config, now, ASKS_STATE)
    cycle(engine, config, now + LIFE)
    assert not cycle(engine, config, now + LIFE - SECOND)  # a clock that is behind
    assert queues(engine, asks_state) == []
    another = {"Executable": "b.sh", "Requirements": "other.GlueCEStateFreeCPUs > -1"}
    [late] = enqueue(engine, config, now + LIFE - SECOND, another)
    assert queues(engine, late) == []
    cycle(engine, config, now + LIFE + SECOND)
    assert queues(engine, late) == []
    pool_id = job(engine, late).submit_pool
    assert pool_id is not None
    with database.reading(engine) as conn:
        assert pools.get_pool(conn, pool_id).refreshed_at == now + LIFE + SECOND


def test_a_pool_that_is_new_after_the_expiry_does_not_get_the_queue(engine: Engine, now: datetime) -> None:
    [asks_state] = enqueue(engine, config_of(now), now + LIFE, ASKS_STATE)
    assert queues(engine, asks_state) == []
    assert job(engine, asks_state).minor_status == NO_ELIGIBLE_QUEUE


def test_a_newer_version_counts_more_than_any_expiry_of_an_older_one(engine: Engine, now: datetime) -> None:
    [asks_state] = enqueue(engine, config_of(now), now + LIFE, ASKS_STATE)
    newer = config_of(now + LIFE, version=2)
    cycle(engine, newer, now + LIFE)
    assert not cycle(engine, config_of(now), now + LIFE)
    assert queues(engine, asks_state) == ["big"]


def test_arrivals_and_refreshes_on_both_sides_of_the_moment_end_after_it(
    engine: Engine, now: datetime
) -> None:
    config = config_of(now)
    asking = [{"Executable": "a.sh", "Requirements": f"other.GlueCEStateFreeCPUs > -{n}"} for n in range(12)]
    ids: list[int] = []

    def do(number: int) -> None:
        for each in range(6):
            when = now + LIFE + (each - 3) * SECOND
            if number == 0:
                pool_agent.cycle(engine, config, now=when, holder="me")
            else:
                ids.extend(enqueue(engine, config, when, asking[each + 6 * (number - 1)]))

    concurrency.at_once(3, do)
    cycle(engine, config, now + LIFE + 3 * SECOND)
    assert len(ids) == 12
    assert all(queues(engine, job_id) == [] for job_id in ids)
    with database.writing(engine) as conn:
        assert queue_class_store.lock_version(conn, "lhcb") == (1, 1)


def test_a_process_shows_what_has_not_expired(engine: Engine, now: datetime) -> None:
    store_grid(engine, now, text(now))
    times = [now]
    live = LiveConfiguration(clock=lambda: times[-1])
    with database.reading(engine) as conn:
        live.refresh(conn)
    [big, _] = live.current.addresses
    assert live.current.values(big, "lhcb")["GlueCEStateFreeCPUs"] == 1
    times.append(now + LIFE)
    assert "GlueCEStateFreeCPUs" not in live.current.values(big, "lhcb")
    assert live.current.version == 1
