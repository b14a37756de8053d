"""Nodes that take no jobs for a while, since pilots there ended because of their host.

Each VO's pilots count apart: what those of another one state about a node excludes it for theirs only. A node
is excluded after several such ends in a row. While it is, a pilot may try it every few minutes: the first job
that ends there readmits the node, as an admin can at any time. All of this follows from the rows of pilots.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import (
    Connection,
    FromClause,
    Select,
    and_,
    bindparam,
    exists,
    false,
    func,
    or_,
    select,
    update,
)

from requirements.states import PILOT_ACTIVE, PilotStatus
from taskqueue.errors import NodeNotExcluded
from taskqueue.pilots import pilots
from taskqueue.pilots.pilots import Pilot
from taskqueue.schema.tables import attempts
from taskqueue.schema.tables import pilots as table

#: Pilots in a row that end because of their node before it is excluded, and for how long it is.
MOST_TROUBLES: Final = 3
EXCLUDED_FOR: Final = timedelta(hours=1)
#: So often a pilot may try an excluded node.
TRIAL_EVERY: Final = timedelta(minutes=5)
#: A job that has run for so long shows that jobs can run on its node.
_PROVEN = timedelta(minutes=10)
#: How long ends are looked back on, to see since when a node is excluded.
_LOOKED_BACK = timedelta(days=1)

#: Why a pilot got no job, in a word, if its node was excluded.
EXCLUDED_NODE: Final = "node_excluded"

_is_pilot = table.c.stamp == bindparam("the_stamp")
STORE_NODE = update(table).where(_is_pilot).values(node=bindparam("the_node"), empty_reason="")
REFUSE = update(table).where(_is_pilot).values(empty_reason=EXCLUDED_NODE)

_good = table.alias("good")
#: One that ended without a job, and not because of its node, shows nothing about it.
_IS_FOLLOWED_BY_A_JOB = exists().where(
    _good.c.site == table.c.site,
    _good.c.node == table.c.node,
    _good.c.vo == table.c.vo,
    ~_good.c.host_trouble,
    # What a pilot did before says nothing, though it still runs there: a disk can be full only since then.
    or_(
        and_(
            _good.c.ended_jobs > 0,
            _good.c.status.not_in([each.value for each in sorted(PILOT_ACTIVE)]),
            _good.c.updated_at > table.c.updated_at,
        ),
        exists()
        .where(
            attempts.c.stamp == _good.c.stamp,
            attempts.c.closed_as == "finished",
            attempts.c.closed_at > table.c.updated_at,
        )
        .correlate(table, _good),
        exists()
        .where(
            attempts.c.stamp == _good.c.stamp,
            attempts.c.closed_at.is_(None),
            attempts.c.started_at > table.c.updated_at,
            attempts.c.started_at <= bindparam("proven", type_=attempts.c.started_at.type),
        )
        .correlate(table, _good),
    ),
)
_is_broken = or_(*(table.c.status == each.value for each in (PilotStatus.ABORTED, PilotStatus.FAILED)))
_by_node: Any = {"partition_by": (table.c.site, table.c.vo, table.c.node)}
_LATEST_FIRST: Any = (table.c.updated_at.desc(), table.c.stamp)
_TROUBLES = select(
    table.c.site,
    table.c.vo,
    table.c.node,
    table.c.updated_at.label("last"),
    table.c.status_reason.label("reason"),
    func.row_number().over(**_by_node, order_by=_LATEST_FIRST).label("place"),
    func.min(table.c.updated_at).over(**_by_node).label("since"),
    # Of the newest row, the only one that counts: the end that excludes the node, with those after it.
    func.lead(table.c.updated_at, MOST_TROUBLES - 1, type_=table.c.updated_at.type)
    .over(**_by_node, order_by=_LATEST_FIRST)
    .label("decisive"),
).where(
    _is_broken,
    table.c.host_trouble,
    table.c.site != "",
    table.c.node != "",
    table.c.updated_at >= bindparam("looked_back"),
    ~_IS_FOLLOWED_BY_A_JOB,
)
_AT_SITE = _TROUBLES.where(table.c.site == bindparam("the_site"))
_AT_NODE = _AT_SITE.where(table.c.node == bindparam("the_node"), table.c.vo == bindparam("the_vo"))


def _select_excluded(troubles: Select[Any]) -> Select[Any]:
    found: FromClause = troubles.subquery()
    return (
        select(*(found.c[name] for name in ("site", "vo", "node", "since", "last", "decisive", "reason")))
        .where(found.c.place == 1, found.c.decisive >= bindparam("recently"))
        .order_by(found.c.site, found.c.node, found.c.vo)
    )


EXCLUDED = _select_excluded(_TROUBLES)
EXCLUDED_AT_SITE = _select_excluded(_AT_SITE)
IS_EXCLUDED = _select_excluded(_AT_NODE)
#: The last end there, so that of two pilots which come at once the second one sees the first.
LOCK_LAST = (
    select(table.c.stamp)
    .where(
        table.c.site == bindparam("the_site"),
        table.c.node == bindparam("the_node"),
        table.c.vo == bindparam("the_vo"),
        table.c.updated_at == bindparam("the_last", type_=table.c.updated_at.type),
        table.c.host_trouble,
    )
    .order_by(table.c.stamp)
    .with_for_update(key_share=True)
)
#: Another pilot that came to the node after the last end there, and has not ended.
ON_TRIAL = (
    select(table.c.stamp)
    .where(
        table.c.site == bindparam("the_site"),
        table.c.node == bindparam("the_node"),
        table.c.vo == bindparam("the_vo"),
        table.c.stamp != bindparam("the_stamp"),
        or_(*(table.c.status == each.value for each in sorted(PILOT_ACTIVE))),
        table.c.updated_at > bindparam("since"),
    )
    .limit(1)
)
READMIT = (
    update(table)
    .where(
        table.c.site == bindparam("the_site"),
        table.c.node == bindparam("the_node"),
        _is_broken,
        table.c.host_trouble,
        table.c.updated_at >= bindparam("looked_back"),
    )
    .values(host_trouble=false())
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeExclusion:
    """A node that takes no jobs of a VO for a while."""

    site: str
    node: str
    vo: str
    since: datetime  #: first end in a row because of the host
    last: datetime  #: the last one
    decisive: datetime  #: the one that excludes it together with those after it
    reason: str  #: of that pilot's end

    @property
    def until(self) -> datetime:
        """When it ends by itself."""
        return self.decisive + EXCLUDED_FOR

    @property
    def next_trial_at(self) -> datetime:
        """From then on a pilot may try the node."""
        return self.last + TRIAL_EVERY


def admit_pilot(conn: Connection, stamp: str, node: str, *, now: datetime) -> NodeExclusion | None:
    """Store the node of a pilot; None: it may take jobs there, else why it may not."""
    conn.execute(STORE_NODE, {"the_stamp": stamp, "the_node": node})
    pilot = pilots.get_pilot(conn, stamp)
    found = _find_exclusion(conn, pilot, node, now=now) if pilot.site and node else None
    if found is not None:
        conn.execute(REFUSE, {"the_stamp": stamp})
    return found


def _find_exclusion(conn: Connection, pilot: Pilot, node: str, *, now: datetime) -> NodeExclusion | None:
    """Why a pilot may not take jobs on a node; None: it may."""
    at_node = {"the_site": pilot.site, "the_node": node, "the_vo": pilot.vo}
    row = conn.execute(IS_EXCLUDED, at_node | _times(now)).first()
    if row is None:
        return None
    found = NodeExclusion(**row._mapping)  # noqa: SLF001 - SQLAlchemy's public name
    if now < found.next_trial_at:
        return found
    conn.execute(LOCK_LAST, {**at_node, "the_last": found.last})
    since = max(found.last, now - TRIAL_EVERY)
    is_taken = conn.execute(ON_TRIAL, {**at_node, "the_stamp": pilot.stamp, "since": since}).first()
    return None if is_taken is None else found


def list_excluded(
    conn: Connection, *, site: str | None = None, vos: Collection[str] | None = None, now: datetime
) -> list[NodeExclusion]:
    """The nodes of a site (None: of all) that are excluded for some VOs (None: for any)."""
    rows = conn.execute(
        EXCLUDED if site is None else EXCLUDED_AT_SITE,
        _times(now) | ({} if site is None else {"the_site": site}),
    )
    found = [NodeExclusion(**row._mapping) for row in rows]  # noqa: SLF001 - SQLAlchemy's public name
    return [each for each in found if vos is None or each.vo in vos]


def readmit(conn: Connection, site: str, node: str, *, now: datetime) -> None:
    """End the exclusion of a node for every VO: what happened there does not count any more.

    Raises:
        NodeNotExcluded: It is not excluded.
    """
    excluded = {each.node for each in list_excluded(conn, site=site, now=now)}
    if node not in excluded:
        raise NodeNotExcluded(node, site=site, excluded=excluded)
    conn.execute(READMIT, {"the_site": site, "the_node": node, "looked_back": now - _LOOKED_BACK})


def _times(now: datetime) -> dict[str, object]:
    return {"recently": now - EXCLUDED_FOR, "looked_back": now - _LOOKED_BACK, "proven": now - _PROVEN}
