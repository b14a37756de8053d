"""Views: the same facts in the form in which people ask for them."""

from sqlalchemy import select
from sqlalchemy.schema import CreateView

from cs_config.tables import metadata
from taskqueue.tables import pool_queue_classes as mapped
from taskqueue.tables import queue_class_members as members
from taskqueue.tables import submit_pools

#: RFC #7's table pool → Site/CE/Queue: every queue that is eligible for a pool, a row each.
pool_queues = CreateView(
    select(
        mapped.c.pool_id,
        members.c.site,
        members.c.ce,
        members.c.queue,
        submit_pools.c.refreshed_at,
        submit_pools.c.config_version,
    ).select_from(
        mapped.join(members, members.c.queue_class_id == mapped.c.queue_class_id).join(
            submit_pools, submit_pools.c.pool_id == mapped.c.pool_id
        )
    ),
    "pool_queues",
    metadata=metadata,
).table
