"""What must hold at the moment of a claim, beyond rules and pools: the throttles of the place.

The rows of the scopes are locked, in the order of their names, before anything is counted, and the
reservations are written with the claim: what one transaction sees free, no other gives away. Where
nothing is configured, nothing is asked.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from sqlalchemy import Connection

from cs_config.configuration import Configuration
from matcher import standings
from matcher.standings import Standing
from requirements.values import Value
from taskqueue import reservations, scopes
from taskqueue.claims import Place, Taken

THROTTLED = "throttled"


class Gate:
    """What one place lets through; each request goes through it alone."""

    def __init__(self, standing: Sequence[Standing]) -> None:
        self._standing = standing
        self.refused: str | None = None  #: one word, once something was not let through
        self.reserved: list[tuple[str, reservations.Key]] = []

    @property
    def asks_job(self) -> bool:
        """Whether `admits` has to be asked for each job."""
        return any(each.asks_job for each in self._standing)

    def most(self, wanted: int) -> int:
        """How many of the wanted jobs may be taken at once."""
        rooms = [room for each in self._standing if (room := each.room().jobs) is not None]
        most = min((wanted, *rooms))
        if most <= 0 < wanted:
            self.refused = THROTTLED
        return 1 if most > 1 and self.asks_job else max(most, 0)

    def admits(self, job: Mapping[str, Value]) -> bool:
        """Whether this job may be taken next."""
        admitted = all(each.throttled.admits(job) for each in self._standing if each.asks_job)
        if not admitted:
            self.refused = THROTTLED
        return admitted

    def passed(self, taken: Iterable[Taken]) -> None:
        """Count jobs that were taken."""
        keys = [(row.job_id, row.epoch) for row in taken]
        for each in self._standing:
            each.matched(len(keys))
            self.reserved += ((each.scope.scope, key) for key in keys)


class Gates:
    """The gates of the places that one transaction claims for."""

    def __init__(self, standing: Mapping[str, Standing]) -> None:
        self._standing = standing
        self._gates: list[Gate] = []

    def at(self, config: Configuration, place: Place) -> Gate | None:
        """The gate of a place; None: nothing holds there."""
        found = [self._standing[name] for name in throttled(config, place)]
        if not found:
            return None
        self._gates.append(Gate(found))
        return self._gates[-1]

    def reserve(self, conn: Connection) -> None:
        """Write down what passed, after its attempts were opened."""
        reservations.make(conn, (each for gate in self._gates for each in gate.reserved))


def throttled(config: Configuration, place: Place) -> list[str]:
    """The scopes with a throttle that a place is in, the site first."""
    if not config.throttles or not place.site:
        return []
    named = "/".join(part for part in (place.site, place.ce, place.queue) if part)
    return [name for name in scopes.line(named) if name in config.throttles]


def lock(conn: Connection, config: Configuration, places: Collection[Place], now: datetime) -> Gates:
    """The gates of places, locked until the end of the transaction."""
    names = {name for place in places for name in throttled(config, place)}
    locked = scopes.lock(conn, names) if names else {}
    return Gates(standings.of(conn, config, locked.values(), now))


def look(conn: Connection, config: Configuration, places: Collection[Place], now: datetime) -> Gates:
    """The same for a look only: who finds a gate closed need not write."""
    names = {name for place in places for name in throttled(config, place)}
    return Gates(standings.of(conn, config, scopes.read(conn, names).values(), now))
