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

from taskqueue.db import agent_leases, database, retry

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

#: How long a turn is good without news; a killed agent is replaced after that.
LEASE_TIME: Final = timedelta(seconds=30)


class LeadershipLostError(Exception):
    """Another process took over while this one was asleep; nothing of the transaction is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """The right to do an agent's work."""

    engine: Engine
    name: str
    fence: int
    now: datetime
    last: datetime | None  #: when the latest cycle began that came through to its end

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that nobody else's turn overlaps.

        Raises:
            TurnLostError: The turn is over.
        """
        with database.writing(self.engine) as conn:
            if not agent_leases.is_held(conn, name=self.name, fence=self.fence):
                raise LeadershipLostError(f"another process does the work of {self.name} now")
            yield conn

    def repeat(self, step: Callable[[Connection], int], *, most: int, rounds: int) -> int:
        """Take a step again, each time in a transaction of its own, until it did less than it may.

        Args:
            step: Does up to `most` things, and says how many.
            most: Things of one step.
            rounds: Steps of one cycle; the next one goes on.

        Returns:
            How many things were done.

        Raises:
            TurnLostError: The turn is over; what is committed stays.
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
        """Serve VOs one after the other; one at which it breaks is logged and left out of the result.

        Raises:
            TurnLostError: The turn is over.
            OperationalError: The database is away, or another transaction was in the way.
        """
        served: dict[str, _Result] = {}
        for vo in vos:
            try:
                served[vo] = serve(vo)
            except LeadershipLostError:
                raise
            except Exception as error:
                if isinstance(error, database.UNAVAILABLE) or retry.is_conflict(error):
                    raise
                log.exception("%s: the work for the VO %s broke, that for the others goes on", self.name, vo)
        return served

    def finish(self) -> None:
        """Note that the cycle came through to its end."""
        with self.writing() as conn:
            agent_leases.finish_cycle(conn, name=self.name, fence=self.fence, now=self.now)


def acquire(engine: Engine, name: str, *, holder: str, now: datetime) -> Leadership | None:
    """Take or keep the turn.

    Args:
        engine: The database.
        name: The agent.
        holder: This process, by a name that no other ever has.
        now: The time.

    Returns:
        None: it is another process's turn.
    """
    with database.writing(engine) as conn:
        fence = agent_leases.acquire(conn, name=name, holder=holder, now=now, ttl=LEASE_TIME)
        last = agent_leases.read_last_cycle(conn, name)
    return None if fence is None else Leadership(engine=engine, name=name, fence=fence, now=now, last=last)
