"""Trace agent: sends each ended job's history to an OpenTelemetry collector.

Nothing is measured where jobs are handled: the history is in the tables. A trace has the same ids whenever it
is sent, so that a collector that gets one twice, after a change of leaders, has it once.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Final

from sqlalchemy import Engine

from agents import leader
from pilotage.cli.processes.agent import AgentContext
from pilotage.cli.settings import Settings
from pilotage.plugins.otel import spans
from pilotage.plugins.otel.settings import TraceSettings
from pilotage.plugins.otel.spans import Span
from taskqueue.accounting import wait_times
from taskqueue.accounting.wait_times import EndedJob
from taskqueue.db import database

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

    def __bool__(self) -> bool:
        return False  # every cycle sends something: not worth a line in the log


def cycle(
    engine: Engine, send: Send, *, now: datetime, holder: str, memory: TracesState
) -> TracesResult | None:
    """Send the traces of jobs that ended since the last cycle; None while another process is the leader.

    `memory` is the same object in each cycle of a process. ConnectionError if the collector takes no
    more: the cycle is not complete then, so that the next process begins with those that were not sent.
    """
    with leader.lead(engine, NAME, holder=holder, now=now) as leadership:
        if leadership is None:
            return None
        oldest = EndedJob(at=now - _OLDEST, job_id=0)
        last = oldest if leadership.last is None else EndedJob(at=leadership.last - _DELAY, job_id=0)
        seen = max(memory.seen or last, oldest, key=attrgetter("at"))
        if seen.at > now:  # the clock was set back
            seen = oldest
        sent = 0
        for _ in range(_ROUNDS):
            with database.reading(engine) as conn:
                ended = wait_times.list_ended(conn, since=seen, until=now - _DELAY, most=_MOST)
                found = spans.read_traces(conn, [each.job_id for each in ended])
            if found and not send(found):
                raise ConnectionError("the collector takes no traces now")
            sent, seen = sent + len(found), ended[-1] if ended else seen
            memory.seen = seen
            if len(ended) < _MOST:
                break
        return TracesResult(sent=sent)


@contextmanager
def open_agent(
    context: AgentContext, chosen: Settings
) -> Iterator[Callable[[datetime], TracesResult | None]]:
    """The cycle of the agent; it sends nothing where no collector is configured."""
    url = chosen.of(TraceSettings).otlp_url
    if url is None:
        yield lambda _now: TracesResult()
        return
    from pilotage.plugins.otel.collector import Collector  # needs the extra

    memory = TracesState()
    with closing(Collector(url)) as collector:
        yield lambda now: cycle(context.engine, collector.send, now=now, holder=context.holder, memory=memory)
