"""Which pools may run at a place and at this node of it, as the mapping says now."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection, Select, bindparam, select

from cs_config.address import QueueAddress
from cs_config.configuration import Configuration
from matcher.node_checks import NodeChecks
from matcher.node_facts import Facts
from taskqueue import queue_classes, served_pools
from taskqueue.claims import Place
from taskqueue.class_sets import has
from taskqueue.tables import pool_mappings as mapped
from taskqueue.tables import queue_class_members as members
from taskqueue.tables import queue_classes as classes


def _pools_at(*, ce: bool) -> Select[Any]:
    found = (
        select(
            mapped.c.pool_id,
            has(mapped.c.undecided, classes.c.slot).label("undecided"),
            *(members.c.vo, members.c.ce, members.c.queue),
        )
        .join(members, members.c.vo == mapped.c.vo)
        .join(classes, classes.c.queue_class_id == members.c.queue_class_id)
        .where(
            mapped.c.pool_id.in_(bindparam("pools", expanding=True)),
            has(mapped.c.eligible, classes.c.slot),
            members.c.site == bindparam("site"),
            members.c.vo.in_(bindparam("vos", expanding=True)),
        )
    )
    return found.where(members.c.ce == bindparam("ce")) if ce else found


POOLS_AT_SITE = _pools_at(ce=False)
POOLS_AT_CE = _pools_at(ce=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A place, with the pools that may run there now."""

    place: Place
    pools: frozenset[str]
    kept_back: frozenset[str] = frozenset()  #: pools that may run there, but not at this node
    lasting: bool = True  #: whether it stays right until the mapping changes


@dataclass(slots=True, kw_only=True)
class _Mapped:
    """The mapping of a place as it was read."""

    checked: int | None  #: the configuration version that facts can be checked with; None: it is changing
    pools: set[str] = field(default_factory=set)
    #: Those of the pools that single nodes decide about, by the queue where they do, and VO.
    undecided: dict[QueueAddress, dict[str, set[str]]] = field(default_factory=dict)

    def add(self, pool_id: str, vo: str, address: QueueAddress, *, undecided: bool) -> None:
        """Note a row of the mapping."""
        self.pools.add(pool_id)
        if undecided:
            self.undecided.setdefault(address, {}).setdefault(vo, set()).add(pool_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reads the mapping, and asks about nodes where these decide."""

    conn: Connection
    config: Configuration
    checks: NodeChecks

    def at_queue(self, address: QueueAddress, vos: Iterable[str], facts: Facts) -> Served:
        """The pools that a node of a queue with these facts may run."""
        found = _Mapped(checked=self._checked(vos))
        for each in served_pools.for_queues(self.conn, sorted(vos), [address])[address]:
            found.add(each.pool_id, each.vo, address, undecided=each.undecided)
        return self._served(Place(site=address.site, ce=address.ce, queue=address.queue), found, facts)

    def at_site(self, place: Place, pools: Iterable[str], vos: Iterable[str], facts: Facts) -> Served:
        """Those of the pools that a node with these facts may run, at whichever queue of the place it is."""
        found = _Mapped(checked=self._checked(vos))
        values = {"pools": sorted(pools), "site": place.site, "vos": sorted(vos)}
        if place.ce:
            rows = self.conn.execute(POOLS_AT_CE, {**values, "ce": place.ce})
        else:
            rows = self.conn.execute(POOLS_AT_SITE, values)
        for row in rows:
            address = QueueAddress(site=place.site, ce=row.ce, queue=row.queue)
            found.add(row.pool_id, row.vo, address, undecided=bool(row.undecided))
        return self._served(place, found, facts)

    def _checked(self, vos: Iterable[str]) -> int | None:
        """The version that both the mapping of all the VOs and the configuration at hand are of.

        Read before the mapping: while the version stays, so does what was computed from it. The claim asks
        for it again.
        """
        versions = (queue_classes.version(self.conn, vo) for vo in vos)
        stored = {version for version in versions if version is not None}
        return self.config.version if stored == {self.config.version} else None

    def _served(self, place: Place, found: _Mapped, facts: Facts) -> Served:
        if not found.undecided:
            return Served(place=place, pools=frozenset(found.pools))
        kept_back = {
            pool_id
            for address, by_vo in found.undecided.items()
            for pool_id in self._failing(address, by_vo, facts, checkable=found.checked is not None)
        }
        return Served(
            place=replace(place, checked=found.checked),
            pools=frozenset(found.pools - kept_back),
            kept_back=frozenset(kept_back),
            lasting=found.checked is not None,
        )

    def _failing(
        self, address: QueueAddress, by_vo: dict[str, set[str]], facts: Facts, *, checkable: bool
    ) -> set[str]:
        """The pools that this node of the queue does not do for, as far as one can tell."""
        asked = {pool_id for pool_ids in by_vo.values() for pool_id in pool_ids}
        if not checkable:
            return asked
        return asked - self.checks.fulfilled(self.conn, self.config, address, by_vo, facts)
