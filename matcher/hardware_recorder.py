"""Slots of pilots and their hardware, stored once a minute; each shape of a site once a day."""

from collections.abc import Callable, Collection, Mapping
from datetime import date, datetime
from typing import Final

from sqlalchemy import Engine

from matcher.claim.matcher import Matcher
from matcher.pauses import no_pause
from matcher.request.match_request import MatchRequest
from taskqueue.db import database
from taskqueue.pilots import hardware, pilots
from taskqueue.pilots.hardware import HardwareShape

#: Pilots, and shapes, of a day in memory; what comes beyond them is not stored that day.
_MOST: Final = 50_000
#: Of them stored in one transaction.
_AT_ONCE: Final = 100


class HardwareRecorder:
    """The hardware of the pilots that ask one process; `store` is for one thread at a time.

    Only the first request of a pilot has its whole slot; later ones have what is left.
    """

    def __init__(self, engine: Engine, matcher: Matcher) -> None:
        self._engine = engine
        self._matcher = matcher
        self._day: date | None = None
        self._pilots: set[str] = set()  #: that have asked
        self._slots: dict[str, HardwareShape] = {}  #: of pilots that asked since the last time, by stamp
        self._new: dict[tuple[str, HardwareShape], None] = {}
        self._stored: set[tuple[str, HardwareShape]] = set()  #: today

    def count(self, request: MatchRequest, sites: Collection[str]) -> None:
        """Note the hardware of a pilot that asks for the first time at one of the configuration's sites."""
        stated, stamp = request.presented, request.caller.stamp
        if stated.site not in sites or stated.job_id is not None or stamp in self._pilots:
            return
        if stamp is not None:
            if len(self._pilots) >= _MOST:
                return
            self._pilots.add(stamp)
        seen = stated.site, HardwareShape.from_resource(stated.resource)
        if stamp is not None:
            self._slots[stamp] = seen[1]
        if seen in self._stored or seen in self._new:
            return
        if len(self._new) + len(self._stored) < _MOST and seen[1].is_short:
            self._new[seen] = None

    def store(self, pause: Callable[[], None] = no_pause) -> None:
        """Store what is new since the last time; what cannot be stored is kept."""
        now = self._matcher.now()
        if now.date() != self._day:
            self._day = now.date()
            self._stored.clear()
            self._pilots.clear()
        slots, new = list(self._slots.copy().items()), list(self._new.copy())
        for begin in range(0, len(slots), _AT_ONCE):
            self._store_slots(dict(slots[begin : begin + _AT_ONCE]), now)
            pause()
        for begin in range(0, len(new), _AT_ONCE):
            self._store_new(new[begin : begin + _AT_ONCE], now)
            pause()

    def _store_slots(self, slots: Mapping[str, HardwareShape], now: datetime) -> None:
        _write_slots(self._engine, {stamp: shape.digest for stamp, shape in slots.items()}, now)
        for stamp in slots:
            self._slots.pop(stamp, None)

    def _store_new(self, new: Collection[tuple[str, HardwareShape]], now: datetime) -> None:
        with database.writing(self._engine) as conn:
            hardware.store_seen(conn, new, now=now.replace(hour=0, minute=0, second=0, microsecond=0))
        with database.writing(self._engine) as conn:
            hardware.remove_excess(conn, {site for site, _ in new})
        self._stored.update(new)
        for each in new:
            self._new.pop(each, None)


@database.retry_on_conflict
def _write_slots(engine: Engine, shapes: Mapping[str, str], now: datetime) -> None:
    with database.writing(engine) as conn:
        pilots.record_slots(conn, shapes, now=now.replace(second=0, microsecond=0))
