"""The agent of waits: writes down for what each job that has ended had waited."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import Engine

from agents import turn
from taskqueue import job_waits

NAME: Final = "waits"
#: Jobs in one transaction, and such transactions in one cycle.
_MOST: Final = 500
_ROUNDS: Final = 40
#: A transaction that ended a job may commit this much later than it says.
_LATE: Final = timedelta(minutes=10)
#: By then the matchers have written what kept a job from pilots.
_KNOWN: Final = timedelta(minutes=2)
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Memory:
    """How far the jobs that ended have been looked at; a new process begins from the start."""

    seen: datetime = _BEGINNING


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsResult:
    """What a cycle did."""

    booked: int = 0  #: jobs

    def __bool__(self) -> bool:
        return bool(self.booked)


def cycle(engine: Engine, *, now: datetime, holder: str, memory: Memory) -> WaitsResult | None:
    """Look at the jobs that have ended since the last time.

    Args:
        engine: The database.
        now: The time.
        holder: This process, by a name that no other ever has.
        memory: Where the last cycle of this process came to.

    Returns:
        None: another process does this now.
    """
    mine = turn.take(engine, NAME, holder=holder, now=now)
    if mine is None:
        return None
    booked = 0
    for _ in range(_ROUNDS):
        with mine.writing() as conn:
            ended = job_waits.book_ended(conn, since=memory.seen, until=now - _KNOWN, most=_MOST)
        booked += len(ended)
        if len(ended) < _MOST:
            memory.seen = max(memory.seen, now - _LATE)
            break
        memory.seen = ended[-1]
    mine.finish()
    return WaitsResult(booked=booked)
