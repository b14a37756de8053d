"""Dependency agent: lets jobs go that waited for others, when these have ended, or fails them.

It reads what was added to the job log, each row once, and notes the jobs that ended there. Then each VO has a
turn: so many pairs of jobs that wait and those that they waited for, so that one VO's do not keep the jobs of
others waiting. If it is killed between an end and the release, the next cycle, of any process, goes on there.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, Engine

from agents import accounting, leader
from agents.accounting import LogCounter
from agents.leader import Leadership
from taskqueue.accounting.log_reader import LogSpan
from taskqueue.db import database
from taskqueue.jobs import dependencies
from taskqueue.jobs import log as job_log
from taskqueue.jobs.dependencies import Turn

NAME: Final = "dependencies"
#: Names of the readers of the log that decide by it.
READERS: Final = frozenset({dependencies.READER_NAME})


@dataclass(frozen=True, slots=True, kw_only=True)
class DependenciesResult:
    """Number of jobs that were let go, or failed."""

    decided: int = 0
    is_behind: bool = False  #: more is to be counted: the next turns follow at once

    def __bool__(self) -> bool:
        return bool(self.decided)


def cycle(engine: Engine, *, now: datetime, holder: str, briefly: bool = False) -> DependenciesResult | None:
    """Decide about the jobs whose parents ended since the last cycle; None while another is the leader.

    `briefly`: another process may be the leader immediately afterwards.
    """
    with leader.lead(engine, NAME, holder=holder, now=now, briefly=briefly) as leadership:
        if leadership is None:
            return None
        with database.reading(engine) as conn:
            end = job_log.read_end(conn)
        accounting.count_all(leadership, LogCounter(name=dependencies.READER_NAME, count=_note), end)
        with database.reading(engine) as conn:
            vos = dependencies.list_changed_vos(conn)
        turns = leadership.serve_each(vos, lambda vo: _count_turn(leadership, vo)).values()
        return DependenciesResult(
            decided=sum(turn.decided for turn in turns), is_behind=not all(turn.is_last for turn in turns)
        )


def _note(conn: Connection, span: LogSpan) -> None:
    dependencies.note_span(conn, span.bounds)


def _count_turn(leadership: Leadership, vo: str) -> Turn:
    with leadership.writing() as conn:
        return dependencies.count_turn(conn, vo, now=leadership.now)
