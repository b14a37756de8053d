"""Wait-time agent: stores for each ended job how long it waited, by cause."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import Engine

from agents import leader
from taskqueue.accounting import wait_times
from taskqueue.accounting.wait_times import EndedJob

NAME: Final = "waits"
#: Jobs per transaction, and transactions per cycle.
_MOST: Final = 2000
_ROUNDS: Final = 40
#: Longest delay between a job's recorded end and the commit of it.
_LATE: Final = timedelta(minutes=10)
#: By then the matchers have written why a job was not matched.
_KNOWN: Final = timedelta(minutes=2)
_BEGINNING: Final = EndedJob(at=datetime(1970, 1, 1, tzinfo=UTC), job_id=0)
#: A new process starts this long before the last cycle of any; older wait times are stored at the latest when
#: their log is deleted.
_BEFORE: Final = timedelta(days=1)


@dataclass(slots=True)
class WaitTimesState:
    """Latest ended job whose wait times are stored; None in a new process."""

    seen: EndedJob | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsResult:
    """Number of jobs whose wait times were stored."""

    booked: int = 0

    def __bool__(self) -> bool:
        return bool(self.booked)


def cycle(engine: Engine, *, now: datetime, holder: str, memory: WaitTimesState) -> WaitsResult | None:
    """Store the wait times of jobs that ended since the last cycle; None while another process is the leader.

    `memory` is the same object in each cycle of a process.
    """
    with leader.lead(engine, NAME, holder=holder, now=now) as leadership:
        if leadership is None:
            return None
        seen = memory.seen or (
            _BEGINNING if leadership.last is None else EndedJob(at=leadership.last - _BEFORE, job_id=0)
        )
        if seen.at > now:  # the clock was set back
            seen = EndedJob(at=now - _LATE, job_id=0)
        booked = 0
        for _ in range(_ROUNDS):
            with leadership.writing() as conn:
                done = wait_times.store_ended(conn, since=seen, until=now - _KNOWN, most=_MOST)
            booked += done.jobs
            if done.last is None:
                seen = max(seen, EndedJob(at=now - _LATE, job_id=0), key=lambda end: end.at)
                break
            seen = done.last
        memory.seen = seen
        return WaitsResult(booked=booked)
