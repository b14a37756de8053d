"""Finding pools: in pages, by their VOs and by the sites whose queues they lead to."""

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, exists, or_, select

from taskqueue import pools
from taskqueue.class_sets import has
from taskqueue.pools import Pool
from taskqueue.tables import pool_mappings as mapped
from taskqueue.tables import queue_class_members as members
from taskqueue.tables import queue_classes as classes
from taskqueue.tables import submit_pools as table


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which pools: of these VOs, or that queues at these sites serve."""

    vos: Collection[str] | None = None  #: None: of all
    served_at: Collection[str] = ()  #: sites
    among: Collection[str] | None = None  #: the VOs that are asked for; None: all

    def clauses(self) -> list[ColumnElement[bool]]:
        """It as conditions on the table of pools."""
        found: list[ColumnElement[bool]] = [] if self.among is None else [_of(self.among)]
        if self.vos is None:
            return found
        own = _of(self.vos)
        return [*found, or_(own, _served_at(self.served_at)) if self.served_at else own]


def find(conn: Connection, which: Filter, *, limit: int, after: str = "") -> list[Pool]:
    """A page of pools by id."""
    statement = pools.ALL.where(table.c.pool_id > after, *which.clauses())
    return [Pool(**row) for row in conn.execute(statement.order_by(table.c.pool_id).limit(limit)).mappings()]


def has_pool(conn: Connection, which: Filter, pool_id: str) -> bool:
    """Whether a pool is one of them."""
    statement = select(table.c.pool_id).where(table.c.pool_id == pool_id, *which.clauses())
    return conn.execute(statement).first() is not None


def _of(vos: Collection[str]) -> ColumnElement[bool]:
    return table.c.vo.in_(sorted(vos))


def _served_at(sites: Collection[str]) -> ColumnElement[bool]:
    return exists(
        select(members.c.queue)
        .join(classes, classes.c.queue_class_id == members.c.queue_class_id)
        .join(mapped, mapped.c.vo == members.c.vo)
        .where(
            mapped.c.pool_id == table.c.pool_id,
            members.c.vo == table.c.vo,
            members.c.site.in_(sorted(sites)),
            has(mapped.c.eligible, classes.c.slot),
        )
        .correlate(table)
    )
