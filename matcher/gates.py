"""What must hold at the moment of a claim, beyond rules and pools: bans, limits, delays and throttles.

The rows of the scopes are locked, in the order of their names, before anything is counted, and what is
taken is written down with the claim: what one transaction sees free, no other gives away. Where nothing
is configured, nothing is locked or counted.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import lru_cache

from sqlalchemy import Connection

from cs_config.configuration import Configuration
from matcher import kinds_waiting, limits, standings
from matcher.doorkeeper import Doorkeeper
from matcher.gate import Gate
from matcher.kinds_waiting import KnownKinds
from matcher.limits import Bucket, Condition
from matcher.standings import Standing
from taskqueue import bans, matching_delays, reservations, scopes
from taskqueue.claims import Place
from taskqueue.matching_delays import Level


class Gates:
    """The gates of the places that one transaction claims for."""

    def __init__(
        self,
        standing: Mapping[str, Standing],
        conditions: Mapping[str, Sequence[Condition]],
        banned: Collection[str],
        kinds: KnownKinds,
    ) -> None:
        self._kinds = kinds
        self._standing = standing
        self._conditions = conditions
        self._banned = banned
        self._gates: list[Gate] = []

    def at(self, place: Place, keeper: Doorkeeper | None = None) -> Gate | None:
        """The gate of a place; None: nothing holds there.

        Args:
            place: Where jobs would run.
            keeper: Who has to be asked about each of them.
        """
        names = _line(place)
        standing = [self._standing[name] for name in names if name in self._standing]
        conditions = [each for name in names for each in self._conditions.get(name, ())]
        banned = place.site in self._banned
        if not (standing or conditions or banned or keeper):
            return None
        self._gates.append(Gate(standing, conditions, banned=banned, keeper=keeper, kinds=self._kinds))
        return self._gates[-1]

    def write(self, conn: Connection) -> None:
        """Write down what passed, after its attempts were opened."""
        reservations.make(conn, (each for gate in self._gates for each in gate.reserved))
        buckets = (each for these in self._conditions.values() for each in these if isinstance(each, Bucket))
        matching_delays.store(
            conn, ((each.key, Level(tokens=each.tokens, at=each.at)) for each in buckets if each.changed)
        )


def lock(conn: Connection, config: Configuration, places: Collection[Place], now: datetime) -> Gates:
    """The gates of places, locked until the end of the transaction."""
    names = _names(config, places)
    locked = scopes.lock(conn, names) if names else {}
    sites = {place.site for place in places if place.site}
    banned = bans.of(conn, sites, now=now) if sites else {}
    return _gates(conn, config, locked, banned, now)


def look(
    conn: Connection,
    config: Configuration,
    places: Collection[Place],
    now: datetime,
    *,
    banned: Collection[str],
) -> Gates:
    """The same for a look only: who finds a gate closed need not write.

    Args:
        conn: Any connection.
        config: The current configuration.
        places: Where the jobs would run.
        now: The time.
        banned: The sites that are, read once for many places.
    """
    return _gates(conn, config, scopes.read(conn, _names(config, places)), banned, now)


def counts(config: Configuration, place: Place) -> bool:
    """Whether a limit, delay or throttle may hold there: only then is anything locked or counted."""
    known = limits.rules(config)
    return any(name in config.throttles or name in known for name in _line(place))


def throttled(config: Configuration, place: Place) -> tuple[str, ...]:
    """The scopes with a throttle that a place is in, the site first."""
    return tuple(name for name in _line(place) if name in config.throttles)


def below(config: Configuration, place: Place, vos: Collection[str]) -> tuple[str, ...]:
    """The scopes within a place that have a throttle, or a limit on one of these VOs: it may be in any."""
    line = _line(place)
    if not line:
        return ()
    limited = (
        name
        for name, rules in limits.rules(config).items()
        if any(rule.is_about(vo) for rule in rules for vo in vos)
    )
    return tuple(sorted(name for name in {*config.throttles, *limited} if name.startswith(f"{line[-1]}/")))


def _gates(
    conn: Connection,
    config: Configuration,
    found: Mapping[str, scopes.Scope],
    banned: Collection[str],
    now: datetime,
) -> Gates:
    limited = [name for name in found if name in limits.rules(config)]
    return Gates(
        standings.of(conn, config, [found[name] for name in found if name in config.throttles], now),
        limits.conditions(conn, config, limited, now) if limited else {},
        banned,
        kinds_waiting.known(conn),
    )


def _names(config: Configuration, places: Collection[Place]) -> set[str]:
    known = limits.rules(config)
    return {name for place in places for name in _line(place) if name in config.throttles or name in known}


def _line(place: Place) -> tuple[str, ...]:
    """The scopes that a place is in, the site first."""
    return _line_of(place.site, place.ce, place.queue)


@lru_cache(maxsize=10_000)
def _line_of(site: str, ce: str, queue: str) -> tuple[str, ...]:
    return scopes.line("/".join(part for part in (site, ce, queue) if part)) if site else ()
