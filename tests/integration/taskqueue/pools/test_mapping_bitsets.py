"""Mappings as sets of queue classes, in SQL and by queue."""

import random
from datetime import datetime

from sqlalchemy import Engine, Integer, bindparam, select

from cs_config.classes.queue_classes import QueueClass
from cs_config.tree.address import QueueAddress
from taskqueue.db import database
from taskqueue.pools import mapping, pools, queue_class_store
from taskqueue.pools.pools import NewPool
from taskqueue.schema.types import BitsetType, has_slot

QUEUES = [QueueAddress(site=f"S{number % 3}", ce="ce", queue=f"q{number}") for number in range(40)]
CLASSES = [QueueClass(digest=f"{n:064}", values={}, queues=(queue,)) for n, queue in enumerate(QUEUES)]


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
            pools.store_mappings(conn, vo=vo, config_version=1, digests=of_vo, now=now)
        together = mapping.list_mapped_pools(conn, ["lhcb", "cms"], QUEUES)
        for queue, each in zip(QUEUES, CLASSES, strict=True):
            alone = mapping.list_mapped_pools(conn, ["lhcb", "cms"], [queue])[queue]
            assert list(alone) == list(together[queue])
            assert {(found.pool_id, found.undecided) for found in alone} == {
                (f"{vo}{pool_id}", of_pool[each.digest])
                for pool_id, of_pool in digests.items()
                for vo in ("lhcb", "cms")
                if each.digest in of_pool
            }
