"""Nodes that cannot isolate jobs, by what pilots reported at their end.

A pilot whose director states a kind of isolation ends on such a node before its first request; another one
runs jobs that are not isolated.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, bindparam, case, func, literal, select

from cs_config.tree.address import QueueAddress
from requirements.states import PILOT_ENDS
from taskqueue.schema.tables import pilots as table

#: Why a pilot got no job, in a word: this with the kind of isolation that its node does not allow.
NO_ISOLATION: Final = "no_isolation_"
#: In the reason of the end of a pilot that ran jobs without isolation.
NOT_ISOLATED: Final = "jobs are not isolated on this host"

_ended_for_it = table.c.empty_reason.startswith(NO_ISOLATION, autoescape=True)
_recent = (
    select(
        *(table.c[name] for name in ("site", "ce", "queue", "node")),
        case(
            (_ended_for_it, func.substr(table.c.empty_reason, len(NO_ISOLATION) + 1)),
            (table.c.status_reason.contains(NOT_ISOLATED), literal("")),
        ).label("kind"),
    )
    .where(
        table.c.vo == bindparam("the_vo"),
        table.c.site.in_(bindparam("sites", expanding=True)),
        table.c.status.in_([each.value for each in sorted(PILOT_ENDS)]),
        table.c.updated_at >= bindparam("since", type_=table.c.updated_at.type),
    )
    .cte("recent")
)
_QUEUE = (_recent.c.site, _recent.c.ce, _recent.c.queue)
_ended = select(*_QUEUE, func.count().label("pilots")).group_by(*_QUEUE).cte("ended")
GAPS = (
    select(
        *_QUEUE,
        _recent.c.kind,
        func.count().label("pilots"),
        func.max(_recent.c.node).label("node"),
        _ended.c.pilots.label("of"),
    )
    .join(
        _ended,
        (_ended.c.site == _recent.c.site)
        & (_ended.c.ce == _recent.c.ce)
        & (_ended.c.queue == _recent.c.queue),
    )
    .where(_recent.c.kind.is_not(None), _recent.c.queue != "")
    .group_by(*_QUEUE, _recent.c.kind, _ended.c.pilots)
    .order_by(*_QUEUE, _recent.c.kind)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationGap:
    """Pilots of a queue that ended on nodes which cannot isolate jobs."""

    queue: QueueAddress
    kind: str  #: the isolation that their director demands; empty: none, they ran jobs without
    pilots: int
    of: int  #: pilots that ended at the queue
    node: str  #: the node of one of them; empty: not reported


def list_gaps(conn: Connection, vo: str, sites: Collection[str], *, since: datetime) -> list[IsolationGap]:
    """The gaps at sites by the pilots of a VO that have ended since then."""
    rows = conn.execute(GAPS, {"the_vo": vo, "sites": sorted(sites), "since": since})
    return [
        IsolationGap(
            queue=QueueAddress(site=row.site, ce=row.ce, queue=row.queue),
            kind=row.kind,
            pilots=row.pilots,
            of=row.of,
            node=row.node,
        )
        for row in rows
    ]
