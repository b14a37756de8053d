"""Binding of pilots to queues: named in the token, or else the first queue that the pilot states."""

from datetime import datetime, timedelta

from sqlalchemy import Engine

from cs_config.cache import Cache
from cs_config.tree.address import QueueAddress
from pilotage.service.auth.callers import Caller, Role
from requirements.errors import NotAllowed
from taskqueue.db import database
from taskqueue.pilots import pilots

#: Pilots cached in this process; one more statement for the others.
_REMEMBERED = 100_000
#: Precision of a pilot's `last_seen_at`.
_SEEN_EVERY = timedelta(minutes=1)


class PilotPlaces:
    """Queues of pilots, stored in the database and cached in this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._seen: Cache[str, tuple[QueueAddress, datetime]] = Cache(_REMEMBERED)

    def is_known(self, caller: Caller, queue: QueueAddress, *, now: datetime) -> bool:
        """Whether the pilot is bound to this queue and was seen within a minute: no statement is needed."""
        seen = self._seen.find(caller.stamp or "")
        return seen is not None and seen[0] == queue and now - seen[1] < _SEEN_EVERY

    def bind(self, caller: Caller, queue: QueueAddress, *, now: datetime) -> None:
        """Record a request of the pilot from this queue; `NotAllowed` if it is bound to another."""
        stamp, vo = caller.stamp or "", caller.vo or ""
        with database.writing(self._engine) as conn:
            bound = pilots.bind_queue(conn, stamp=stamp, vo=vo, queue=caller.queue or queue, now=now)
        if bound is None:
            raise NotAllowed(f"the pilot {stamp} was not sent to {queue}")
        self._seen.store(stamp, (bound, now))
        if bound != queue:
            raise NotAllowed(f"the pilot {stamp} belongs to {bound}, it cannot request jobs for {queue}")

    def require_unbound(self, caller: Caller) -> None:
        """Raise `NotAllowed` if a pilot that states no queue is bound to one."""
        with database.reading(self._engine) as conn:
            bound = caller.queue or pilots.read_bound_queue(conn, caller.stamp or "")
        if bound is not None:
            raise NotAllowed(f"the pilot {caller.stamp} belongs to {bound} and has to state it")


def check_site(caller: Caller, site: str | None) -> None:
    """Raise `NotAllowed` if a director's or gateway's token is not for the site."""
    if caller.role is Role.PILOT or not caller.sites:
        return
    if site not in caller.sites:
        raise NotAllowed(f"the token is for {', '.join(sorted(caller.sites))}, not for {site or 'any site'}")
