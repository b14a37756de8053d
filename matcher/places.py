"""Where a pilot is, and which pools may run there: the current mapping, not what the pilot was told.

So no stale, guessed or invented list of pools takes a job that the place is not eligible for.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sqlalchemy import Connection, Select, bindparam, select

from cs_config.address import QueueAddress
from cs_config.configuration import Configuration
from matcher.errors import UnknownQueue
from matcher.resource import Presented
from requirements.errors import InvalidRequest, InvalidResource
from requirements.problem import Problem
from requirements.values import fold
from taskqueue import queue_classes
from taskqueue.claims import Place
from taskqueue.tables import pool_queue_classes, submit_pools
from taskqueue.views import pool_queues

POOLS_OF_CLASS = select(pool_queue_classes.c.pool_id).where(
    pool_queue_classes.c.queue_class_id == bindparam("queue_class_id")
)


def _pools_at(*, ce: bool) -> Select[str]:
    found = (
        select(pool_queues.c.pool_id)
        .join(submit_pools, submit_pools.c.pool_id == pool_queues.c.pool_id)
        .where(
            pool_queues.c.pool_id.in_(bindparam("pools", expanding=True)),
            pool_queues.c.site == bindparam("site"),
            submit_pools.c.vo.in_(bindparam("vos", expanding=True)),
        )
        .distinct()
    )
    return found.where(pool_queues.c.ce == bindparam("ce")) if ce else found


POOLS_AT_SITE = _pools_at(ce=False)
POOLS_AT_CE = _pools_at(ce=True)


#: Places that are remembered; beyond that we start anew.
_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A place, with the pools that may run there now."""

    place: Place
    pools: frozenset[str]


class Places:
    """Looks places up in the mapping, and remembers them until it changes.

    What is read while another thread learns of a change may be older than that: it is used, since it held
    when its reader began, but not remembered.
    """

    def __init__(self) -> None:
        self._remembered: dict[tuple[frozenset[str], object], Served] = {}
        self._age = 0

    @property
    def age(self) -> int:
        """How many changes are known; a reader notes it before it begins to read."""
        return self._age

    def forget(self, vos: frozenset[str]) -> None:
        """The mapping of these VOs has changed."""
        if vos:
            self._age += 1
            self._remembered = {
                key: served for key, served in self._remembered.items() if key[0].isdisjoint(vos)
            }

    def served(self, conn: Connection, address: QueueAddress, vos: frozenset[str], *, age: int) -> Served:
        """A known queue: the pools that it is eligible for now."""
        key = (vos, address)
        return self._remembered.get(key) or self._remember(key, _at_queue(conn, address, vos), age)

    def served_without_queue(
        self, conn: Connection, presented: Presented, vos: frozenset[str], *, age: int
    ) -> Served:
        """No queue is stated: of the pilot's list, the VO's pools with an eligible queue at its site."""
        if not presented.pools or not presented.site:
            return _somewhere(presented, frozenset())
        key = (vos, (presented.pools, presented.site, presented.ce))
        return self._remembered.get(key) or self._remember(key, _at_site(conn, presented, vos), age)

    def _remember(self, key: tuple[frozenset[str], object], served: Served, age: int) -> Served:
        if age == self._age:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            self._remembered[key] = served
        return served


def stated_queue(presented: Presented, config: Configuration) -> QueueAddress | None:
    """The queue that a pilot says it is in, as the configuration spells it.

    Raises:
        InvalidResource: A queue without its site or CE.
        UnknownQueue: The configuration has no such queue.
    """
    if not presented.queue:
        return None
    missing = [name for name, said in (("Site", presented.site), ("GridCE", presented.ce)) if not said]
    if missing:
        message = f"{presented.queue} is stated without {' and '.join(missing)}; a queue is Site/CE/Queue"
        raise InvalidResource([Problem(path="Queue", message=message)])
    text = f"{presented.site}/{presented.ce}/{presented.queue}"
    return known_queue(text, config)


def spelled(presented: Presented, config: Configuration) -> Presented:
    """The site and CE that a pilot states, as the configuration spells them: limits go by that name."""
    site = _known(presented.site, config.sites)
    ces = {each.ce for each in config.addresses if each.site == site} if presented.ce else ()
    return replace(presented, site=site, ce=_known(presented.ce, ces))


def _known(name: str, known: Iterable[str]) -> str:
    return next((each for each in known if fold(each) == fold(name)), name)


def known_queue(text: str, config: Configuration) -> QueueAddress:
    """The queue of this name.

    Raises:
        UnknownQueue: The configuration has no such queue.
    """
    try:
        address = QueueAddress.parse(text)
    except InvalidRequest as error:
        raise UnknownQueue(text, config.suggest(text)) from error
    if not config.knows(address):
        raise UnknownQueue(text, config.suggest(text))
    return address


def _at_queue(conn: Connection, address: QueueAddress, vos: Iterable[str]) -> Served:
    pools: set[str] = set()
    for vo in vos:
        queue_class_id = queue_classes.class_of(conn, vo, address)
        if queue_class_id is not None:
            pools.update(conn.execute(POOLS_OF_CLASS, {"queue_class_id": queue_class_id}).scalars())
    place = Place(site=address.site, ce=address.ce, queue=address.queue)
    return Served(place=place, pools=frozenset(pools))


def _at_site(conn: Connection, presented: Presented, vos: Iterable[str]) -> Served:
    values = {"pools": sorted(presented.pools), "site": presented.site, "vos": sorted(vos)}
    if presented.ce:
        found = conn.execute(POOLS_AT_CE, {**values, "ce": presented.ce})
    else:
        found = conn.execute(POOLS_AT_SITE, values)
    return _somewhere(presented, frozenset(found.scalars()))


def _somewhere(presented: Presented, pools: frozenset[str]) -> Served:
    return Served(place=Place(site=presented.site, ce=presented.ce), pools=pools)
