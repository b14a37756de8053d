"""Mappings as sets of queue classes: in SQL, beside what the release before writes, and after an upgrade."""

import random
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import Connection, Engine, Integer, bindparam, insert, select, text

from cs_config.classes.queue_classes import QueueClass
from cs_config.tree.address import QueueAddress
from taskqueue.db import database
from taskqueue.pools import by_queue, mapping, pools, queue_class_store, refresh
from taskqueue.pools.pools import NewPool
from taskqueue.schema.bitset_type import BitsetType, has_slot
from taskqueue.schema.tables import pool_queue_classes
from tests.postgres import Postgres

QUEUES = [QueueAddress(site=f"S{number % 3}", ce="ce", queue=f"q{number}") for number in range(40)]
CLASSES = [QueueClass(digest=f"{n:064}", values={}, queues=(queue,)) for n, queue in enumerate(QUEUES)]


@pytest.fixture(params=["sqlite", "postgresql"])
def older(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """A database of the release before."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/older.db"
    else:
        server: Postgres = request.getfixturevalue("postgres")
        server.execute("CREATE DATABASE older")
        url = server.url("older")
    engine = database.connect(url)
    with database.writing(engine) as conn:
        command.upgrade(database._configure_alembic(conn), "0013")
    yield engine
    engine.dispose()
    if request.param == "postgresql":
        server.execute("DROP DATABASE older WITH (FORCE)")


def test_a_set_in_sql_has_the_classes_that_it_has_here(engine: Engine) -> None:
    draw = random.Random(4)
    sets = [0, 1, 1 << 63, *(draw.getrandbits(size) for size in (7, 8, 9, 64, 300) for _ in range(4))]
    asked = select(has_slot(bindparam("classes", type_=BitsetType()), bindparam("slot", type_=Integer)))
    with database.reading(engine) as conn:
        for classes in sets:
            for slot in (*range(10), *draw.sample(range(400), 20)):
                found = conn.execute(asked, {"classes": classes, "slot": slot}).scalar_one()
                assert bool(found) is bool(classes >> slot & 1), (classes, slot)


def test_queues_are_told_the_same_pools_one_by_one_and_all_together(engine: Engine, now: datetime) -> None:
    draw = random.Random(7)
    digests = {
        f"p{number:02}": {each.digest: draw.random() < 0.2 for each in draw.sample(CLASSES, 12)}
        for number in range(20)
    }
    with database.writing(engine) as conn:
        for vo in ("lhcb", "cms"):
            new = [
                NewPool(pool_id=f"{vo}{each}", vo=vo, requirements="{}", original="{}") for each in digests
            ]
            pools.touch_pools(conn, new, now=now)
            queue_class_store.store_classes(conn, vo=vo, config_version=1, classes=CLASSES, now=now)
            of_vo = {f"{vo}{pool_id}": each for pool_id, each in digests.items()}
            mapping.store_mappings(conn, vo=vo, config_version=1, digests=of_vo, now=now)
        together = by_queue.list_mapped_pools(conn, ["lhcb", "cms"], QUEUES)
        for queue, each in zip(QUEUES, CLASSES, strict=True):
            alone = by_queue.list_mapped_pools(conn, ["lhcb", "cms"], [queue])[queue]
            assert list(alone) == list(together[queue])
            assert {(found.pool_id, found.undecided) for found in alone} == {
                (f"{vo}{pool_id}", of_pool[each.digest])
                for pool_id, of_pool in digests.items()
                for vo in ("lhcb", "cms")
                if each.digest in of_pool
            }


def test_the_release_before_may_map_a_pool_meanwhile_and_it_is_computed_anew(
    engine: Engine, now: datetime
) -> None:
    with database.writing(engine) as conn:
        _resolved(conn, now)
        assert _unmapped(conn) == []
        class_id = queue_class_store.find_class(conn, "lhcb", QUEUES[1])
        conn.execute(insert(pool_queue_classes).values(pool_id="p", queue_class_id=class_id))
        assert _unmapped(conn) == ["p"]
        _resolve(conn, now)
        assert _unmapped(conn) == []
        assert conn.execute(select(pool_queue_classes)).all() == []


def test_a_class_that_the_release_before_added_gets_a_slot(engine: Engine, now: datetime) -> None:
    with database.writing(engine) as conn:
        _resolved(conn, now)
        conn.execute(text("UPDATE queue_classes SET slot = NULL WHERE queue_class_id > 20"))
        assert len(queue_class_store.read_slots(conn, "lhcb")) == 20
        queue_class_store.store_classes(conn, vo="lhcb", config_version=1, classes=CLASSES, now=now)
        assert sorted(queue_class_store.read_slots(conn, "lhcb").values()) == list(range(40))


def test_an_upgrade_keeps_what_pools_were_mapped_to(older: Engine, now: datetime) -> None:
    stamp = {"now": now.replace(tzinfo=None) if older.dialect.name == "sqlite" else now}
    with database.writing(older) as conn:
        for statement in _LEFT_BEHIND:
            conn.execute(text(statement), stamp)
    database.upgrade(older.url.render_as_string(hide_password=False))
    with database.reading(older) as conn:
        assert mapping.list_eligible_queues(conn, "p") == QUEUES[:1]
        assert mapping.list_eligible_queues(conn, "none") == []
        found = by_queue.list_mapped_pools(conn, ["lhcb"], QUEUES[:2])
        assert [(each.pool_id, each.undecided) for each in found[QUEUES[0]]] == [("p", False)]
        assert [(each.pool_id, each.undecided) for each in found[QUEUES[1]]] == [("q", True)]


#: Two VOs, whose classes were made in turn.
_LEFT_BEHIND = (
    *(
        f"INSERT INTO queue_classes (queue_class_id, vo, digest) VALUES ({number}, '{vo}', 'd{number}')"
        for number, vo in ((5, "lhcb"), (6, "cms"), (7, "lhcb"))
    ),
    *(
        f"INSERT INTO queue_class_members VALUES ('lhcb', '{queue.site}', 'ce', '{queue.queue}', {number})"
        for queue, number in zip(QUEUES, (5, 7), strict=False)
    ),
    *(
        f"""INSERT INTO submit_pools
            (pool_id, vo, requirements, original, created_at, last_used_at, refreshed_at, config_version)
            VALUES ('{pool_id}', 'lhcb', '{{}}', '{{}}', :now, :now, {refreshed}, 1)"""
        for pool_id, refreshed in (("p", ":now"), ("q", ":now"), ("none", ":now"), ("new", "NULL"))
    ),
    "INSERT INTO pool_queue_classes VALUES ('p', 5, FALSE)",
    "INSERT INTO pool_queue_classes VALUES ('q', 7, TRUE)",
)


def _resolved(conn: Connection, now: datetime) -> None:
    pools.touch_pool(conn, pool_id="p", vo="lhcb", requirements_json="{}", original_json="{}", now=now)
    queue_class_store.store_classes(conn, vo="lhcb", config_version=1, classes=CLASSES, now=now)
    _resolve(conn, now)


def _resolve(conn: Connection, now: datetime) -> None:
    digests = [CLASSES[0].digest]
    mapping.store_pool_mapping(conn, pool_id="p", config_version=1, queue_class_digests=digests, now=now)


def _unmapped(conn: Connection) -> list[str]:
    return refresh.list_unmapped(conn, "lhcb")
