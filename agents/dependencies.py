"""Dependency agent: lets jobs go that waited for others, when these have ended, or fails them.

It reads what was added to the job log, each row once, and looks up the jobs that wait for those that ended
there. If it is killed between an end and the release, the next cycle, of any process, begins at that end.
"""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, Engine

from agents import accounting, leader
from agents.accounting import LogCounter
from taskqueue.accounting.log_reader import LogSpan
from taskqueue.db import database
from taskqueue.jobs import dependencies
from taskqueue.jobs import log as job_log

NAME: Final = "dependencies"
#: Names of the readers of the log that decide by it.
READERS: Final = frozenset({dependencies.READER_NAME})


@dataclass(frozen=True, slots=True, kw_only=True)
class DependenciesResult:
    """Number of jobs that were let go, or failed."""

    decided: int = 0

    def __bool__(self) -> bool:
        return bool(self.decided)


def cycle(engine: Engine, *, now: datetime, holder: str, briefly: bool = False) -> DependenciesResult | None:
    """Decide about the jobs whose parents ended since the last cycle; None while another is the leader.

    `briefly`: another process may be the leader immediately afterwards.
    """
    with leader.lead(engine, NAME, holder=holder, now=now, briefly=briefly) as leadership:
        if leadership is None:
            return None
        decided: Counter[str] = Counter()

        def count(conn: Connection, span: LogSpan) -> None:
            decided[NAME] += dependencies.count_span(conn, span.bounds, now=now)

        with database.reading(engine) as conn:
            end = job_log.read_end(conn)
        accounting.count_all(leadership, LogCounter(name=dependencies.READER_NAME, count=count), end)
        return DependenciesResult(decided=decided.total())
