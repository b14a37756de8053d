"""The pools of queues are told from memory, and always as they are at that moment."""

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine, delete

from agents import pools as pool_agent
from cs_config.tree.address import QueueAddress
from cs_config.tree.configuration import Configuration
from matcher.index import queue_pools
from matcher.index.queue_pools import QueuePoolCache
from optimizers.chain import batch
from requirements.canonical import pool_id
from requirements.record import Record
from taskqueue.db import database, incarnation
from taskqueue.pools import mapping, pools
from taskqueue.schema.tables import pool_mappings
from tests.support import databases
from tests.support.factories import stored_rows
from tests.support.factories.submitted_jobs import GRID, grid, submit

BIG, MIDDLE = (QueueAddress.parse(name) for name in ("A.B.ch/ce/big", "C.D.ch/ce/middle"))
LHCB = frozenset({"lhcb"})
HOUR = timedelta(hours=1)


def arrive(engine: Engine, config: Configuration, now: datetime, memory: int) -> tuple[str, int]:
    asked = {"Executable": "a.sh", "Requirements": {"Memory": memory}}
    [job_id] = submit(engine, config, now, asked)
    batch.optimize(engine, config, [job_id], now=now)
    return pool_id(Record(values=(("Memory", memory),)), "lhcb"), job_id


def ask(engine: Engine, known: QueuePoolCache) -> tuple[list[str], list[str]]:
    """What is told of two queues; it has to be what the tables say."""
    with database.reading(engine) as conn:
        told = known.read_pools(conn, LHCB, [BIG, MIDDLE])
    with database.reading(engine) as conn:
        assert {each: list(ids) for each, ids in told.items()} == mapping.list_pool_ids(
            conn, LHCB, [BIG, MIDDLE]
        )
    return list(told[BIG]), list(told[MIDDLE])


def statements(engine: Engine, do: Callable[[], object]) -> list[str]:
    seen = databases.record_statements(engine)
    do()
    return [each for each in seen if "pool_mappings" in each or "queue_class" in each]


def test_what_is_told_is_what_holds_after_every_change(engine: Engine, now: datetime) -> None:
    known = QueuePoolCache()
    assert ask(engine, known) == ([], [])
    pool, job_id = arrive(engine, grid(), now, 3000)
    assert ask(engine, known) == ([pool], [pool])
    other, _ = arrive(engine, grid(), now, 6000)
    assert ask(engine, known) == (sorted([pool, other]), [pool])
    pool_agent.cycle(engine, grid(GRID.replace("4000", "500"), 2), now=now, holder="me")
    assert ask(engine, known) == (sorted([pool, other]), [])
    with database.writing(engine) as conn:
        stored_rows.force(conn, job_id, status="Done", ended_at=now)
        assert pools.delete_unused(conn, vo="lhcb", before=now + HOUR, now=now + HOUR) == [pool]
    assert ask(engine, known) == ([other], [])


def test_what_did_not_change_is_not_read_again(engine: Engine, now: datetime) -> None:
    known = QueuePoolCache()
    arrive(engine, grid(), now, 3000)

    def look() -> None:
        with database.reading(engine) as conn:
            known.read_pools(conn, LHCB, [BIG, MIDDLE])

    assert statements(engine, look)
    assert statements(engine, look) == []
    arrive(engine, grid(), now, 3000)  # no pool that is new
    assert statements(engine, look) == []


def test_after_a_recovery_everything_is_read_anew(engine: Engine, now: datetime) -> None:
    known = QueuePoolCache()
    pool, _ = arrive(engine, grid(), now, 3000)
    assert ask(engine, known) == ([pool], [pool])
    with database.writing(engine) as conn:
        conn.execute(delete(pool_mappings))  # what the feed does not tell of
        incarnation.recover(conn, now=now)
    assert ask(engine, known) == ([], [])


def test_no_more_queues_are_remembered_than_there_is_room_for(
    engine: Engine, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_pools, "_QUEUES", 1)
    known = QueuePoolCache()
    pool, _ = arrive(engine, grid(), now, 3000)
    for _ in range(2):
        assert ask(engine, known) == ([pool], [pool])
        with database.reading(engine) as conn:
            assert [list(known.read_pools(conn, LHCB, [each])[each]) for each in (BIG, MIDDLE)] == [
                [pool],
                [pool],
            ]
    assert len(known._known) == 1
