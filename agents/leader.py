"""Leader election among the processes of an agent: a lease row with a fencing number.

Every transaction of the leader checks the fencing number, so a process that lost the lease while it was
suspended commits nothing.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeVar

from sqlalchemy import Connection, Engine

from taskqueue.db import agent_leases, database

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

#: Lifetime of a leadership that is not renewed; a killed agent is replaced after this time.
LEASE_TIME: Final = timedelta(seconds=30)


class LeadershipLostError(Exception):
    """Another process became leader while this one was suspended; the transaction is rolled back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """The exclusive right to do an agent's work."""

    engine: Engine
    name: str
    fence: int
    now: datetime
    last: datetime | None  #: start of the latest completed cycle

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a transaction that cannot overlap one of another leader."""
        with database.writing(self.engine) as conn:
            if not agent_leases.is_held(conn, name=self.name, fence=self.fence):
                raise LeadershipLostError(f"another process is the leader of {self.name} now")
            yield conn

    def repeat(self, step: Callable[[Connection], int], *, most: int, rounds: int) -> int:
        """Call `step`, each time in its own transaction, until it does fewer than `most` things.

        `step` returns how many things it did, and this method their sum. After `rounds` calls the rest is
        left to the next cycle.
        """
        total = 0
        for _ in range(rounds):
            with self.writing() as conn:
                done = step(conn)
            total += done
            if done < most:
                break
        return total

    def serve_each(self, vos: Iterable[str], serve: Callable[[str], _Result]) -> dict[str, _Result]:
        """Serve VOs one after the other; a VO whose work fails is logged and missing from the result.

        Errors that are not the VO's end all: a lost leadership, an unavailable database, a conflict of
        transactions.
        """
        served: dict[str, _Result] = {}
        for vo in vos:
            try:
                served[vo] = serve(vo)
            except (LeadershipLostError, *database.UNAVAILABLE):
                raise
            except Exception as error:
                if database.is_conflict(error):
                    raise
                log.exception("%s: the work for the VO %s failed, the other VOs are continued", self.name, vo)
        return served

    def finish(self) -> None:
        """Store that the cycle is complete."""
        with self.writing() as conn:
            agent_leases.finish_cycle(conn, name=self.name, fence=self.fence, now=self.now)


def acquire(engine: Engine, name: str, *, holder: str, now: datetime) -> Leadership | None:
    """Become leader or renew the leadership; None while another process is the leader.

    `holder` is a name that is unique to this process.
    """
    with database.writing(engine) as conn:
        fence = agent_leases.acquire(conn, name=name, holder=holder, now=now, ttl=LEASE_TIME)
        last = agent_leases.list_last_cycles(conn).get(name)
    return None if fence is None else Leadership(engine=engine, name=name, fence=fence, now=now, last=last)
