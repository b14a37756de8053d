"""Where a pilot is, and which pools may run there: the current mapping, not what the pilot was told.

So no stale, guessed or invented list of pools takes a job that the place is not eligible for.
"""

import sys
from collections.abc import Collection, Sequence
from dataclasses import replace

from cs_config.address import QueueAddress
from cs_config.configuration import Configuration
from cs_config.errors import QueueNotFound
from matcher import limits, node_facts, spelling
from matcher.node_checks import NodeChecks
from matcher.node_facts import Facts
from matcher.resource import Presented
from matcher.served import Reader, Served
from requirements.errors import InvalidRequest, InvalidResource
from requirements.problem import MOST_HINTS, Problem
from requirements.values import fold
from taskqueue import scopes
from taskqueue.claims import Place
from taskqueue.database import Reading

#: Places that are remembered; beyond that we start anew.
_REMEMBERED = 10_000


class Places:
    """Looks places up in the mapping, and remembers them until it changes.

    What is read while another thread learns of a change may be older than that: it is used, since it held
    when its reader began, but not remembered.
    """

    def __init__(self) -> None:
        self._remembered: dict[tuple[frozenset[str], object], Served] = {}
        self._sets: dict[
            frozenset[str], frozenset[str]
        ] = {}  # of pools: one for all places that have the same
        self._checks = NodeChecks()
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
            still = (
                each for served in self._remembered.values() for each in (served.pools, served.kept_back)
            )
            self._sets = {each: each for each in still}

    def served(
        self,
        reading: Reading,
        config: Configuration,
        address: QueueAddress,
        vos: frozenset[str],
        facts: Facts,
        *,
        age: int,
    ) -> Served:
        """A known queue: the pools that it, and this node of it, is eligible for now."""
        declared = [nodes for vo in sorted(vos) if (nodes := config.node_attributes(address, vo))]
        counting = {name: fact for name, fact in facts.items() if any(name in nodes for nodes in declared)}
        key = (vos, (address, node_facts.key(counting), config.version if declared else None))
        if (known := self._remembered.get(key)) is not None:
            return known
        reader = Reader(conn=reading.conn, config=config, checks=self._checks)
        return self._remember(key, reader.at_queue(address, vos, counting), age)

    def served_without_queue(
        self,
        reading: Reading,
        config: Configuration,
        presented: Presented,
        vos: frozenset[str],
        *,
        age: int,
    ) -> Served:
        """No queue is stated: of the pilot's list, the VO's pools with an eligible queue at its site.

        Where single nodes decide at one of the queues, this one must do there: it may be that queue's.
        """
        place = Place(site=presented.site, ce=presented.ce)
        if not presented.pools or not place.site:
            return Served(place=place, pools=frozenset())
        facts = node_facts.key(presented.node_facts)
        key = (vos, (presented.pools, place, facts, config.version))
        if (known := self._remembered.get(key)) is not None:
            return known
        reader = Reader(conn=reading.conn, config=config, checks=self._checks)
        found = reader.at_site(place, presented.pools, vos, presented.node_facts)
        return self._remember(key, found, age)

    def _remember(self, key: tuple[frozenset[str], object], served: Served, age: int) -> Served:
        if age == self._age and served.lasting:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
                self._sets.clear()
            pools, kept_back = self._shared(served.pools), self._shared(served.kept_back)
            served = self._remembered[key] = replace(served, pools=pools, kept_back=kept_back)
        return served

    def _shared(self, pools: frozenset[str]) -> frozenset[str]:
        """The same set, once in memory, and its ids as well: a queue may serve a thousand pools."""
        known = self._sets.get(pools)
        if known is None:
            known = self._sets[pools] = frozenset(map(sys.intern, pools))
        return known


def stated_queue(presented: Presented, config: Configuration) -> QueueAddress | None:
    """The queue that a pilot says it is in, as the configuration spells it.

    Raises:
        InvalidResource: A queue without its site or CE.
        QueueNotFound: The configuration has no such queue.
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
    """What a pilot states, its place as the configuration spells it: all that holds there goes by that."""
    said = (presented.site, presented.ce, presented.queue)
    site, ce, queue = (_spelled(said[: end + 1], config) for end in range(len(said)))
    return replace(presented, site=site, ce=ce, queue=queue)


def _spelled(names: tuple[str, ...], config: Configuration) -> str:
    """The last of the names from the site down; as it is where the configuration does not know it."""
    key = tuple(map(fold, names))
    known = spelling.of_tree(config).get(key) or limits.scopes_of(config).get(key)
    return known.rpartition("/")[2] if known else names[-1]


def usable_by(vos: frozenset[str], presented: Presented, config: Configuration) -> frozenset[str]:
    """Those of the VOs that may use a queue where a pilot is; all, where the tree has no queues."""
    there = queues(config, Place(site=presented.site))
    if not there:
        return vos
    stated = [each for each in there if presented.ce in ("", each.ce)]
    return frozenset(vo for vo in vos if any(config.usable(queue, vo) for queue in stated))


def queues(config: Configuration, place: Place) -> Sequence[QueueAddress]:
    """The queues that a pilot at a place may be in: its own, else all of its CE or site."""
    if place.queue:
        address = QueueAddress(site=place.site, ce=place.ce, queue=place.queue)
        return [address] if config.knows(address) else []
    return [each for each in config.addresses if each.site == place.site and place.ce in ("", each.ce)]


def require_one(
    presented: Presented, config: Configuration, vos: Collection[str], banned: Collection[str]
) -> None:
    """Refuse a pilot that says it is at several places: what holds at one of them would be passed by.

    At sites that are not known, limited or banned nothing holds; of these it may name several, as in DIRAC.

    Raises:
        InvalidResource: It names several sites, CEs or queues.
    """
    if not presented.several:
        return
    named = presented.resource.sites or frozenset()
    limited = (
        scopes.site_of(scope)
        for scope, rules in limits.rules(config).items()
        if any(rule.is_about(vo) for rule in rules for vo in vos)
    )
    if named and named.isdisjoint(map(fold, (*config.sites, *limited, *banned))):
        return
    message = "names several, a pilot that asks for jobs is at one"
    raise InvalidResource([Problem(path=name, message=message) for name in presented.several])


def not_exact(place: Place, scope: str) -> InvalidResource:
    """What a pilot is told whose place does not say whether it is in a scope that counts its jobs."""
    missing = "Queue" if place.ce else "GridCE and Queue" if scope.count("/") > 1 else "GridCE"
    message = f"is not stated; {scope} counts its jobs, so state {missing}"
    return InvalidResource([Problem(path="Queue" if place.ce else "GridCE", message=message)])


def known_queue(text: str, config: Configuration) -> QueueAddress:
    """The queue of this name.

    Raises:
        QueueNotFound: The configuration has no such queue.
    """
    try:
        address = QueueAddress.parse(text)
    except InvalidRequest as error:
        raise QueueNotFound(text, config.suggest(text)) from error
    return config.require(address)


def known_queues(
    queues: Sequence[str], config: Configuration
) -> tuple[dict[str, QueueAddress], list[QueueNotFound]]:
    """The queues that exist, by how they were written, and what is to be said of the others.

    Raises:
        QueueNotFound: None of them exists.
    """
    known: dict[str, QueueAddress] = {}
    unknown: list[QueueNotFound] = []
    for text in dict.fromkeys(queues):
        address = _address(text)
        if address is not None and config.knows(address):
            known[text] = address
        else:
            # A hint is looked for among all queues, and there may be thousands of names.
            meant = config.suggest(text) if len(unknown) < MOST_HINTS else None
            unknown.append(QueueNotFound(text, meant))
    if unknown and not known:
        raise unknown[0]
    return known, unknown


def _address(text: str) -> QueueAddress | None:
    try:
        return QueueAddress.parse(text)
    except InvalidRequest:
        return None
