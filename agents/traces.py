"""Trace agent: sends each ended job's history to an OpenTelemetry collector.

Nothing is measured where jobs are handled: the history is in the tables. A trace has the same ids whenever it
is sent, so that a collector that gets one twice, after a change of leaders, has it once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Engine

from agents import leader
from taskqueue.db import database
from taskqueue.jobs import traces, wait_times
from taskqueue.jobs.traces import Span
from taskqueue.jobs.wait_times import EndedJob

NAME: Final = "traces"
#: Jobs per request to the collector, and requests per cycle.
_MOST: Final = 200
_ROUNDS: Final = 50
#: By then their wait times are stored, and a transaction that ended a job is committed.
_DELAY: Final = timedelta(minutes=3)
#: Traces that could not be sent for so long are dropped.
_OLDEST: Final = timedelta(hours=6)

#: Sends traces; False: try again later.
Send = Callable[[Sequence[Span]], bool]


@dataclass(slots=True)
class TracesState:
    """Latest ended job whose trace was sent; None in a new process."""

    seen: EndedJob | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesResult:
    """Number of traces that were sent."""

    sent: int = 0
    failed: bool = False  #: the collector took no more; they are sent again in the next cycle

    def __bool__(self) -> bool:
        return self.failed


def cycle(
    engine: Engine, send: Send, *, now: datetime, holder: str, memory: TracesState
) -> TracesResult | None:
    """Send the traces of jobs that ended since the last cycle; None while another process is the leader.

    `memory` is the same object in each cycle of a process.
    """
    with leader.lead(engine, NAME, holder=holder, now=now) as leadership:
        if leadership is None:
            return None
        begin = max(leadership.last or now, now - _OLDEST) - _DELAY
        seen = max(memory.seen or EndedJob(at=begin, job_id=0), EndedJob(at=now - _OLDEST, job_id=0), key=_at)
        sent, failed = 0, False
        for _ in range(_ROUNDS):
            with database.reading(engine) as conn:
                ended = wait_times.list_ended(conn, since=seen, until=now - _DELAY, most=_MOST)
                found = traces.read_traces(conn, [each.job_id for each in ended])
            if failed := bool(found) and not send(found):
                break
            sent, seen = sent + len(found), ended[-1] if ended else seen
            if len(ended) < _MOST:
                break
        memory.seen = seen
        return TracesResult(sent=sent, failed=failed)


def _at(ended: EndedJob) -> datetime:
    return ended.at
