"""Binding of pilots to queues: named in the token, or else the first queue that the pilot states."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Lock

from sqlalchemy import Engine

from cs_config.tree.address import QueueAddress
from pilotage.service.auth.callers import Caller, Role
from pilotage.service.lease_reports import run_in_thread
from requirements.errors import NotAllowed
from taskqueue.db import database
from taskqueue.pilots import pilots

#: Pilots cached in this process; one more statement for the others.
_REMEMBERED = 100_000
#: Precision of a pilot's `last_seen_at`.
_SEEN_EVERY = timedelta(minutes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FirstRequest:
    """A request of a pilot that this process has not seen for a while."""

    caller: Caller
    queue: QueueAddress
    now: datetime

    @property
    def stamp(self) -> str:
        return self.caller.stamp or ""


class PilotPlaces:
    """Queues of pilots, stored in the database and cached in this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._seen: OrderedDict[str, tuple[QueueAddress, datetime]] = OrderedDict()
        self._lock = Lock()
        self._first_requests = run_in_thread(self._bind_all)

    def is_known(self, caller: Caller, queue: QueueAddress, *, now: datetime) -> bool:
        """Whether the pilot is bound to this queue and was seen within a minute: no statement is needed."""
        seen = self._seen.get(caller.stamp or "")
        return seen is not None and seen[0] == queue and now - seen[1] < _SEEN_EVERY

    def bind(self, caller: Caller, queue: QueueAddress, *, now: datetime) -> None:
        """Record a request of the pilot from this queue; `NotAllowed` if it is bound to another."""
        [refusal] = self._bind_all([_FirstRequest(caller=caller, queue=queue, now=now)])
        if refusal is not None:
            raise refusal

    async def bind_with_others(self, caller: Caller, queue: QueueAddress, *, now: datetime) -> None:
        """As `bind`, in one transaction with all that ask meanwhile: after a restart all pilots do."""
        refusal = await self._first_requests.answer(_FirstRequest(caller=caller, queue=queue, now=now))
        if refusal is not None:
            raise refusal

    def _bind_all(self, requests: Sequence[_FirstRequest]) -> list[NotAllowed | None]:
        return database.run_with_retry(lambda: self._bind_once(requests))

    def _bind_once(self, requests: Sequence[_FirstRequest]) -> list[NotAllowed | None]:
        """The refusal of each request, if any. Rows are locked in the order of their stamps."""
        bound: dict[str, QueueAddress | None] = {}
        with database.writing(self._engine) as conn:
            for each in sorted(requests, key=lambda each: each.stamp):
                queue, vo = each.caller.queue or each.queue, each.caller.vo or ""
                bound[each.stamp] = pilots.bind_queue(
                    conn, stamp=each.stamp, vo=vo, queue=queue, now=each.now
                )
        return [self._remember(each, bound[each.stamp]) for each in requests]

    def _remember(self, request: _FirstRequest, bound: QueueAddress | None) -> NotAllowed | None:
        stamp, queue = request.stamp, request.queue
        if bound is None:
            return NotAllowed(f"the pilot {stamp} was not sent to {queue}")
        with self._lock:
            self._seen[stamp] = bound, request.now
            self._seen.move_to_end(stamp)
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
        if bound != queue:
            return NotAllowed(f"the pilot {stamp} belongs to {bound}, it cannot request jobs for {queue}")
        return None

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
