"""A replica that is read instead of the primary, for what may be some seconds late.

Each process of the service commits a row every five seconds (`history.record`). A replica that shows the one
of a certain time has all that was committed before it, however it gets that and through how many servers. So
its age bounds how late the replica is, and will be for the next seconds even if it hangs. Beyond that, and
when the replica is away, the primary is read.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, Engine, bindparam, func, select
from sqlalchemy.exc import InterfaceError, OperationalError

from taskqueue.db import clock, database
from taskqueue.schema.tables import jobs, seen_commits

log = logging.getLogger(__name__)

#: Seconds that what is read may be late at most.
MOST_LATE: Final = 20.0
#: Seconds between two looks at the replica.
EVERY: Final = 5.0

NEWEST = select(func.max(seen_commits.c.at))
COUNT = select(func.count()).where(jobs.c.job_id.in_(bindparam("job_ids", expanding=True)))


def measure_lateness(replica: Engine, now: datetime) -> float:
    """Seconds that a replica may be late at most; infinite if no process of the service has committed there.

    Args:
        replica: It, not the primary.
        now: Time of the database.

    Raises:
        OperationalError: Or another of `database.UNAVAILABLE`: it does not answer.
    """
    with database.reading(replica) as conn:
        newest: datetime | None = conn.execute(NEWEST).scalar_one()
    # A clock that was set back makes no replica newer than it is.
    return math.inf if newest is None else abs((now - newest).total_seconds())


class Replica:
    """A replica, used while it is known to be at most `MOST_LATE` seconds late; else the primary."""

    def __init__(
        self,
        primary: Engine,
        replica: Engine | None = None,
        *,
        clock: Callable[[], datetime] = clock.utc_now,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """Contacts nothing; the primary is read until the first look finds the replica good.

        Args:
            primary: Of the installation.
            replica: None: the primary is always read.
            clock: Time of the database.
            timer: Seconds, by a clock that nobody sets.
        """
        self._primary = primary
        self._replica = replica
        self._clock = clock
        self._timer = timer
        self._until = 0.0  # by `timer`; the replica may be read before
        self._was_used = False

    @property
    def is_used(self) -> bool:
        """Whether the replica is read now."""
        return self._replica is not None and self._timer() < self._until

    @property
    def is_configured(self) -> bool:
        """Whether there is a replica at all."""
        return self._replica is not None

    def look(self, _now: datetime) -> None:
        """Find out until when the replica may be read; log when that begins and ends."""
        if self._replica is None:
            return
        since = self._timer()
        late, problem = MOST_LATE, "away"
        try:
            late = measure_lateness(self._replica, self._clock())
            problem = f"{late:.0f} s late"
        except database.UNAVAILABLE:
            pass
        self._until = since + MOST_LATE - late
        if (is_used := self.is_used) != self._was_used:
            self._was_used = is_used
            if is_used:
                log.info("lists, accounting and explanations are read from the replica")
            else:
                log.warning("the replica of the database is %s: the primary is read instead", problem)

    @contextmanager
    def reading(self, *job_ids: int) -> Iterator[Connection]:
        """A read-only transaction of the replica, or of the primary.

        The primary is also read while the replica lacks one of these jobs, which was just submitted. If the
        replica fails in the middle the error is raised, and the next transaction is of the primary.
        """
        with ExitStack() as stack:
            conn = self._begin(stack, set(job_ids))
            try:
                yield conn or stack.enter_context(database.reading(self._primary))
            except (OperationalError, InterfaceError) as error:
                if conn is not None and not database.is_statement_timeout(error):
                    self._until = 0.0
                raise

    def _begin(self, stack: ExitStack, job_ids: Collection[int]) -> Connection | None:
        """A transaction of the replica; None: it is not to be used, lacks a job, or does not answer.

        A pool without a free connection is no such answer: the work of many readers is to stay away from the
        primary.
        """
        if self._replica is None or not self.is_used:
            return None
        try:
            with ExitStack() as own:
                conn = own.enter_context(database.reading(self._replica))
                if job_ids and conn.execute(COUNT, {"job_ids": list(job_ids)}).scalar_one() < len(job_ids):
                    return None
                stack.enter_context(own.pop_all())
                return conn
        except (OperationalError, InterfaceError):
            self._until = 0.0
            return None
