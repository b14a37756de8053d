"""Wait-time agent: stores for each ended job how long it waited, by cause."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import Engine

from agents import leader
from agents.leader import Leadership
from taskqueue.jobs import wait_times
from taskqueue.jobs.wait_times import EndedJob

NAME: Final = "waits"
#: Jobs that one transaction looks at, and such transactions in one cycle.
_MOST: Final = 2000
_ROUNDS: Final = 40
#: A transaction that ended a job may commit this much later than it says.
_LATE: Final = timedelta(minutes=10)
#: By then the matchers have written what kept a job from pilots.
_KNOWN: Final = timedelta(minutes=2)
_BEGINNING: Final = EndedJob(at=datetime(1970, 1, 1, tzinfo=UTC), job_id=0)
#: A new process begins so long before the last cycle of any; a backlog that is older is booked at the latest
#: when its log goes.
_BEFORE: Final = timedelta(days=1)


@dataclass(slots=True)
class WaitTimesState:
    """How far the jobs that ended have been looked at; None: a new process has looked at none."""

    seen: EndedJob | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsResult:
    """What a cycle did."""

    booked: int = 0  #: jobs

    def __bool__(self) -> bool:
        return bool(self.booked)


def cycle(engine: Engine, *, now: datetime, holder: str, memory: WaitTimesState) -> WaitsResult | None:
    """Look at the jobs that have ended since the last time.

    Args:
        engine: The database.
        now: The time.
        holder: This process, by a name that no other ever has.
        memory: Where the last cycle of this process came to.

    Returns:
        None: another process does this now.
    """
    mine = leader.acquire(engine, NAME, holder=holder, now=now)
    if mine is None:
        return None
    seen = memory.seen or _find_start(mine)
    booked = 0
    for _ in range(_ROUNDS):
        with mine.writing() as conn:
            done = wait_times.store_ended(conn, since=seen, until=now - _KNOWN, most=_MOST)
        booked += done.jobs
        if done.last is None:
            seen = max(seen, EndedJob(at=now - _LATE, job_id=0), key=lambda end: end.at)
            break
        seen = done.last
    memory.seen = seen
    mine.finish()
    return WaitsResult(booked=booked)


def _find_start(mine: Leadership) -> EndedJob:
    return _BEGINNING if mine.last is None else EndedJob(at=mine.last - _BEFORE, job_id=0)
