"""Views: the same facts in the form in which people ask for them."""

from sqlalchemy import select
from sqlalchemy.schema import CreateView

from cs_config.tables import metadata
from taskqueue import pools
from taskqueue.class_sets import has
from taskqueue.tables import pool_mappings, queue_classes, submit_pools
from taskqueue.tables import queue_class_members as members

#: RFC #7's table pool → Site/CE/Queue: every queue that is eligible for a pool, a row each.
pool_queues = CreateView(
    select(
        pool_mappings.c.pool_id,
        members.c.site,
        members.c.ce,
        members.c.queue,
        pools.STAND["refreshed_at"],
        pools.STAND["config_version"],
    )
    .select_from(
        pool_mappings.join(pools.WITH_VO, submit_pools.c.pool_id == pool_mappings.c.pool_id)
        .join(queue_classes, queue_classes.c.vo == pool_mappings.c.vo)
        .join(members, members.c.queue_class_id == queue_classes.c.queue_class_id)
    )
    .where(has(pool_mappings.c.eligible, queue_classes.c.slot)),
    "pool_queues",
    metadata=metadata,
).table
