"""Leader leases of the agents: one row per agent with expiry, fencing number and time of the last cycle.

All times are the database's.

A process that was suspended while another took over does not notice it. Its work is safe nevertheless: each
transaction begins with `is_held`, which keeps the lease row locked until the transaction ends.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, and_, bindparam, case, or_, select, update

from taskqueue.db import sql
from taskqueue.schema.tables import agent_leases as table

#: No lease can last longer: it was made before the database's clock was set back.
_LATEST = bindparam("latest", type_=table.c.expires_at.type)
_NOW = bindparam("now", type_=table.c.expires_at.type)


_NEW = sql.insert(table)
_IS_SAME_HOLDER = table.c.holder == _NEW.excluded.holder
ACQUIRE = _NEW.on_conflict_do_update(
    index_elements=["name"],
    set_={
        "holder": _NEW.excluded.holder,
        "expires_at": _NEW.excluded.expires_at,
        "fence": case((_IS_SAME_HOLDER, table.c.fence), else_=table.c.fence + 1),
    },
    where=or_(_IS_SAME_HOLDER, table.c.expires_at <= _NOW, table.c.expires_at > _LATEST),
).returning(table.c.fence)


_IS_OURS = and_(table.c.name == bindparam("the_name"), table.c.fence == bindparam("the_fence"))

#: FOR SHARE: another process can take over only after this transaction.
IS_HELD = select(table.c.fence).where(_IS_OURS).with_for_update(read=True)

RENEW = update(table).where(_IS_OURS).values(expires_at=bindparam("until"))
FINISH_CYCLE = (
    update(table).where(_IS_OURS).values(last_cycle_at=bindparam("now"), broken=bindparam("those_broken"))
)


def acquire(conn: Connection, *, name: str, holder: str, now: datetime, ttl: timedelta) -> int | None:
    """Get or extend the lease of an agent; the fencing number, or None if another process holds the lease.

    The holder's name is unique to the process and never used again. `ttl` is the time until expiry.
    """
    row = {"name": name, "holder": holder, "fence": 1, "expires_at": now + ttl}
    values = {**row, "now": now, "latest": now + 2 * ttl}
    fence: int | None = conn.execute(ACQUIRE, values).scalar_one_or_none()
    return fence


def is_held(conn: Connection, *, name: str, fence: int) -> bool:
    """Whether the lease is still held; it stays so until the transaction ends."""
    return conn.execute(IS_HELD, {"the_name": name, "the_fence": fence}).first() is not None


def renew(conn: Connection, *, name: str, fence: int, until: datetime) -> None:
    """Extend the lease, unless it was lost."""
    conn.execute(RENEW, {"the_name": name, "the_fence": fence, "until": until})


def finish_cycle(
    conn: Connection, *, name: str, fence: int, broken: Collection[str] = (), now: datetime
) -> bool:
    """Record the end of a cycle, and the VOs whose work failed in it; False: the lease was lost."""
    values = {"the_name": name, "the_fence": fence, "those_broken": json.dumps(sorted(broken)), "now": now}
    return bool(conn.execute(FINISH_CYCLE, values).rowcount)


HOLDERS = select(table.c.name, table.c.holder)
LAST_CYCLES = select(table.c.name, table.c.last_cycle_at)
BROKEN = select(table.c.name, table.c.broken)


def list_holders(conn: Connection) -> Mapping[str, str]:
    """The last holder of the lease of each agent."""
    return {row.name: row.holder for row in conn.execute(HOLDERS)}


def list_last_cycles(conn: Connection) -> Mapping[str, datetime | None]:
    """Time of the latest completed cycle of every agent that ever held its lease."""
    return {row.name: row.last_cycle_at for row in conn.execute(LAST_CYCLES)}


def list_broken(conn: Connection) -> Mapping[str, Sequence[str]]:
    """VOs whose work failed in the latest completed cycle, by agent."""
    return {row.name: json.loads(row.broken) for row in conn.execute(BROKEN)}
